"""What jobs compute, keep in memory and request from a cluster, estimated before they run.

The estimates are meant to be too large rather than too small. They follow from the backbone's sizes
(fedloom.study.backbone_sizes), the activations that wait for the backward pass of all clients that
train at once (fedloom.common.memory), the images of the dataset, the round, and the `cost` in
method.toml. Memory-mapped files (stores, caches) are not counted: the system may drop them.

Time limits are MARGIN times the estimate. On a GPU, they are far too long: a profile's
`set-resources` may shorten them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fedloom.common.errors import FedLoomError
from fedloom.common.memory import (
    CACHED_AT_ONCE,
    IMAGES_AT_ONCE,
    ClientStep,
    clients_at_once,
    encoded,
    gpu_request,
    images_at_once,
)
from fedloom.common.receipts import read_receipt
from fedloom.config.settings import Backbone, Dataset, Method, Partition
from fedloom.config.study import Study
from fedloom.hooks.manifest import Plugin
from fedloom.study import paths
from fedloom.study.backbone_sizes import FLOAT, Sizes, sizes

UNKNOWN_IMAGES, UNKNOWN_CLASSES, UNKNOWN_CLIENTS = 60_000, 100, 10
READ_PER_MINUTE = 3000  # images that a source decodes and resizes
NAME_TOKENS = 8  # of a class's name in a prompt of a CLIP
# operations of a core per second: features of 50,000 images took a ViT-B/16 at 224 px 4.9 hours
RATE = 1e11
MARGIN = 3
LIBRARIES = 1000  # MB that a process with torch, timm and open_clip takes: 720 to 980 measured
BACKWARD = 1.2  # a step's memory in activations that it keeps: 1.16 measured
UNKNOWN_SIDE = 64  # pixels; images that need no image_size are of one size, which is a small one
CUDA = 2500  # MB of host memory that CUDA takes besides
LONGEST = 1440  # minutes of a job of training
START = 15  # minutes for reading inputs and writing results


@dataclass(frozen=True)
class Work:
    """What a job takes, on top of the libraries."""

    megabytes: float  # of memory without a GPU
    operations: float = 0.0  # of floating point, which a GPU does faster than a core
    seconds: float = 0.0  # of one core for the rest: reading, decoding, arrays
    host: float = 0.0  # megabytes of memory beside a GPU
    device: float = 0.0  # megabytes of the GPU, for one client at a time; more memory fits more


@dataclass(frozen=True)
class Resources:
    """A job's request."""

    mem_mb: int  # of the host, 10^6 bytes
    gpu_mem_mb: int  # that the GPU must have; 0 without one
    runtime: int  # minutes


def request(work: Work, resumes: bool = False, attempt: int = 1, on_gpu: bool = False) -> Resources:
    """Return a job's request: `attempt` times the first one, in steps of 500 MB and of 15 minutes.

    That of a job that `resumes` when it is tried again is LONGEST at most.
    """
    memory = CUDA + work.host if on_gpu else work.megabytes
    seconds = work.seconds + work.operations / RATE
    minutes = _up(START + MARGIN * seconds / 60, 15)
    return Resources(
        mem_mb=attempt * _up(LIBRARIES + memory, 500),
        gpu_mem_mb=attempt * _up(work.device, 500) if on_gpu else 0,
        runtime=attempt * (min(minutes, LONGEST) if resumes else minutes),
    )


def _up(number: float, step: int) -> int:
    """Round up to a multiple of `step`."""
    return math.ceil(number / step) * step


class Contents(NamedTuple):
    """The numbers of images and classes of a dataset."""

    images: int
    classes: int
    training: float
    test: float


def contents(dataset: Dataset) -> Contents:
    """Return what a dataset's store holds, or an estimate before it is written.

    Where nothing tells test images apart, all are to train on, and half of them to test on; no more
    of either than `max_train` and `max_test`.
    """
    images, classes, test = dataset.expected
    try:
        facts = read_receipt(paths.at(paths.STORE, dataset=dataset.label))
        images, classes = facts["images"], len(facts["classes"])
        test = facts.get("test_images", test)
    except FedLoomError:
        of_files = dataset.settings.keys() & {"root", "parts"}  # an image each
        listed = dataset.listing["files"] if dataset.listing and of_files else 0
        images = images or max(UNKNOWN_IMAGES, listed)
    halves = (images, images / 2) if test is None else (images - test, test)
    most = (dataset.settings.get(key) or images for key in ("max_train", "max_test"))
    training, test = map(min, halves, most)
    return Contents(min(images, training + test), classes or UNKNOWN_CLASSES, training, test)


