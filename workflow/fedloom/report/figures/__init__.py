"""Figures: a kind is a module of this folder with `draw(series, entry) -> Figure`.

`series` is that of fedloom.outputs, `entry` the figure's section of the config.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot is imported: a cluster's node has no display

from fedloom.report.figures import (
    block_accuracy,
    boxes,
    convergence,
    grid,
    group_counts,
    pool_size,
    prompt_path,
    prompt_tsne,
    shots,
    soft_weights,
    style,
    token_tsne,
)

KINDS = {
    "convergence": convergence,
    "block_accuracy": block_accuracy,
    "soft_weights": soft_weights,
    "prompt_tsne": prompt_tsne,
    "token_tsne": token_tsne,
    "group_counts": group_counts,
    "pool_size": pool_size,
    "prompt_path": prompt_path,
    "grid": grid,
    "boxes": boxes,
    "shots": shots,
}


def write(entry: dict, series: list[dict], outputs: dict[str, Path]) -> None:
    """Draw a figure into the paths of its `pdf` and `png`."""
    with style.applied():
        style.save(KINDS[entry["kind"]].draw(series, entry), outputs)
