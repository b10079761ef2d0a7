"""Draw what is inside backbones and methods: class tokens, class prompts, and prompt groups."""

from __future__ import annotations

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.run_tables import BLOCK_ACCURACY_SCHEMA
from fedloom.common.schema import Count, Natural, Several
from fedloom.config.output_kinds import FigureKind, RunsFigure
from fedloom.config.settings import KindSpec
from fedloom.report import metrics
from fedloom.report.figures import chosen_panels, style
from fedloom.report.plotted_runs import PlottedBackbone, PlottedRun

# the most names that have room beside a panel
MOST_CLASS_LABELS = 20


class BlockAccuracy(FigureKind):
    """Nearest-prototype accuracy of the class token by block (PEP-FedPT Fig. 2).

    It shows how well the frozen backbone's class token tells classes apart at the input of every
    block, and at the output: a test image is assigned to the nearest class means of the training
    images.
    """

    spec = KindSpec(shows="backbones")

    def draw(self, series: list[PlottedBackbone]) -> style.Figure:
        figure, axes = style.panels(len(series))
        for axis, item in zip(axes, series, strict=True):
            # in no method's colour, since the backbone is frozen
            frame = metrics.frame(item.accuracy, BLOCK_ACCURACY_SCHEMA)
            axis.plot(frame["block"], frame["top5"], "o-", color="#222222", label="Top-5")
            axis.plot(frame["block"], frame["top1"], "s--", color="#888888", label="Top-1")
            style.whole_numbers(axis)
            axis.set(ylim=(0, 103), title=style.name(item, series, style.BACKBONE))

        figure.supxlabel("Input of block; last: output")
        figure.supylabel("Nearest prototype\naccuracy (%)")
        style.legend(figure, axes)
        return figure


class SoftWeights(RunsFigure):
    """Mean weight of every class prompt for test images of a class (PEP-FedPT Fig. 8).

    The weights are those with which class prompts are mixed, averaged over all test images of one
    true class, whose bar is dark. There is a panel per block at which prompts are mixed. Runs are
    those of the first seed. There are at most nine panels: of more blocks, classes and runs, evenly
    spaced ones are shown: three blocks before a run is left out, and runs before classes.
    """

    spec = KindSpec(artefact="soft_weights", reads="names", first_seed=True)

    classes: Several[Natural]
    """Numbers of the true classes to show, each in its own row."""
    blocks: Several[Count] | None = None
    """Blocks to show, counted from 1. Default: all at which prompts are mixed."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        # the panels: three blocks stay before a run is left out, and runs before classes
        mixed = set[int]()
        for run in series:
            mixed |= set(metrics.artefact(run)["block"])
        all_blocks = self._blocks_of(sorted(mixed), series)
        blocks = chosen_panels.choose_columns(all_blocks, len(series) * len(self.classes))
        runs = chosen_panels.choose_rows(series, len(blocks))
        classes = chosen_panels.choose_rows(self.classes, len(blocks) * len(runs))
        rows = [(run, metrics.artefact(run), label) for run in runs for label in classes]

        # a row per run and class, a panel per block
        figure, axes = style.wrapped_grid(len(rows), len(blocks), (2.4, 3.2), sharex=True)
        for row, (run, frame, label) in zip(axes, rows, strict=True):
            names = metrics.class_names(run)
            chosen = frame[frame["label"] == label]
            if chosen.empty:
                raise FedLoomError(f"{run.artefact}: no test image of class {label}")

            # a bar per class prompt, dark for the true class
            for axis, block in zip(row, blocks, strict=True):
                bars = chosen[chosen["block"] == block]
                colours = [(run.style.colour, _opacity(c == label)) for c in bars["class"]]
                axis.barh(bars["class"], bars["weight"], color=colours)
                axis.set(title=f"Block {block}", yticks=[])
                axis.grid(visible=False, axis="y")
                axis.margins(y=0.01)
                # the first class on top
                axis.invert_yaxis()

            # every step-th class has its name on the axis, including the true class
            step = -(-len(names) // MOST_CLASS_LABELS)
            at = range(label % step, len(names), step)
            # a single row of panels is wrapped
            firsts = row[:1]
            if len(rows) == 1:
                firsts = row[:: style.MOST_IN_A_ROW]
            for axis in firsts:
                axis.set_yticks(at, [names[each] for each in at], fontsize=7)
            about = style.run_name(run, series).replace(", ", "\n")
            row[0].set_ylabel(f"{about}\nImages of {names[label]}".lstrip())
        figure.supxlabel("Mean weight")
        counts = {
            "runs": (len(runs), len(series)),
            "classes": (len(classes), len(self.classes)),
            "blocks": (len(blocks), len(all_blocks)),
        }
        chosen_panels.say_left_out(figure, counts)
        return figure

    def _blocks_of(self, mixed: list[int], series: list[PlottedRun]) -> list[int]:
        """Return the key `blocks`, or by default the blocks at which some run mixes prompts.

        Raises a FedLoomError if no run mixes prompts at a block that the key names.
        """
        if self.blocks is None:
            return mixed
        for block in self.blocks:
            if block not in mixed:
                known = ", ".join(map(str, mixed))
                raise FedLoomError(
                    f"{series[0].artefact}: no prompts are mixed at block {block}; mixed at {known}"
                )
        return list(self.blocks)


def _opacity(is_true_class: bool) -> float:
    """Return the opacity of a class's bar."""
    if is_true_class:
        return 1
    return 0.45


