"""What jobs compute and keep in memory, estimated before they run.

The estimates are meant to be too large rather than too small. A ResNet counts as a ViT-B/16, and so
does a backbone that is not in its library's configuration (fedloom.plan.backbone_sizes). They are
made of

- the backbone: width d, depth and number of tokens T. A forward pass of an image takes
  `depth (24 d² T + 4 d T²)` operations, as matrices of d x 12d and attention do, and a backward
  pass twice as many again;
- activations that wait for the backward pass: SAVED numbers of 4 bytes per token, feature and
  block, for every image in flight: clients trained at once, times images of a batch or micro-batch;
- the images of the dataset: those in its store once that is written, else as the config has them;
- the round: clients, epochs, evaluations, and rounds of a job;
- what method.toml declares of the method: weights of the backbone that its clients train, upload
  and keep, the epochs of `personalize` before every evaluation, and whether the server has a model
  (`cost`).

What is memory-mapped (stores, caches) is not counted: the system may drop it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.common.activations import SAVED
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt
from fedloom.methods.manifest import Plugin
from fedloom.plan import data_plugins, paths
from fedloom.plan.backbone_sizes import FLOAT, Tower, shape
from fedloom.plan.settings import Backbone, Dataset, Method, Partition, Study

AT_ONCE = 268  # MB of clients' states that train at once (fedloom.federated.groups)
UNKNOWN_IMAGES, UNKNOWN_CLASSES, UNKNOWN_CLIENTS = 60_000, 100, 10
IMAGES_AT_ONCE = 256  # in a pass without training
READ_PER_MINUTE = 3000  # images that a source decodes and resizes
NAME_TOKENS = 8  # of a class's name in a prompt of a CLIP


@dataclass(frozen=True)
class Work:
    """What a job takes.

    Attributes:
        megabytes: of memory, beside what the libraries take.
        operations: of floating point, which a GPU does faster than a core.
        seconds: of one core, for all else: reading, decoding, arrays.
    """

    megabytes: float
    operations: float = 0.0
    seconds: float = 0.0


def contents(dataset: Dataset) -> tuple[int, int]:
    """Return the number of images and of classes: of the store, or before it is there, a guess."""
    try:
        facts = read_receipt(paths.at(paths.STORE, dataset=dataset.label))
        return facts["images"], len(facts["classes"])
    except (FedLoomError, KeyError):
        settings = dataset.settings
    entry = data_plugins.entries("datasets")[dataset.source]
    if "x-images" in entry:
        return _product(entry["x-images"], settings), _product(entry["x-classes"], settings)
    of_images = "root" in settings or "parts" in settings  # a file each
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


def _product(factors: list[int | str], settings: dict[str, Any]) -> int:
    """Multiply numbers and values of keys: of a list its length, of a key that is not set 1."""
    values = [settings.get(f, 1) if isinstance(f, str) else f for f in factors]
    return math.prod(len(value) if isinstance(value, list) else value for value in values)


def of_dataset(dataset: Dataset) -> Work:
    """Estimate the making of a store, image by image."""
    return Work(500, seconds=60 * contents(dataset)[0] / READ_PER_MINUTE)


def of_cache(dataset: Dataset, backbone: Backbone) -> Work:
    """Estimate a pass of the frozen backbone over all images."""
    images, size = contents(dataset)[0], shape(backbone)
    return Work(2 * size.weights + IMAGES_AT_ONCE * size.passing, images * size.operations)


def of_class_tokens(dataset: Dataset, backbone: Backbone) -> Work:
    """Estimate what is made of the cached class tokens of all images, at every block."""
    images, size = contents(dataset)[0], shape(backbone)
    tokens = images * size.image.depth * size.image.width * FLOAT
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

    def at_once(self) -> int:
        """Return the number of images in flight while training."""
        training: Mapping[str, Any] = self.method.training
        size = training["batch_size"]
        size = min(size, training["micro_batch"] or size)
        return size * self.clients_at_once()

    def clients_at_once(self) -> int:
        """Return the number of clients that train as one batch."""
        if not (self.study.stacked and self.plugin.stacked):
            return 1
        fits = AT_ONCE // max(1, self.weights_of_a_client())
        return max(1, min(self.study.clients_per_round, int(fits)))

    def weights_of_a_client(self) -> float:
        """Return the megabytes of the backbone's weights that a client trains."""
        trains = self.plugin.trains_weights(dict(self.method.options))
        return shape(self.backbone).weights if trains else 0

    def copies(self) -> float:
        """Return the megabytes of all copies of the backbone's weights that clients train.

        As received and trained, a gradient and two moments for those that train at once; what each
        uploads; the server's old and new ones, and those in the checkpoint.
        """
        clients = self.study.clients_per_round
        number = 5 * self.clients_at_once() + clients + 3
        if self.plugin.cost.get("keeps_weights"):
            number += 2 * max(clients, self.all_clients())
        return number * self.weights_of_a_client()

    def personal_epochs(self) -> float:
        """Return the number of epochs that every client trains for before an evaluation."""
        epochs = self.plugin.cost.get("personalize_epochs", 0)
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
    size = shape(run.backbone)
    # where the server has no model, each of these clients' models answers all images
    models = (
        1 if run.plugin.has_server_model(dict(run.method.options)) else run.all_clients() * share
    )
    passes = share + models if run.study.global_test else share
    cheap = run.backbone.family == "clip" and bool(run.method.needs)  # features are cached
    if cheap:
        return 0, 0
    return IMAGES_AT_ONCE * size.passing, passes * halves(run.dataset)[1] * size.operations


