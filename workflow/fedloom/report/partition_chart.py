"""Draw a partition: a bubble per client and class, sized by the number of training images."""

from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedloom.common.files import read_table
from fedloom.common.ids import UNASSIGNED, client_domain, domain_names
from fedloom.common.run_tables import PARTITION_SCHEMA
from fedloom.report.figures import style
from fedloom.report.figures.paper import PAGE

# inches of a client's column and a class's row, where the page allows it
CELL = 0.24
# inches beside the panel, for labels and the legend
BESIDE = 2.6
# colour of the face, colour of the edge, and width of the edge in points, by whether a client is
# held out; Okabe and Ito's blue and vermilion can be told apart with any colour vision
LOOKS = {False: ("#0072B2", "none", 0.0), True: ("none", "#D55E00", 1.2)}
# if there are more classes, the axis has no names; if there are more clients, it has no numbers
MOST_TICK_LABELS = 40


def draw_partition(partition: Path, class_names: list[str], out_png: Path, out_pdf: Path) -> None:
    """Draw a partition's Parquet file; equal partitions give equal bytes."""
    table = read_table(partition, PARTITION_SCHEMA).to_pandas()
    # some images belong to no client, for example with few shots
    table = table[table["client_id"] != UNASSIGNED]

    # the training images of every client and class
    clients = table.groupby("client_id")
    train = table[~table["test"]]
    counts = np.zeros((len(clients), len(class_names)), int)  # [K, C]
    np.add.at(counts, (train["client_id"], train["label"]), 1)

    # every client's domain, by its training and its test images, if there are several domains
    domains = []
    if len(domain_names(table["domain"])) > 1:
        domains = clients["domain"].agg(client_domain).tolist()

    held_out = ~clients["participating"].any().to_numpy()
    with style.house_style():
        figure = _figure(counts, held_out, domains, class_names)
        style.save_figure(figure, {"png": out_png, "pdf": out_pdf})


def _figure(
    counts: np.ndarray, held_out: np.ndarray, domains: list[str], class_names: list[str]
) -> Figure:
    """Draw `counts` [K, C], clients from left to right, the first class at the top."""
    # inches of the panel; the rest is for labels and the legend
    clients, classes = counts.shape
    wide = float(np.clip(CELL * clients, 2.4, PAGE[0] - BESIDE))
    high = float(np.clip(CELL * classes, 2.4, 9))
    figure, ((axes,),) = style.grid(1, 1, (wide + BESIDE, high + 1.8))

    # square points per image: the largest bubble just fits into its cell
    area = (72 * min(wide / clients, high / classes) * 0.95) ** 2 / counts.max()

    def bubbles(
        x: ArrayLike, y: ArrayLike, images: np.ndarray | float, out: bool, label: str = ""
    ) -> PathCollection:
        """Draw bubbles for numbers of images, of clients that are held `out` or train."""
        face, edge, line = LOOKS[out]
        # the edge is part of a bubble's area
        width = np.maximum(np.sqrt(images * area) - line, 0.7)
        look = {"facecolors": face, "edgecolors": edge, "linewidths": line, "label": label}
        return axes.scatter(x, y, s=width**2, clip_on=False, **look)

    for out in LOOKS:
        k, c = np.nonzero(counts * (held_out == out)[:, None])
        bubbles(k, c, counts[k, c], out)

    axes.set(xlabel="client", ylabel="class")
    axes.set(xlim=(-0.6, clients - 0.4), ylim=(classes - 0.4, -0.6))
    axes.tick_params(labelsize=7)
    if clients <= MOST_TICK_LABELS:
        axes.set_xticks(range(clients))
    if classes <= MOST_TICK_LABELS:
        axes.set_yticks(range(classes), class_names)
    if domains:
        _label_domains(axes, domains)

    # the legend: bubbles of three sizes, and one of held-out clients
    most = int(counts.max())
    sizes = sorted({max(1, round(most * share)) for share in (0.1, 0.4, 1)})
    handles = [bubbles([], [], size, False, f"{size}") for size in sizes]
    if held_out.any():
        handles.append(bubbles([], [], 0.4 * most, True, "held out"))
    figure.legend(
        handles=handles, title="training images", loc="outside right upper", fontsize=8,
        title_fontsize=8, labelspacing=max(0.5, (area * most) ** 0.5 / 16),
    )  # fmt: skip
    return figure


def _label_domains(axes: Axes, domains: list[str]) -> None:
    """Write the names of domains above their clients, and draw a line between two domains."""
    if any("+" in name for name in domains):
        names = {part for name in domains for part in name.split("+")}
        axes.set_title(f"clients hold several of {len(names)} domains", fontsize=8, loc="left")
        return

    # clients of one domain follow each other
    for name, group in groupby(range(len(domains)), domains.__getitem__):
        clients = list(group)
        if clients[0]:
            axes.axvline(clients[0] - 0.5, color="0.6", linewidth=0.8)

        # names are slanted if they would run into each other
        rotation = 0
        alignment = "center"
        if len(clients) < 4:
            rotation = 40
            alignment = "left"
        axes.annotate(
            name, (np.mean(clients), 1), (0, 3), xycoords=("data", "axes fraction"),
            textcoords="offset points", rotation=rotation, rotation_mode="anchor",
            ha=alignment, fontsize=8,
        )  # fmt: skip
