"""The kinds of tables that ship with FedLoom, by the names that a config gives them."""

from fedloom.common.schema import Keys
from fedloom.report.tables.accuracy import (
    Accuracy,
    BaseToNovel,
    CrossDataset,
    Domains,
    HeldOut,
    LeaveOneDomainOut,
)
from fedloom.report.tables.claims import Claims
from fedloom.report.tables.clustering import Clustering
from fedloom.report.tables.costs import Communication, Parameters, Timings
from fedloom.report.tables.forgetting import Forgetting
from fedloom.report.tables.grid_tables import GridAverages, Ranked
from fedloom.report.tables.inputs import Protocol, Sizes
from fedloom.report.tables.scores import Scores

KINDS: dict[str, type[Keys]] = {
    "accuracy": Accuracy,
    "base_to_novel": BaseToNovel,
    "claims": Claims,
    "clustering": Clustering,
    "communication": Communication,
    "cross_dataset": CrossDataset,
    "domains": Domains,
    "forgetting": Forgetting,
    "grid_averages": GridAverages,
    "held_out": HeldOut,
    "leave_one_domain_out": LeaveOneDomainOut,
    "parameters": Parameters,
    "protocol": Protocol,
    "ranked": Ranked,
    "scores": Scores,
    "sizes": Sizes,
    "timings": Timings,
}
