"""Shrink partitions: a tenth of the clients, but enough for the scheme."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from fedloom.common.json_types import JsonDict
from fedloom.config.grids import partition_members
from fedloom.config.partitions import novel_numbers
from fedloom.config.settings import Dataset, Partition, Scenario, Settings
from fedloom.config.shrink.dominance import clients_for_dominance, is_even
from fedloom.config.shrink.made_up_data import count_classes, count_domains
from fedloom.config.shrink.scale import Scale, limit_report, limit_training

# partitions of at most this number of clients keep all of them; of others, a tenth stays
FEW_CLIENTS = 20
LEAST_CLIENTS = 10
# the training images that every client of a Dirichlet division has: enough for a test image
LEAST_IMAGES = 3


class Divided(NamedTuple):
    """A data set that a partition divides."""

    # its shrunk entry
    entry: JsonDict
    # the data set with all of its keys
    dataset: Dataset

    @property
    def classes(self) -> int | None:
        """The number of its classes; None if neither its keys nor its source state it."""
        return count_classes(self.entry) or self.dataset.expected.classes

    def base_classes(self, partition: Partition) -> int | None:
        """Return how many of its classes a partition divides: all but the novel ones."""
        classes = self.classes
        novel = partition.settings.get("novel_classes")
        if classes is None or novel is None:
            return classes
        if isinstance(novel, list):
            return classes - len(novel)
        return classes - len(novel_numbers(novel, [""] * classes))


def shrink_partitions(
    written: JsonDict,
    scenarios: Sequence[Scenario],
    settings: Settings,
    datasets: JsonDict,
    scale: Scale,
) -> JsonDict:
    """Return the config's `partitions`, of which those that a study runs are shrunk.

    The members of a grid stand in its place, under their own labels. A partition that the study
    does not run stays as it is, since tables may name it.

    Args:
        written: the config's `partitions`.
        scenarios: what is left of the study's scenarios.
        settings: the study's settings, in which partitions and data sets have all of their keys.
        datasets: the shrunk data sets, by label.
        scale: what is left of the study.
    """
    # the data sets that each partition divides
    divided = dict[str, list[Divided]]()
    for scenario in scenarios:
        label = scenario.dataset
        each = Divided(datasets[label], settings.datasets[label])
        divided.setdefault(scenario.partition, []).append(each)

    shrunk = {}
    for label, entry in written.items():
        members = partition_members(label, entry)
        running = [(name, member) for name, member in members if name in divided]
        for name, member in running:
            shrunk[name] = _shrink_partition(
                member,
                settings.partitions[name],
                divided[name],
                settings.study.clients_per_round,
                scale,
            )
        if not running:
            shrunk[label] = entry
    return shrunk


def _shrink_partition(
    entry: JsonDict, partition: Partition, divided: list[Divided], sampled: int, scale: Scale
) -> JsonDict:
    """Return the shrunk entry of a partition that is no grid.

    Args:
        entry: its entry as the study wrote it.
        partition: the partition with all of its keys.
        divided: the data sets that it divides.
        sampled: the clients of a round, unless its protocol has a number of its own.
        scale: what is left of the study.
    """
    # fewer clients
    shrunk = dict(entry)
    if "clients" in entry:
        shrunk["clients"] = _fewer_clients(partition, divided)
    if "clients_per_domain" in entry:
        shrunk["clients_per_domain"] = _fewer_clients_of_domain(partition.settings, divided)
    # of few images, one draw in two would leave a client without images
    if entry["scheme"] in ("dirichlet", "domain") and entry.get("alpha") is not None:
        shrunk["min_images"] = LEAST_IMAGES

    # rounds in which parts arrive
    rounds = scale.rounds
    if entry.get("arrivals"):
        arrivals = entry["arrivals"]
        at = list(range(2, 2 + len(arrivals["at"])))
        shrunk["arrivals"] = arrivals | {"at": at}
        rounds = at[-1]

    # the protocol
    protocol = entry.get("protocol", {})
    sampled = protocol.get("clients_per_round", sampled)
    trained = _count_training(shrunk, divided)
    shorter: JsonDict = {
        "rounds": rounds,
        "evaluate_every": 1,
        "clients_per_round": min(sampled, trained or sampled),
    }
    if "report" in protocol:
        shorter["report"] = limit_report(protocol["report"], scale)
    if "training" in protocol:
        shorter["training"] = limit_training(protocol["training"], scale)
    shrunk["protocol"] = shorter
    return shrunk


def _fewer_clients(partition: Partition, divided: list[Divided]) -> int:
    """Return the number of clients of a shrunk partition whose scheme states it."""
    keys = partition.settings
    clients = keys["clients"]
    if clients <= FEW_CLIENTS:
        return clients
    fewer = max(LEAST_CLIENTS, ceil(clients / 10))

    # every class must be some client's
    for each in divided:
        if "classes_per_client" in keys:
            fewer = max(fewer, ceil((each.classes or 0) / keys["classes_per_client"]))

    # one client or more is held out
    held_out = keys.get("held_out", 0)
    while held_out and round(fewer * held_out) < 1:
        fewer += 1

    # every class must dominate some client, and each as many as any other
    if partition.scheme == "imbalance":
        fewer = _clients_of_imbalance(fewer, partition, divided)
    return min(fewer, clients)


def _clients_of_imbalance(fewest: int, partition: Partition, divided: list[Divided]) -> int:
    """Return a number of clients, at least `fewest`, for the scheme `imbalance`.

    If there is none but the partition's own, or if the classes of a data set are unknown, all
    clients stay.
    """
    share = partition.settings["dominant_classes"]
    clients = partition.settings["clients"]
    counts = [each.base_classes(partition) for each in divided]
    for fewer in range(fewest, clients):
        if all(count is not None and is_even(fewer, share, count) for count in counts):
            return fewer
    return clients


def _fewer_clients_of_domain(keys: JsonDict, divided: list[Divided]) -> int:
    """Return the number of clients of each domain of a shrunk partition with these keys."""
    clients = keys["clients_per_domain"]
    fewer = max(2, ceil(clients / 10), keys.get("held_out_per_domain", 0) + 1)

    # every class of a domain must be some client's; a domain may have any number of the classes
    if keys.get("dominant_classes"):
        share = keys["dominant_classes"]
        for each in divided:
            for classes in range(1, (each.classes or 0) + 1):
                fewer = max(fewer, clients_for_dominance(share, classes))
    return min(clients, fewer)


def _count_training(entry: JsonDict, divided: list[Divided]) -> int | None:
    """Return how many clients of a shrunk partition train; None if its keys do not say.

    Of several datasets, the one with the fewest counts.
    """
    if "clients" in entry:
        return entry["clients"] - round(entry["clients"] * entry.get("held_out", 0))
    if entry["scheme"] != "domain":
        return None

    counts = []
    for each in divided:
        domains = count_domains(each.entry)
        clients = entry.get("clients_per_domain", 1)
        held_out = entry.get("held_out_per_domain", 0) * domains
        held_out += round(domains * clients * entry.get("held_out", 0))
        held_out += len(entry.get("held_out_domains", ())) * clients
        counts.append(domains * clients - held_out)
    return min(counts)
