"""What jobs compute and keep in memory, estimated before they run.

The estimates are meant to be too large rather than too small. They follow from

- the backbone's sizes (fedloom.study.backbone_sizes). A backward pass takes twice the operations of
  a forward pass;
- activations that wait for the backward pass (fedloom.common.memory), of all clients that train at
  once;
- the images of the dataset: those in its store once that is written, else as the config has them;
- the round: clients, epochs, evaluations, and rounds of a job;
- what method.toml declares of the method: weights of the backbone that its clients train, upload
  and keep, the epochs of `personalize` before every evaluation, and whether the server has a model
  (`cost`).

What is memory-mapped (stores, caches) is not counted: the system may drop it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from fedloom.common.errors import FedLoomError
from fedloom.common.memory import (
    CACHED_AT_ONCE,
    IMAGES_AT_ONCE,
    ClientStep,
    clients_at_once,
    images_at_once,
)
from fedloom.common.receipts import read_receipt
from fedloom.config.settings import Backbone, Dataset, Method, Partition
from fedloom.config.study import Study
from fedloom.hooks.manifest import Plugin
from fedloom.study import paths
from fedloom.study.backbone_sizes import FLOAT, sizes

UNKNOWN_IMAGES, UNKNOWN_CLASSES, UNKNOWN_CLIENTS = 60_000, 100, 10
READ_PER_MINUTE = 3000  # images that a source decodes and resizes
NAME_TOKENS = 8  # of a class's name in a prompt of a CLIP


@dataclass(frozen=True)
class Work:
    """What a job takes.

    Attributes:
        megabytes: of memory without a GPU, on top of the libraries.
        operations: of floating point, which a GPU does faster than a core.
        seconds: of one core for the rest: reading, decoding, arrays.
        host: megabytes of memory beside a GPU.
        device: megabytes of the GPU's memory for one client at a time. With more memory, more
            clients train at once (fedloom.common.memory).
    """

    megabytes: float
    operations: float = 0.0
    seconds: float = 0.0
    host: float = 0.0
    device: float = 0.0


def most(estimates: Sequence[Work]) -> Work:
    """Return the most that any of several jobs takes, of each kind."""
    return Work(*map(max, zip(*map(astuple, estimates), strict=True)))


def contents(dataset: Dataset) -> tuple[int, int]:
    """Return the number of images and of classes: of the store, or before it is there, a guess."""
    try:
        facts = read_receipt(paths.at(paths.STORE, dataset=dataset.label))
        return facts["images"], len(facts["classes"])
    except (FedLoomError, KeyError):
        of_images = dataset.settings.keys() & {"root", "parts"}  # a file each
    listed = dataset.listing["files"] if dataset.listing and of_images else 0
    images, classes, _ = dataset.expected
    return images or max(UNKNOWN_IMAGES, listed), classes or UNKNOWN_CLASSES


def halves(dataset: Dataset) -> tuple[float, float]:
    """Return the numbers of training and of test images.

    Where nothing tells them apart, all are to train on, and half of them to test on.
    """
    images, _ = contents(dataset)
    try:
        test = read_receipt(paths.at(paths.STORE, dataset=dataset.label))["test_images"]
    except (FedLoomError, KeyError):
        test = dataset.expected.test
    return (images, images / 2) if test is None else (images - test, test)


def of_dataset(dataset: Dataset) -> Work:
    """Estimate the making of a store, image by image."""
    return Work(500, seconds=60 * contents(dataset)[0] / READ_PER_MINUTE)


def of_cache(dataset: Dataset, backbone: Backbone) -> Work:
    """Estimate a pass of the frozen backbone over all images."""
    images, size = contents(dataset)[0], sizes(backbone)
    loaded, passing = 2 * size.weights, CACHED_AT_ONCE * size.passing
    operations = images * size.operations
    return Work(loaded + passing, operations, host=loaded, device=size.weights + passing)


def of_class_tokens(dataset: Dataset, backbone: Backbone) -> Work:
    """Estimate the caches of class tokens of all images, at every block."""
    images, size = contents(dataset)[0], sizes(backbone)
    tokens = images * size.depth * size.width * FLOAT
    return Work(2 * tokens, seconds=tokens)  # a second per megabyte


@dataclass(frozen=True)
class Workload:
    """What a run's estimate is made of.

    Attributes:
        plugin: the method's, which declares what it costs.
    """

    study: Study
    dataset: Dataset
    partition: Partition
    backbone: Backbone
    method: Method
    plugin: Plugin

    def clients_at_once(self) -> int:
        """Return the number of clients that train as one batch, on a core."""
        if not (self.study.stacked and self.plugin.stacked):
            return 1
        clients = self.study.clients_per_round
        if self.plugin.needs_whole_cohorts(dict(self.method.options)):
            return clients
        return min(clients, clients_at_once(self.step()))

    def step(self) -> ClientStep:
        """Return the sizes of a client's step of training."""
        size, encoded = sizes(self.backbone), self.plugin.forward_inputs
        prompts = contents(self.dataset)[1] * NAME_TOKENS * size.text_width * size.text_depth
        return ClientStep(
            state_bytes=1e6 * self.weights_of_a_client(),
            images=self.images_of_a_step() if "images" in encoded else 0,
            image_floats=size.image_floats,
            image_bytes=size.training_bytes,
            text_floats=prompts if "texts" in encoded else 0,
        )

    def images_of_a_step(self) -> int:
        """Return the number of a client's images in memory at once while it trains."""
        training: Mapping[str, Any] = self.method.training
        return min(training["batch_size"], training["micro_batch"] or training["batch_size"])

    def kept(self) -> float:
        """Return the megabytes that wait for the backward pass of the clients of a batch."""
        return self.clients_at_once() * self.step().kept / 1e6

    def weights_of_a_client(self) -> float:
        """Return the megabytes of the backbone's weights that a client trains."""
        trains = self.plugin.trains_weights(dict(self.method.options))
        return sizes(self.backbone).weights if trains else 0

    def copies(self) -> float:
        """Return the megabytes of all copies of the backbone's weights that clients train.

        As received and trained, a gradient and two moments for those that train at once; what each
        uploads; the server's old and new ones, and those in the checkpoint.
        """
        clients = self.study.clients_per_round
        number = 5 * self.clients_at_once() + clients + 3
        if self.plugin.cost.keeps_weights:
            number += 2 * max(clients, self.all_clients())
        return number * self.weights_of_a_client()

    def personal_epochs(self) -> float:
        """Return the number of epochs that every client trains for before an evaluation."""
        epochs = self.plugin.cost.personalize_epochs
        return self.method.options[epochs] if isinstance(epochs, str) else epochs

    def all_clients(self) -> int:
        """Return the number of clients; a guess for a partition by domains that nobody counted."""
        settings, domains = self.partition.settings, self.dataset.domains
        each = settings.get("clients_per_domain")
        return settings.get("clients") or (domains * each if domains and each else UNKNOWN_CLIENTS)

    def images_of_a_client(self) -> float:
        """Return the number of training images of a client."""
        classes, settings = contents(self.dataset)[1], self.partition.settings
        everyone = halves(self.dataset)[0] / self.all_clients()
        if self.partition.scheme == "disjoint":
            classes = -(-classes // self.all_clients())
        return min(everyone, settings["shots"] * classes) if settings.get("shots") else everyone


def _evaluation(run: Workload, share: float = 1) -> tuple[float, float]:
    """Return megabytes and operations of one evaluation of this share of the clients."""
    if "images" not in run.plugin.forward_inputs:
        return 0, 0  # features are cached
    tested, size = halves(run.dataset)[1], sizes(run.backbone)
    # where the server has no model, each of these clients' models answers all images
    served = run.plugin.has_server_model(dict(run.method.options))
    models = 1 if served else run.all_clients() * share
    passes = share + models if run.study.global_test else share
    megabytes = images_at_once(size.image_floats) * size.passing
    return megabytes, passes * tested * size.operations


def _transport_plans(run: Workload) -> float:
    """Return the numbers of the transport plans of a step: of images, classes, patches, prompts."""
    if "patches" not in run.method.needs:
        return 0
    images = run.images_of_a_step() * run.clients_at_once()
    return 8 * images * contents(run.dataset)[1] * sizes(run.backbone).tokens * 2


def _round(run: Workload) -> float:
    """Return the operations of a round's training."""
    size, training, encoded = sizes(run.backbone), run.method.training, run.plugin.forward_inputs
    clients, images = run.study.clients_per_round, run.images_of_a_client() * training["epochs"]
    if training["local_steps"] is not None:
        images = training["local_steps"] * training["batch_size"]
    operations = 0.0
    if "images" in encoded:
        operations += 3 * clients * images * size.operations
    elif training["augment"]:
        operations += 2 * clients * images * size.operations
    if "texts" in encoded:
        steps = clients * -(-images // run.images_of_a_step())
        tokens = 2 * contents(run.dataset)[1] * NAME_TOKENS  # a global and a local context
        of_step = 3 * size.token_operations * tokens
        of_step += 100 * _transport_plans(run) / run.clients_at_once()
        operations += steps * of_step
    return operations


def of_training(run: Workload, rounds: int, evaluations: int, sampled: int) -> Work:
    """Estimate this number of rounds and evaluations.

    Args:
        sampled: those of the evaluations that are of `study.evaluate_clients` clients.
    """
    size = sizes(run.backbone)
    few = min(1, (run.study.evaluate_clients or run.all_clients()) / run.all_clients())
    passing, _ = _evaluation(run)
    operations = rounds * _round(run)
    for share, number in ((1, evaluations - sampled), (few, sampled)):
        _, once = _evaluation(run, share)
        if run.personal_epochs():
            everyone = halves(run.dataset)[0] * run.personal_epochs() * share
            once += 3 * everyone * size.operations + once
        operations += number * once
    training = run.kept() + _transport_plans(run) * FLOAT
    one = max(training / run.clients_at_once(), IMAGES_AT_ONCE * size.passing)
    return Work(
        2 * size.weights + max(training, passing) + run.copies(),
        operations,
        host=2 * size.weights + run.copies(),
        device=size.weights + one + 5 * run.weights_of_a_client(),
    )


def of_artefact(run: Workload) -> Work:
    """Estimate a pass over all clients' test images."""
    megabytes, operations = _evaluation(run)
    size, host = sizes(run.backbone), 1000 + 2 * sizes(run.backbone).weights
    device = size.weights + IMAGES_AT_ONCE * size.passing
    return Work(host + megabytes, operations, host=host, device=device)
