"""Divide a dataset over clients: return a table with the client of every image.

A scheme (`fedloom.data.schemes`) divides the training images. The test images of a class then go to
the clients in proportion to their training images of that class. If the scheme divides each domain
separately, this holds within each domain. Test images without a domain go to all clients.
"""

import importlib
import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.ids import UNASSIGNED, domain_names
from fedloom.common.key_path import KeyPath
from fedloom.common.run_tables import PARTITION_SCHEMA
from fedloom.common.seeds import numpy_generator
from fedloom.config.kinds import KINDS_FROM_PLUGINS
from fedloom.config.partitions import held_out_count
from fedloom.data import plugins
from fedloom.data.arrivals import draw_arrivals
from fedloom.data.client_draws import few_shots, validation_split
from fedloom.data.schemes.dealing import ImageGroup

log = logging.getLogger(__name__)


def _groups(domains: np.ndarray, scheme: str, settings: dict) -> list[ImageGroup]:
    """Return the groups of images that a scheme divides separately, for example domains.

    Most schemes have a single group, of all images. `domains` [N] is the domain of every image.
    """
    own = KINDS_FROM_PLUGINS["scheme"].own
    if scheme in own:
        module = importlib.import_module(own[scheme].__module__)
        if hasattr(module, "groups"):
            return module.groups(domains, settings)
        divide_group = module.divide
    else:
        divide_group = partial(plugins.divide, scheme)
    return [ImageGroup("", np.ones(len(domains), bool), divide_group, settings)]


def _held_out(owner: np.ndarray, domains: np.ndarray, spec: dict, seed: int) -> np.ndarray:
    """Return the ids of the clients that never train. The keys of `spec` choose one of three ways:

    1. `held_out_domains`: all clients that hold images of these domains.
    2. `held_out_per_domain`: this number of clients of each domain, drawn at random.
    3. `held_out`: this share of all clients, drawn at random.

    `owner` [N] and `domains` [N] are the client and the domain of every image.
    """
    clients = owner.max() + 1

    # all clients of some domains
    names = spec.get("held_out_domains")
    if names is not None:
        for name in names:
            check_known(name, domain_names(domains.tolist()), "held_out_domains: no domain")
        held = np.unique(owner[np.isin(domains, names)])
        if len(held) == clients:
            raise FedLoomError("held_out_domains: must leave a domain to train on; remove one")
        return held

    # some clients of each domain
    rng = numpy_generator(seed, "held out")
    per_domain = spec.get("held_out_per_domain", 0)
    if per_domain:
        size = spec["clients_per_domain"]
        drawn = [start + rng.permutation(size)[:per_domain] for start in range(0, clients, size)]
        return np.concatenate(drawn)

    # a share of all clients
    return rng.permutation(clients)[: held_out_count(clients, spec, KeyPath("partition"))]


def _test_owners(
    labels: np.ndarray,
    train: np.ndarray,
    owner: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    where: str,
    classes: Sequence[str],
) -> np.ndarray:
    """Return the client [M] of every test image, in proportion to the training images of its class.

    A client that rounding favours in one class gets less of the next class, so that its number of
    test images is in proportion to its training images as well.

    Args:
        labels: labels of the test images, [M].
        train: labels of the training images, [N].
        owner: client of every training image, [N].
        clients: number of clients.
        rng: breaks ties.
        where: the group of clients, which ends an error's sentence, such as " of domain 'ink'".
        classes: names of the classes, for errors.
    """
    _check_trained(labels, train, where, classes)
    result = np.empty(len(labels), int)

    # how many images each client is still owed from earlier classes; tiny numbers break ties
    owed = rng.random(clients) * 1e-6
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        shares = np.bincount(owner[train == label], minlength=clients)

        # every client gets its share rounded down; the clients that are owed most get one more
        exact = len(rows) * shares / shares.sum()
        counts = np.floor(exact).astype(int)
        # a client whose share is a whole number, such as 0 without the class, gets no more
        due = np.where(exact > counts, exact - counts + owed, -np.inf)
        rest = len(rows) - counts.sum()
        counts[np.argsort(-due, kind="stable")[:rest]] += 1
        owed += exact - counts

        result[rows] = rng.permutation(np.repeat(np.arange(clients), counts))
    return result


