"""Draw who holds what: a bubble per client and class, as large as its training images are many."""

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedloom.common.ids import UNASSIGNED
from fedloom.common.io import read_table
from fedloom.report.figures import style

# blue and vermilion of Okabe and Ito, told apart by all; held-out bubbles are hollow too
PARTICIPATING, HELD_OUT = "#0072B2", "#D55E00"
CELL = 0.24  # inches per client and class, where the page allows it
LINE = 1.2  # points
# face, edge and width of the line of bubbles, by whether their clients are held out
LOOKS = {False: (PARTICIPATING, "none", 0.0), True: ("none", HELD_OUT, LINE)}
NAMED = 40  # more classes have no names, and more clients no numbers


def draw(partition: Path, class_names: list[str], out_png: Path, out_pdf: Path) -> None:
    """Draw a partition's Parquet file; equal partitions give equal bytes."""
    columns = ("client_id", "label", "test", "participating", "domain")
    table = read_table(partition)
    assigned = table["client_id"].to_numpy() != UNASSIGNED  # few-shot training leaves images out
    client, label, test, participating, domain = (
        table[name].to_numpy(zero_copy_only=False)[assigned] for name in columns
    )
    counts = np.zeros((client.max() + 1, len(class_names)), int)  # [K, C]
    np.add.at(counts, (client[~test], label[~test]), 1)
    held_out = np.isin(np.arange(len(counts)), client[~participating])
    with style.applied():
        figure = _figure(counts, held_out, _domains(client, domain), class_names)
        style.save(figure, {"png": out_png, "pdf": out_pdf})


def _domains(client: np.ndarray, domain: np.ndarray) -> list[str]:
    """Return the domain of every client [K], several joined by "+"; [] if there is one in all."""
    domain = domain.astype(str)
    if (domain == domain[0]).all():
        return []
    return ["+".join(np.unique(domain[client == k])) for k in range(client.max() + 1)]


def _figure(
    counts: np.ndarray, held_out: np.ndarray, domains: list[str], class_names: list[str]
) -> Figure:
    """Draw `counts` [K, C], clients from left to right, the first class at the top."""
    clients, classes = counts.shape
    wide, high = (float(np.clip(CELL * n, 2.4, most)) for n, most in ((clients, 11), (classes, 9)))
    figure, ((axes,),) = style.grid(1, 1, (wide + 2.6, high + 1.8))
    area = (72 * min(wide / clients, high / classes) * 0.95) ** 2 / counts.max()  # points^2
    for out in (False, True):
        k, c = np.nonzero(counts * (held_out == out)[:, None])
        face, edge, line = LOOKS[out]
        look: dict[str, Any] = {"facecolors": face, "edgecolors": edge, "linewidths": line}
        axes.scatter(k, c, s=_width(counts[k, c] * area, out) ** 2, clip_on=False, **look)
    axes.set(xlabel="client", ylabel="class")
    axes.set_xlim(-0.6, clients - 0.4)
    axes.set_ylim(classes - 0.4, -0.6)
    axes.tick_params(labelsize=7)
    if clients <= NAMED:
        axes.set_xticks(range(clients))
    if classes <= NAMED:
        axes.set_yticks(range(classes), class_names)
    if domains:
        _label_domains(axes, domains)
    _legend(figure, counts, held_out, area)
    return figure


def _width(area: np.ndarray, held_out: bool) -> np.ndarray:
    """Return the widths in points such that bubbles cover `area`, in points^2, with their line."""
    return np.maximum(np.sqrt(area) - held_out * LINE, 0.7)


def _label_domains(axes: Axes, domains: list[str]) -> None:
    """Name the domains above their clients, with a line between two of them."""
    if any("+" in name for name in domains):
        names = sorted({part for name in domains for part in name.split("+")})
        axes.set_title(f"clients hold several of {len(names)} domains", fontsize=8, loc="left")
        return
    for name, group in groupby(range(len(domains)), domains.__getitem__):
        clients = list(group)
        narrow = len(clients) < 4
        if clients[0]:
            axes.axvline(clients[0] - 0.5, color="0.6", linewidth=0.8)
        axes.annotate(
            name, (np.mean(clients), 1), (0, 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", rotation=40 if narrow else 0, rotation_mode="anchor",
            ha="left" if narrow else "center", fontsize=8,
        )  # fmt: skip


def _legend(figure: Figure, counts: np.ndarray, held_out: np.ndarray, area: float) -> None:
    """Draw bubbles of three numbers of images, at `area` points^2 per image, and a held-out one."""
    most = int(counts.max())
    sizes = sorted({max(1, round(most * share)) for share in (0.1, 0.4, 1)})
    handles = [_bubble(f"{size}", size * area, False) for size in sizes]
    if held_out.any():
        handles.append(_bubble("held out", 0.4 * most * area, True))
    figure.legend(
        handles=handles, title="training images", loc="outside right upper", fontsize=8,
        title_fontsize=8, labelspacing=max(0.5, (area * most) ** 0.5 / 16),
    )  # fmt: skip


def _bubble(label: str, area: float, held_out: bool) -> Line2D:
    """Return a bubble of `area` points^2 for the legend."""
    face, edge, line = LOOKS[held_out]
    return Line2D(
        [], [], label=label, linestyle="", marker="o", markeredgewidth=line, markerfacecolor=face,
        markeredgecolor=edge, markersize=float(_width(np.array(area), held_out)),
    )  # fmt: skip
