"""Draw accuracy over a grid of three axes as coloured points in space (FedPHA, Fig. 7 and 9)."""

from __future__ import annotations

from fedloom.config import requirements
from fedloom.config.output_kinds import RunsFigure
from fedloom.report.figures import style
from fedloom.report.figures.grid import MAP
from fedloom.report.members import accuracies, member, values
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

SIZE = (4.2, 3.6)


class Scatter3d(RunsFigure):
    """Mean accuracy over a grid of three axes, a coloured point per member (FedPHA Fig. 7, 9)."""

    shows = "grid"
    needs = (requirements.three_axes,)
    caption = (
        "Mean accuracy of the participating clients at the reported rounds, mean over seeds, "
        "of every member of the grid."
    )


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per scenario, a point per member; one scale of colours each."""
    import matplotlib.pyplot as plt

    names = list(member(series[0]).at)
    ticks = [list(dict.fromkeys(values(run)[axis] for run in series)) for axis in names]
    groups = style.scenarios(series)
    inches = (SIZE[0] * len(groups), SIZE[1])
    figure, axes = plt.subplots(
        1, len(groups), figsize=inches, squeeze=False, subplot_kw={"projection": "3d"}
    )
    for axis, runs in zip(axes.flat, groups.values(), strict=True):
        frame = accuracies(runs)
        at = [
            [value.index(name) for name in frame[axis_name]]
            for axis_name, value in zip(names, ticks, strict=True)
        ]
        points = axis.scatter(*at, c=frame["accuracy"], cmap=MAP, s=26, depthshade=False)
        for letter, name, value in zip("xyz", names, ticks, strict=True):
            getattr(axis, f"set_{letter}ticks")(range(len(value)), value)
            getattr(axis, f"set_{letter}label")(name)
        axis.set_title(style.name(runs[0], series))
        figure.colorbar(points, ax=axis, label="Mean accuracy (%)", shrink=0.6, pad=0.12)
    return figure