def _check_trained(
    labels: np.ndarray, train: np.ndarray, where: str, classes: Sequence[str]
) -> None:
    """Raise a FedLoomError if a test label [M] is not among the training labels `train` [N]."""
    untrained = np.setdiff1d(labels, train)
    if not len(untrained):
        return

    label = untrained[0]
    name = label
    if classes:
        name = f"'{classes[label]}'"
    if not where:
        raise FedLoomError(
            f"class {name} has test images but no training image; add training images, or "
            "leave the class out by the dataset's keep_classes"
        )
    raise FedLoomError(
        f"class {name} has test images but no training image{where}; add training "
        "images, or use a scheme that does not keep domains apart"
    )


def divide_dataset(
    labels: np.ndarray,
    test: np.ndarray,
    domains: np.ndarray,
    spec: dict,
    seed: int,
    classes: Sequence[str] = (),
) -> pa.Table:
    """Divide a dataset over clients; return a row per image with the columns `PARTITION_SCHEMA`.

    If the scheme divides each domain separately, the clients of a domain have consecutive ids, and
    domains follow each other in alphabetical order. The column `participating` is False for the
    images of clients that are held out of training.

    Some keys of `spec` leave images out, whose client is then UNASSIGNED:

    - `shots`: the training images that are not drawn;
    - `validation`: the dataset's test images; some training images become test images instead;
    - `novel_classes`: all images of these classes.

    With the key `arrivals`, the table also has the columns `arrives` and `leaves`: clients train on
    an image from the round `arrives` to the round before `leaves`.

    Args:
        labels, test, domains: class, test split and domain of every image, [N].
        spec: an entry of the config's `partitions`, in which `novel_classes` are numbers.
        seed: seed of the run, which is used if the entry has no `seed`.
        classes: the names of the classes, for errors; default: their numbers.
    """
    divide_images = _divide
    if "novel_classes" in spec:
        divide_images = _divide_base_classes
    table = divide_images(labels, test, domains, spec, seed, classes)
    if "arrivals" in spec:
        arrives, leaves = draw_arrivals(table, spec, seed)
        table = table.append_column("arrives", pa.array(arrives, pa.int32()))
        table = table.append_column("leaves", pa.array(leaves, pa.int32()))
    return table


def _divide_base_classes(
    labels: np.ndarray,
    test: np.ndarray,
    domains: np.ndarray,
    spec: dict,
    seed: int,
    classes: Sequence[str],
) -> pa.Table:
    """Divide the images of all classes except `novel_classes`; see `divide_dataset`."""
    # the base classes, numbered from 0 for the scheme
    seen = ~np.isin(labels, spec["novel_classes"])
    base, numbers = np.unique(labels[seen], return_inverse=True)
    names = []
    if classes:
        names = [str(classes[int(label)]) for label in base]
    table = _divide(numbers, test[seen], domains[seen], spec, seed, names)

    # the images of novel classes belong to no client
    owner = np.full(len(labels), UNASSIGNED)
    owner[seen] = table["client_id"]
    held = test.copy()
    held[seen] = table["test"]
    training = np.zeros_like(test)
    training[seen] = table["participating"]

    # perhaps only held-out clients hold images of a base class
    untrained = np.setdiff1d(labels[seen], labels[training & ~held])
    if len(untrained):
        log.warning(
            "no client trains on base classes %s, which held-out clients alone hold (seed %d)",
            untrained.tolist(),
            seed,
        )
    return _partition_table(owner, labels, held, training, domains)