def _text(run: Workload) -> tuple[float, float]:
    """Return megabytes and operations of a step of a CLIP's prompts: text, and transport."""
    classes, size = contents(run.dataset)[1], shape(run.backbone)
    tokens = 2 * classes * NAME_TOKENS * run.clients_at_once()  # a global and a local context
    megabytes = SAVED * tokens * size.text.width * size.text.depth * FLOAT
    word = Tower(size.text.width, size.text.depth, 1, size.text.mlp_ratio)
    operations = 3 * word.operations * tokens
    if "patches" in run.method.needs:  # plans of every image, class, patch and prompt, eight times
        plans = run.at_once() * classes * size.image.tokens * 2
        megabytes += 8 * plans * FLOAT
        operations += 100 * 8 * plans
    return megabytes, operations


def of_training(run: Workload, rounds: int, evaluations: int, sampled: int) -> Work:
    """Estimate so many rounds and evaluations.

    Args:
        sampled: those of the evaluations that are of `study.evaluate_clients` clients.
    """
    size, training = shape(run.backbone), run.method.training
    clients, steps = run.study.clients_per_round, training["local_steps"]
    images = run.images_of_a_client() * training["epochs"]
    if steps is not None:
        images = steps * training["batch_size"]
    if run.backbone.family == "clip":
        step, of_step = _text(run)
        steps = -(-images // min(training["batch_size"], training["micro_batch"] or 10**9))
        of_round = steps * of_step * clients / run.clients_at_once()
        if not run.method.needs:  # it trains inside the image tower
            step += run.at_once() * size.training
            of_round += 3 * clients * images * size.operations
        elif training["augment"]:
            of_round += 2 * clients * images * size.operations
    else:
        step = run.at_once() * size.training
        of_round = 3 * clients * images * size.operations
    few = min(1, (run.study.evaluate_clients or run.all_clients()) / run.all_clients())
    whole, _ = _evaluation(run)
    operations = rounds * of_round
    for share, number in ((1, evaluations - sampled), (few, sampled)):
        _, once = _evaluation(run, share)
        if run.personal_epochs():
            everyone = halves(run.dataset)[0] * run.personal_epochs() * share
            once += 3 * everyone * size.operations + once
        operations += number * once
    return Work(2 * size.weights + max(step, whole) + run.copies(), operations)


def of_artefact(run: Workload) -> Work:
    """Estimate a pass over all clients' test images."""
    megabytes, operations = _evaluation(run)
    return Work(1000 + 2 * shape(run.backbone).weights + megabytes, operations)