def image_megabytes(dataset: Dataset) -> float:
    """Return the megabytes of all images of a dataset in three colours."""
    side = dataset.settings.get("image_size", UNKNOWN_SIDE)
    return contents(dataset).images * 3 * side**2 / 1e6


def of_dataset(dataset: Dataset) -> Work:
    """Estimate the making of a store, image by image."""
    return Work(500, seconds=60 * contents(dataset).images / READ_PER_MINUTE)


def of_cache(dataset: Dataset, backbone: Backbone) -> Work:
    """Estimate a pass of the frozen backbone over all images."""
    size = sizes(backbone)
    loaded, passing = 2 * size.weights, CACHED_AT_ONCE * size.passing
    operations = contents(dataset).images * size.operations
    return Work(loaded + passing, operations, host=loaded, device=size.weights + passing)


def of_class_tokens(dataset: Dataset, backbone: Backbone) -> Work:
    """Estimate work on the cached class tokens of all images, at every block."""
    size = sizes(backbone)
    tokens = contents(dataset).images * size.depth * size.width * FLOAT
    return Work(2 * tokens, seconds=tokens)  # a second per megabyte


@dataclass(frozen=True)
class Workload:
    """The run that is estimated; its plugin declares what the method costs."""

    study: Study
    dataset: Dataset
    partition: Partition
    backbone: Backbone
    method: Method
    plugin: Plugin

    @cached_property
    def size(self) -> Sizes:
        """The sizes of the backbone."""
        return sizes(self.backbone)

    @cached_property
    def data(self) -> Contents:
        """The numbers of images and classes."""
        return contents(self.dataset)

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
        size, options = self.size, dict(self.method.options)
        inputs, passes = self.plugin.forward_inputs, self.plugin.passes(options)
        images, texts = encoded(inputs, passes, self.images_of_a_step())
        prompts = self.data.classes * NAME_TOKENS * size.text_width * size.text_depth
        return ClientStep(
            state_bytes=1e6 * self.weights_of_a_client(),
            images=images,
            image_floats=size.image_floats,
            image_bytes=size.training_bytes,
            text_floats=texts * prompts,
            prompt_floats=self.plugin.prompts_of_a_block(options) * size.width,
            trains_weights=bool(self.weights_of_a_client()),
        )

    def encoding(self, images: float, steps: float = 1) -> float:
        """Return the operations of encoding `images` in `steps` steps, and texts in each."""
        passes = self.plugin.passes(dict(self.method.options))
        of_images, of_texts = encoded(self.plugin.forward_inputs, passes, images / steps)
        tokens = 2 * of_texts * self.data.classes * NAME_TOKENS  # a global and a local context
        return steps * (of_images * self.size.operations + tokens * self.size.token_operations)

    def megabytes_of_images(self) -> float:
        """Return the megabytes of all images, or of their patches, that a GPU may keep."""
        if "patches" in self.method.needs:
            return self.data.images * self.size.tokens * self.size.text_width * FLOAT / 2
        if "images" not in self.plugin.forward_inputs:
            return 0
        return image_megabytes(self.dataset)

    def images_of_a_step(self) -> int:
        """Return the number of a client's images in memory at once while it trains."""
        training: Mapping[str, Any] = self.method.training
        return min(training["batch_size"], training["micro_batch"] or training["batch_size"])

    def weights_of_a_client(self) -> float:
        """Return the megabytes of the backbone's weights that a client trains."""
        trains = self.plugin.trains_weights(dict(self.method.options))
        return self.size.weights if trains else 0

    def copies(self) -> float:
        """Return the megabytes of all copies of the backbone's weights that clients train.

        The trained ones, a gradient, and one or two moments for the clients that train at once;
        the uploads before theirs; the server's.
        """
        clients = self.study.clients_per_round
        of_one = 3 if self.method.training.get("optimizer") == "sgd" else 4
        number = of_one * self.clients_at_once() + clients
        if self.plugin.cost.keeps_weights:
            number += 2 * max(clients, self.all_clients())
        return number * self.weights_of_a_client()

    def all_clients(self) -> int:
        """Return the number of clients; a guess for a partition by domains that nobody counted."""
        settings, domains = self.partition.settings, self.dataset.domains
        each = settings.get("clients_per_domain")
        return settings.get("clients") or (domains * each if domains and each else UNKNOWN_CLIENTS)

    def images_of_a_client(self) -> float:
        """Return the number of training images of a client."""
        classes, settings = self.data.classes, self.partition.settings
        everyone = self.data.training / self.all_clients()
        if self.partition.scheme == "disjoint":
            classes = -(-classes // self.all_clients())
        return min(everyone, settings["shots"] * classes) if settings.get("shots") else everyone

    def transport_plans(self) -> float:
        """Return how many numbers a step's transport plans take in memory."""
        if "patches" not in self.method.needs:
            return 0
        images = self.images_of_a_step() * self.clients_at_once()
        prompts = 2 * self.data.classes  # a global and a local one
        arrays = 8  # of a plan's shape at once: costs, kernels, plans, their gradients
        return arrays * images * prompts * self.size.tokens

    def round_operations(self) -> float:
        """Return the operations of a round's training."""
        training = self.method.training
        clients, images = self.study.clients_per_round, self.images_of_a_client()
        images *= training["epochs"]
        if training["local_steps"] is not None:
            images = training["local_steps"] * training["batch_size"]
        steps = -(-images // self.images_of_a_step())
        operations = 3 * self.encoding(images, steps)
        if training["augment"] and "images" not in self.plugin.forward_inputs:
            operations += 2 * images * self.size.operations
        plans = self.transport_plans() / self.clients_at_once()
        return clients * (operations + 100 * steps * plans)

    def evaluation(self, share: float = 1) -> tuple[float, float]:
        """Return megabytes and operations of one evaluation of this share of the clients."""
        # where the server has no model, each of these clients' models answers all images
        served = self.plugin.has_server_model(dict(self.method.options))
        models = 1 if served else self.all_clients() * share
        times = share + models if self.study.global_test else share
        read = "images" in self.plugin.forward_inputs  # else their features are cached
        megabytes = read * images_at_once(self.size.image_floats) * self.size.passing
        return megabytes, self.encoding(times * self.data.test)


def of_training(run: Workload, rounds: int, evaluations: int, sampled: int) -> Work:
    """Estimate rounds and evaluations, of which `sampled` are of `study.evaluate_clients`."""
    size, at_once, step = run.size, run.clients_at_once(), run.step()
    few = min(1, (run.study.evaluate_clients or run.all_clients()) / run.all_clients())
    epochs = run.plugin.cost.personalize_epochs
    epochs = run.method.options[epochs] if isinstance(epochs, str) else epochs
    operations = rounds * run.round_operations()
    for share, number in ((1, evaluations - sampled), (few, sampled)):
        _, once = run.evaluation(share)
        if epochs:
            once += 3 * run.data.training * epochs * share * size.operations + once
        operations += number * once
    kept = at_once * step.kept / 1e6
    states = step.states(run.study.clients_per_round) / 1e6
    training = BACKWARD * kept + run.transport_plans() * FLOAT
    one = max(training / at_once, IMAGES_AT_ONCE * size.passing)
    host = size.weights + max(size.weights, run.copies())  # loading holds two
    return Work(
        host + max(training, run.evaluation()[0]),
        operations,
        host=host,
        device=gpu_request(size.weights, states, run.megabytes_of_images(), one),
    )


def of_artefact(run: Workload, shared: float = 0) -> Work:
    """Estimate a pass over all clients' test images, and of every client over `shared` ones."""
    megabytes, operations = run.evaluation()
    operations += run.encoding(run.all_clients() * shared)
    host, device = 1000 + 2 * run.size.weights, run.size.weights + IMAGES_AT_ONCE * run.size.passing
    return Work(host + megabytes, operations, host=host, device=device)
