"""Shrink partitions: a tenth of the clients, but enough for the scheme."""

from collections.abc import Sequence
from math import ceil

from fedloom.common.json_types import JsonDict
from fedloom.config.grids import partition_members
from fedloom.config.settings import Scenario
from fedloom.config.shrink.made_up_data import count_classes, count_domains
from fedloom.config.shrink.scale import Scale, limit_report, limit_training

# partitions of at most this number of clients keep all of them; of others, a tenth stays
FEW_CLIENTS = 20
LEAST_CLIENTS = 10
# the most images that a scheme may demand of every client
LEAST_IMAGES = 2


def shrink_partitions(
    written: JsonDict, scenarios: Sequence[Scenario], datasets: JsonDict, sampled: int, scale: Scale
) -> JsonDict:
    """Return the config's `partitions`, of which those that a study runs are shrunk.

    The members of a grid stand in its place, under their own labels. A partition that the study
    does not run stays as it is, since tables may name it.

    Args:
        written: the config's `partitions`.
        scenarios: what is left of the study's scenarios.
        datasets: the shrunk data sets, by label.
        sampled: the clients of a round, unless a partition's protocol has a number of its own.
        scale: what is left of the study.
    """
    # the data sets that each partition divides
    divided = dict[str, list[JsonDict]]()
    for scenario in scenarios:
        divided.setdefault(scenario.partition, []).append(datasets[scenario.dataset])

    shrunk = {}
    for label, entry in written.items():
        members = partition_members(label, entry)
        running = [(name, member) for name, member in members if name in divided]
        for name, member in running:
            shrunk[name] = _shrink_partition(member, divided[name], sampled, scale)
        if not running:
            shrunk[label] = entry
    return shrunk


def _shrink_partition(
    entry: JsonDict, divided: list[JsonDict], sampled: int, scale: Scale
) -> JsonDict:
    """Return the shrunk entry of a partition that is no grid, and that divides these data sets."""
    # fewer clients
    shrunk = dict(entry)
    if "clients" in entry:
        shrunk["clients"] = _fewer_clients(entry, divided)
    if "clients_per_domain" in entry:
        shrunk["clients_per_domain"] = _fewer_clients_of_domain(entry, divided)
    if entry.get("min_images"):
        shrunk["min_images"] = min(entry["min_images"], LEAST_IMAGES)

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


def _fewer_clients(entry: JsonDict, divided: list[JsonDict]) -> int:
    """Return the number of clients of a shrunk partition whose scheme states it."""
    clients = entry["clients"]
    if clients <= FEW_CLIENTS:
        return clients
    fewer = max(LEAST_CLIENTS, ceil(clients / 10))

    # every class must be some client's
    for dataset in divided:
        classes = count_classes(dataset) or 0
        if "classes_per_client" in entry:
            fewer = max(fewer, ceil(classes / entry["classes_per_client"]))
        if "dominant_classes" in entry:
            fewer = max(fewer, _clients_for_dominance(entry["dominant_classes"], classes))

    # one client or more is held out
    held_out = entry.get("held_out", 0)
    while held_out and round(fewer * held_out) < 1:
        fewer += 1
    return min(fewer, clients)


def _fewer_clients_of_domain(entry: JsonDict, divided: list[JsonDict]) -> int:
    """Return the number of clients of each domain of a shrunk partition."""
    clients = entry["clients_per_domain"]
    fewer = max(2, ceil(clients / 10), entry.get("held_out_per_domain", 0) + 1)

    # every class of a domain must be some client's; a domain may have any number of the classes
    if entry.get("dominant_classes"):
        share = entry["dominant_classes"]
        for dataset in divided:
            for classes in range(1, (count_classes(dataset) or 0) + 1):
                fewer = max(fewer, _clients_for_dominance(share, classes))
    return min(clients, fewer)


def _clients_for_dominance(share: float, classes: int) -> int:
    """Return how many clients it takes that each class is dominant in one or more of them.

    `share` of the classes, rounded, are dominant in each client, but at least one
    (fedloom/data/schemes/imbalance.py).
    """
    dominant = max(1, round(share * classes))
    return ceil(classes / dominant)


def _count_training(entry: JsonDict, divided: list[JsonDict]) -> int | None:
    """Return how many clients of a shrunk partition train; None if its keys do not say.

    Of several datasets, the one with the fewest counts.
    """
    if "clients" in entry:
        return entry["clients"] - round(entry["clients"] * entry.get("held_out", 0))
    if entry["scheme"] != "domain":
        return None

    counts = []
    for dataset in divided:
        domains = count_domains(dataset)
        clients = entry.get("clients_per_domain", 1)
        held_out = entry.get("held_out_per_domain", 0) * domains
        held_out += round(domains * clients * entry.get("held_out", 0))
        held_out += len(entry.get("held_out_domains", ())) * clients
        counts.append(domains * clients - held_out)
    return min(counts)
