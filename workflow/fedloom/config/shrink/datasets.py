"""Shrink the data sets that a study uses, and keep what its partitions and outputs say of them."""

from collections.abc import Sequence
from math import ceil

from fedloom.common.json_types import JsonDict
from fedloom.config.reading import read
from fedloom.config.settings import Scenario, Settings
from fedloom.config.shrink.dominance import images_of_client
from fedloom.config.shrink.made_up_data import count_domains, enlarge, shrink_dataset
from fedloom.config.shrink.partitions import Divided
from fedloom.config.shrink.scale import Scale
from fedloom.machine.install import resource

# side of small images, in pixels
SMALL_SIDE = 32
# The training images that each client has on average, at the least. With half of them, divisions by
# a Dirichlet distribution of alpha 0.1 would take many draws.
IMAGES_OF_CLIENT = 12
# The training images of each class, at the least, where a study tunes options: each client then has
# two images of some class, of which it holds one back. With half of them, a client with one image
# of each of its classes was drawn.
IMAGES_OF_TUNED_CLASS = 4


def shrink_datasets(config: JsonDict, settings: Settings, scale: Scale) -> JsonDict:
    """Return the config's `datasets`, of which those that a study trains or tests on are shrunk.

    Raises:
        InvalidKeyError: the classes of a data set are unknown.
    """
    used = {*settings.select.datasets}
    for label in settings.select.partitions:
        used |= {*settings.partitions[label].settings.get("transfer_to", ())}

    # labels that the study does not run stay as they are, since tables may name them
    names = _names_of_superclasses(settings)
    shrunk = dict(config["datasets"])
    for label, entry in config["datasets"].items():
        if label not in used:
            continue
        dataset = settings.datasets[label]
        side = SMALL_SIDE
        if scale.real:
            side = dataset.settings.get("image_size", SMALL_SIDE)
        needed = _needed_domains(settings, label)
        shrunk[label] = shrink_dataset(label, entry, dataset, names, needed, side, scale.images)
    return shrunk


def enlarge_datasets(
    datasets: JsonDict,
    partitions: JsonDict,
    config: JsonDict,
    settings: Settings,
    scenarios: Sequence[Scenario],
) -> JsonDict:
    """Return shrunk data sets with images enough for the partitions that divide them.

    Args:
        datasets: the shrunk data sets, by label.
        partitions: the shrunk partitions, by label.
        config: the merged config of the study.
        settings: its settings.
        scenarios: what is left of its scenarios.
    """
    enlarged = dict(datasets)
    for scenario in scenarios:
        label = scenario.dataset
        written = config["datasets"][label]
        if enlarged[label] is written:
            continue

        partition = settings.partitions[scenario.partition]
        clients = _count_clients(partitions[scenario.partition], datasets[label])
        classes = Divided(datasets[label], settings.datasets[label]).base_classes(partition)

        each = IMAGES_OF_CLIENT
        if partition.scheme == "imbalance":
            # of classes whose number is unknown, all images stay
            if classes is None:
                enlarged[label] = written
                continue
            each = images_of_client(clients, partition.settings["dominant_classes"], classes)

        # there are at least two classes
        images_of_class = ceil(clients * each / (classes or 2))
        if settings.study.tune:
            images_of_class = max(images_of_class, IMAGES_OF_TUNED_CLASS)
        enlarged[label] = enlarge(enlarged[label], written, images_of_class)
    return enlarged


def _count_clients(partition: JsonDict, dataset: JsonDict) -> int:
    """Return the clients that a shrunk partition makes of a shrunk data set.

    If the partition's keys do not say, return 0, or the number of domains that the scheme `domain`
    makes clients of.
    """
    if "clients" in partition:
        return partition["clients"]
    if partition["scheme"] == "domain":
        return count_domains(dataset) * partition.get("clients_per_domain", 1)
    return 0


def _names_of_superclasses(settings: Settings) -> list[str] | None:
    """Return the classes in a file of superclasses that an output reads; None if none does.

    They name the classes of a data set that has no other names.
    """
    names = None
    for output in (*settings.tables.values(), *settings.figures.values()):
        path = output.settings.get("superclasses")
        if path:
            names = [*read(resource(path))]
    return names


def _needed_domains(settings: Settings, dataset: str) -> list[str] | None:
    """Return the domains that partitions of a dataset name; None if none divides it by domains."""
    needed = list[str]()
    is_divided = False
    for scenario in settings.select.scenarios:
        partition = settings.partitions[scenario.partition]
        arrivals = partition.settings.get("arrivals", {})
        if scenario.dataset != dataset:
            continue
        if partition.scheme == "domain" or arrivals.get("of") == "domains":
            is_divided = True
        needed += partition.settings.get("held_out_domains", [])
    return needed if is_divided else None