def _divide(
    labels: np.ndarray,
    test: np.ndarray,
    domains: np.ndarray,
    spec: dict,
    seed: int,
    classes: Sequence[str],
) -> pa.Table:
    """Divide all images over clients, whatever `novel_classes` says; see `divide_dataset`."""
    seed = spec.get("seed", seed)
    rng = numpy_generator(seed, "partition")

    # the client of every image
    owner, group_of_client = _divide_groups(labels, test, domains, spec, rng, classes)
    clients = len(group_of_client)
    owner = _share_images_without_domain(owner, labels, test, clients, rng, classes)
    _check_none_is_empty(owner, test, group_of_client, seed)

    # the images of clients that train
    training = ~np.isin(owner, _held_out(owner, domains, spec, seed))

    # training images beyond the shots belong to no client
    if "shots" in spec:
        rows = np.flatnonzero(~test)
        dropped = rows[~few_shots(labels[rows], owner[rows], spec["shots"], seed)]
        owner[dropped] = UNASSIGNED
        training[dropped] = False

    # images held back from training take the place of the test images
    if "validation" in spec:
        owner = np.where(test, UNASSIGNED, owner)
        training = training & ~test
        test = validation_split(labels, owner, spec["validation"], seed)

    return _partition_table(owner, labels, test, training, domains)


def _divide_groups(
    labels: np.ndarray,
    test: np.ndarray,
    domains: np.ndarray,
    spec: dict,
    rng: np.random.Generator,
    classes: Sequence[str],
) -> tuple[np.ndarray, list[str]]:
    """Divide each group's training images by its scheme, and its test images in proportion.

    Returns:
        The client of every image [N], UNASSIGNED for an image of no group; and the name of the
        group of each of the K clients, for errors.
    """
    owner = np.full(len(labels), UNASSIGNED)
    group_of_client: list[str] = []
    for name, in_group, divide_group, group_spec in _groups(domains, spec["scheme"], spec):
        train = in_group & ~test
        held = in_group & test
        group_clients = group_spec["clients"]
        if train.sum() < group_clients:
            raise FedLoomError(
                f"{group_clients} clients{name} must share {train.sum()} training images; use "
                "fewer clients, or add images"
            )

        # the clients of a group follow those of the groups before it
        first_client = len(group_of_client)
        owner_in_group = divide_group(labels[train], group_spec, rng)
        owner[train] = first_client + owner_in_group
        owner[held] = first_client + _test_owners(
            labels[held], labels[train], owner_in_group, group_clients, rng, name, classes
        )
        group_of_client += [name] * group_clients
    return owner, group_of_client


def _share_images_without_domain(
    owner: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    classes: Sequence[str],
) -> np.ndarray:
    """Return `owner` [N] with clients for the test images of no domain, which go to all clients.

    Raises a FedLoomError if a training image is of no domain.
    """
    shared = owner == UNASSIGNED
    if (shared & ~test).any():
        raise FedLoomError(f"{(shared & ~test).sum()} training images are of no domain; name it")
    if not shared.any():
        return owner
    result = owner.copy()
    result[shared] = _test_owners(
        labels[shared], labels[~test], owner[~test], clients, rng, "", classes
    )
    return result


def _check_none_is_empty(
    owner: np.ndarray, test: np.ndarray, group_of_client: list[str], seed: int
) -> None:
    """Raise a FedLoomError if a client has no training images or no test images.

    Args:
        owner: client of every image, [N].
        test: True for test images, bool [N].
        group_of_client: name of the group of each of the K clients, for the error.
        seed: seed of the partition, for the error.
    """
    clients = len(group_of_client)
    for split_name, split in (("training", ~test), ("test", test)):
        empty = np.flatnonzero(np.bincount(owner[split], minlength=clients) == 0)
        if len(empty):
            raise FedLoomError(
                f"client {empty[0]}{group_of_client[empty[0]]} has no {split_name} images "
                f"(seed {seed}, {len(empty)} such clients of {clients}); use fewer clients, a "
                "larger alpha or more classes per client"
            )


def _partition_table(
    owner: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    training: np.ndarray,
    domains: np.ndarray,
) -> pa.Table:
    """Return the columns [N], one value per image, as a table."""
    columns = {
        "index": np.arange(len(owner)),
        "client_id": owner,
        "label": labels,
        "test": test,
        "participating": training,
        "domain": domains,
    }
    return pa.table(columns, schema=PARTITION_SCHEMA)
