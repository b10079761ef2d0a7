"""The kinds of figures that ship with FedLoom, by the names that a config gives them."""

from fedloom.common.schema import Keys
from fedloom.report.figures.accuracies import (
    AccuracyBars,
    Congruence,
    OptionLine,
    Shots,
    TwoMetrics,
)
from fedloom.report.figures.answers import Answers
from fedloom.report.figures.convergence import Bars, Convergence, Lines, Scatter
from fedloom.report.figures.counted_answers import Confusion, Reliability
from fedloom.report.figures.grid_plots import Boxes, Grid, Scatter3d
from fedloom.report.figures.insides import BlockAccuracy, ClientGroups, GroupCounts, SoftWeights
from fedloom.report.figures.maps import BackboneTsne, PromptPath, PromptTsne, TokenTsne
from fedloom.report.figures.seed_points import SeedPoints

KINDS: dict[str, type[Keys]] = {
    "accuracy_bars": AccuracyBars,
    "answers": Answers,
    "backbone_tsne": BackboneTsne,
    "bars": Bars,
    "block_accuracy": BlockAccuracy,
    "boxes": Boxes,
    "client_groups": ClientGroups,
    "confusion": Confusion,
    "congruence": Congruence,
    "convergence": Convergence,
    "grid": Grid,
    "group_counts": GroupCounts,
    "lines": Lines,
    "option_line": OptionLine,
    "prompt_path": PromptPath,
    "prompt_tsne": PromptTsne,
    "reliability": Reliability,
    "scatter": Scatter,
    "scatter3d": Scatter3d,
    "seed_points": SeedPoints,
    "shots": Shots,
    "soft_weights": SoftWeights,
    "token_tsne": TokenTsne,
    "two_metrics": TwoMetrics,
}
