"""Shrink the data sets that a study uses, and keep what its partitions and outputs say of them."""

from fedloom.common.json_types import JsonDict
from fedloom.config.reading import read
from fedloom.config.settings import Settings
from fedloom.config.shrink.made_up_data import shrink_dataset
from fedloom.config.shrink.scale import Scale
from fedloom.machine.install import resource

# side of small images, in pixels
SMALL_SIDE = 32


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
