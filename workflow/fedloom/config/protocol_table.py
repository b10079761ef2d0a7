"""The settings of a study's methods, for a table that needs no run (PFPT, Table 9)."""

from itertools import product
from typing import Any

from fedloom.config.protocols import method_of, study_of
from fedloom.config.settings import Output, Partition, Settings

TRAINING = ("optimizer", "lr", "epochs", "batch_size")


def protocol_rows(settings: Settings, output: Output) -> list[dict[str, Any]]:
    """Return one row per scenario and method: what it is trained with, and by whom.

    Columns are `dataset`, `partition`, `method`, `title`, `rounds`, `clients` (text: a number, or
    "5 per domain"), `clients_per_round`, `optimizer`, `lr`, `epochs` and `batch_size`.
    """
    rows = []
    for scenario, label in product(output.scenarios, output.methods):
        study = study_of(settings, scenario.partition, label)
        method = method_of(settings, scenario.partition, label)
        rows.append(
            {
                "dataset": scenario.dataset,
                "partition": scenario.partition,
                "method": label,
                "title": method.title,
                "rounds": study.rounds,
                "clients": _clients(settings.partitions[scenario.partition]),
                "clients_per_round": study.clients_per_round,
            }
            | {key: method.training.get(key) for key in TRAINING}
        )
    return rows


def _clients(partition: Partition) -> str:
    """Return how many clients a partition has; of one by domain, how many per domain."""
    if "clients" in partition.settings:
        return str(partition.settings["clients"])
    return f"{partition.settings['clients_per_domain']} per domain"