class GroupCounts(RunsFigure):
    """Groups of prompts that training images choose, first seed (SGPT Fig. 2c, 3).

    On the left, a row is a client, over all rounds; on the right, a row is a round, over all
    clients. Colours show the share of a row's images that chose each group.
    """

    spec = KindSpec(artefact="group_counts", first_seed=True)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw two panels per run: the shares of groups by client over all rounds, and by round."""
        figure, axes = style.grid(len(series), 2, (4, 3))
        scale = style.shades(0, 1)
        for row, run in zip(axes, series, strict=True):
            frame = metrics.artefact(run)

            # the panels of clients and of rounds
            for axis, by in zip(row, ("client", "round"), strict=True):
                counts = frame.pivot_table("count", by, "group", "sum", fill_value=0)
                shares = counts.div(counts.sum(axis=1), axis=0)
                axis.imshow(shares.to_numpy(), "viridis", scale.norm, aspect="auto")

                axis.set(xlabel="Group", ylabel=by.capitalize())
                axis.grid(visible=False)
                style.whole_numbers(axis)

                # at most eight clients or rounds are named
                shown = np.linspace(0, len(shares) - 1, min(len(shares), 8)).round().astype(int)
                axis.set_yticks(shown, shares.index[shown])
            row[0].set_title(style.run_name(run, series), loc="left")
        figure.colorbar(scale, ax=axes, label="Share of the selections", shrink=0.8)
        return figure


class ClientGroups(RunsFigure):
    """Images of one client that choose each group of prompts in a round, first seed (SGPT Fig. 3).

    The client is the one that took part in most rounds. Bars are means over these rounds, and
    whiskers reach one sample standard deviation to each side.
    """

    spec = KindSpec(artefact="group_counts", first_seed=True)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per run, all with the same limits, so that deviations can be compared."""
        figure, axes = style.by_run(series, sharey=True)
        for axis, run in zip(axes, series, strict=True):
            frame = metrics.artefact(run)

            # the client that took part in most rounds
            rounds = frame.groupby("client")["round"].nunique()
            client = rounds.idxmax()
            counts = frame[frame["client"] == client].groupby("group")["count"].agg(["mean", "std"])
            axis.bar(counts.index, counts["mean"], yerr=counts["std"], color=run.style.colour)

            title = f"{axis.get_title()}\nclient {client}, {rounds.max()} rounds"
            axis.set(xlabel="Group", title=title)
            style.whole_numbers(axis)
        figure.supylabel("Images that chose it")
        return figure
