"""Who holds what: pure functions from labels to clients, and the Parquet file between.

A scheme divides the training images. The test images follow: those of a class go to the clients
in proportion to the training images of that class that they hold, so that every client is tested
on the label distribution that it trains on, and never on a class it has not seen. In a partition
by domains this holds within each domain: its clients divide its test images.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedloom.errors import FedLoomError
from fedloom.files import replacing
from fedloom.heldout import held_out_count
from fedloom.rng import numpy_generator

COLUMNS = pa.schema(
    [
        ("index", pa.int64()),
        ("client_id", pa.int32()),
        ("label", pa.int32()),
        ("test", pa.bool_()),
        ("participating", pa.bool_()),
        ("domain", pa.string()),
    ]
)


def largest_remainder(total: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers [K] that sum to `total` and lie within one of total x shares / sum(shares)."""
    exact = total * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    rest = np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return counts


def _deal(rows: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owner of each of `rows`, in proportion to `shares` [K], which rows being random."""
    owners = np.repeat(np.arange(len(shares)), largest_remainder(len(rows), shares))
    return rng.permutation(owners)


def pathological(labels: np.ndarray, spec: dict, rng: np.random.Generator) -> np.ndarray:
    """Each client holds `classes_per_client` classes, with shares from U(0.4, 0.6) (SGPT, E.1).

    Classes are dealt evenly: the numbers of clients that hold two classes differ by at most one.

    Args:
        labels: [N] of the training images.

    Returns:
        [N] the client of every image.

    Raises:
        FedLoomError: more classes per client than there are, or a class that no client would get.
    """
    clients, each = spec["clients"], spec["classes_per_client"]
    classes = np.unique(labels)
    if each > len(classes):
        raise FedLoomError(
            f"classes_per_client is {each}, but the dataset has {len(classes)} classes"
        )
    if clients * each < len(classes):
        raise FedLoomError(
            f"{clients} clients x {each} classes leave some of the {len(classes)} classes "
            "without a client; raise clients or classes_per_client"
        )
    held = np.zeros((clients, len(classes)), bool)
    for client in range(clients):
        rarest = np.lexsort((rng.random(len(classes)), held.sum(0)))
        held[client, rarest[:each]] = True
    shares = np.where(held, rng.uniform(0.4, 0.6, held.shape), 0.0)
    owner = np.empty(len(labels), int)
    for column, label in enumerate(classes):
        rows = np.flatnonzero(labels == label)
        owner[rows] = _deal(rows, shares[:, column], rng)
    return owner


def dirichlet(labels: np.ndarray, spec: dict, rng: np.random.Generator) -> np.ndarray:
    """Label proportions from Dir(alpha), by one of the two meanings found in the papers.

    kind `client` (PEP-FedPT after Acar et al.; PFPT's text): every client draws proportions over
    classes; clients are of equal size and draw their images one by one, in random turns, a class
    that is used up dropping out. kind `class` (pFedPG; released code of FedPHA and PFPT): every
    class draws proportions over clients, whose sizes therefore differ.

    Args:
        labels: [N] of the training images.

    Returns:
        [N] the client of every image.
    """
    clients, alpha = spec["clients"], spec["alpha"]
    classes, column = np.unique(labels, return_inverse=True)
    owner = np.empty(len(labels), int)
    if spec["kind"] == "class":
        for c in range(len(classes)):
            rows = np.flatnonzero(column == c)
            owner[rows] = _deal(rows, rng.dirichlet(np.full(clients, alpha)), rng)
        return owner
    wanted = rng.dirichlet(np.full(len(classes), alpha), clients)  # [K, C]
    stacks = [list(rng.permutation(np.flatnonzero(column == c))) for c in range(len(classes))]
    left = np.array([len(stack) for stack in stacks])
    for client in rng.permutation(np.arange(len(labels)) % clients):
        odds = wanted[client] * (left > 0)
        if not odds.sum() > 0:  # all that it wants is used up: any image will do
            odds = left
        c = rng.choice(len(classes), p=odds / odds.sum())
        owner[stacks[c].pop()] = client
        left[c] -= 1
    return owner


def iid(labels: np.ndarray, spec: dict, rng: np.random.Generator) -> np.ndarray:
    """Images dealt at random to clients whose sizes differ by at most one.

    Args:
        labels: [N] of the training images.

    Returns:
        [N] the client of every image.
    """
    return rng.permutation(np.arange(len(labels)) % spec["clients"])


SCHEMES = {"pathological": pathological, "dirichlet": dirichlet, "iid": iid}


def _groups(domains: np.ndarray, spec: dict) -> list[tuple[str, np.ndarray, dict]]:
    """What is divided by itself: name, bool [N] of its images, and the scheme that divides it.

    For the scheme `domain`, each domain; else the whole dataset.
    """
    if spec["scheme"] != "domain":
        return [("", np.ones(len(domains), bool), spec)]
    names = np.unique(domains.astype(str))
    if len(names) == 1:
        raise FedLoomError(
            f"all images of the dataset are of one domain ('{names[0]}'); use another scheme"
        )
    inner = spec | {
        "scheme": "dirichlet" if "alpha" in spec else "iid",
        "clients": spec["clients_per_domain"],
    }
    return [(f" of domain '{name}'", domains == name, inner) for name in names]


def _held_out(clients: int, spec: dict, seed: int) -> np.ndarray:
    """Ids of the clients that never train: of all, or so many of each domain."""
    rng = numpy_generator(seed, "held out")
    count = spec.get("held_out_per_domain", 0)
    if not count:
        return rng.permutation(clients)[: held_out_count(clients, spec)]
    each = spec["clients_per_domain"]
    return np.concatenate(
        [start + rng.permutation(each)[:count] for start in range(0, clients, each)]
    )


def _test_owners(
    labels: np.ndarray,
    train: np.ndarray,
    owner: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    where: str,
) -> np.ndarray:
    """Owner [M] of every test image: per class in proportion to the training images held.

    What rounding gives a client too much or too little of one class is made good with the next,
    so that its number of test images is in proportion to its training images as well.
    """
    result = np.empty(len(labels), int)
    owed = rng.random(clients) * 1e-6  # ties are broken at random
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        shares = np.bincount(owner[train == label], minlength=clients)
        if shares.sum() == 0:
            raise FedLoomError(f"class {label} has test images but no training image{where}")
        exact = len(rows) * shares / shares.sum()
        counts = np.floor(exact).astype(int)
        due = np.where(exact > counts, exact - counts + owed, -np.inf)  # of the class's holders
        counts[np.argsort(-due, kind="stable")[: len(rows) - counts.sum()]] += 1
        owed += exact - counts
        result[rows] = rng.permutation(np.repeat(np.arange(clients), counts))
    return result


def partition(
    labels: np.ndarray, test: np.ndarray, domains: np.ndarray, spec: dict, seed: int
) -> pa.Table:
    """Divide a dataset over clients.

    Args:
        labels, test, domains: [N] class, test split and domain of every image.
        spec: an entry of the config's `partitions`. The clients of a domain follow each other,
            domains in alphabetical order.

    Returns:
        One row per image, in the order of `COLUMNS`, sorted by index. `participating` is false
        for the clients held out of training.

    Raises:
        FedLoomError: the scheme does not fit the dataset, or a client is left with no data.
    """
    rng = numpy_generator(seed, "partition")
    owner = np.empty(len(labels), int)
    clients = 0
    for name, here, inner in _groups(domains, spec):
        train, held = here & ~test, here & test
        each = inner["clients"]
        own = SCHEMES[inner["scheme"]](labels[train], inner, rng)
        owner[train] = clients + own
        owner[held] = clients + _test_owners(labels[held], labels[train], own, each, rng, name)
        for kind, split in (("training", train), ("test", held)):
            empty = np.flatnonzero(np.bincount(owner[split] - clients, minlength=each) == 0)
            if len(empty):
                raise FedLoomError(
                    f"client {clients + empty[0]}{name} has no {kind} images (seed {seed}, "
                    f"{len(empty)} such clients); use fewer clients, a larger alpha or more "
                    "classes per client"
                )
        clients += each
    held_out = _held_out(clients, spec, seed)
    columns = [np.arange(len(labels)), owner, labels, test, ~np.isin(owner, held_out), domains]
    arrays = [pa.array(c, t) for c, t in zip(columns, COLUMNS.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def check_labels(table: pa.Table) -> None:
    """A client is tested only on classes it holds training images of.

    Raises:
        FedLoomError: names the client and the class.
    """
    client, label, test = (table[c].to_numpy() for c in ("client_id", "label", "test"))
    pairs = client.astype(np.int64) * (label.max() + 1) + label
    stray = np.setdiff1d(pairs[test], pairs[~test])
    if len(stray):
        who, what = divmod(int(stray[0]), int(label.max()) + 1)
        raise FedLoomError(
            f"client {who} is tested on class {what} but has no training image of it"
        )


def write(path: Path, table: pa.Table) -> None:
    check_labels(table)
    with replacing(path) as temporary:
        pq.write_table(table, temporary)
