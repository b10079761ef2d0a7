"""What jobs compute, keep in memory and request from a cluster, estimated before they run.

The estimates are too large rather than too small. Memory-mapped files (stores, caches) are not
counted: the system may drop them. Time limits are MARGIN times the estimate. On a GPU, they are far
too long: a profile's `set-resources` may shorten them.
"""

import math
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt
from fedloom.config.protocols import method_of
from fedloom.config.settings import Dataset, Method, Partition, Settings
from fedloom.config.study import Study
from fedloom.hooks.manifest import TEST_SETS, Plugin, find
from fedloom.machine import memory
from fedloom.planning import job_factory, paths
from fedloom.planning.resources.backbone_sizes import FLOAT, Sizes, sizes

UNKNOWN_IMAGES = 60_000
UNKNOWN_CLASSES = 100
UNKNOWN_CLIENTS = 10
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


class Resources(NamedTuple):
    """A job's request."""

    mem_mb: int  # of the host, 10^6 bytes
    runtime: int  # minutes


class Contents(NamedTuple):
    """The numbers of images and classes of a dataset."""

    images: int
    classes: int
    training: float
    test: float


def contents(dataset: Dataset) -> Contents:
    """Return what a dataset's store holds, or an estimate before it is written.

    If the test split is unknown, all images are assumed to train, and half of them to test.
    """
    images, classes, test = dataset.expected
    try:
        facts = read_receipt(paths.path_for(paths.STORE, dataset=dataset.label))
        images = facts["images"]
        classes = len(facts["classes"])
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


def request(settings: Settings, rule: str, labels: Any, attempt: int, on_gpu: bool) -> Resources:
    """Return `attempt` times a job's first request; of training, which resumes, LONGEST at most."""
    work = of_job(settings, rule, labels)
    megabytes = LIBRARIES + (CUDA + work.host if on_gpu else work.megabytes)
    seconds = work.seconds + work.operations / RATE
    minutes = 15 * math.ceil((START + MARGIN * seconds / 60) / 15)
    minutes = min(minutes, LONGEST) if rule == "train" else minutes
    return Resources(mem_mb=attempt * 500 * math.ceil(megabytes / 500), runtime=attempt * minutes)


def of_job(settings: Settings, rule: str, wildcards: Any) -> Work:
    """Estimate a job of this rule, which its wildcards name."""
    w = wildcards
    dataset = settings.datasets[wildcards.dataset]
    images = contents(dataset).images
    if rule == "dataset":
        return Work(500, seconds=60 * images / READ_PER_MINUTE)

    # jobs that run a backbone
    size = sizes(settings.backbones[w.backbone])
    loaded = 2 * size.weights
    if rule == "cache":
        passing = memory.CACHED_AT_ONCE * size.passing
        return Work(loaded + passing, images * size.operations, host=loaded)
    if rule in ("prototypes", "block_accuracy"):
        tokens = images * size.depth * size.width * FLOAT  # class tokens at every block
        return Work(2 * tokens, seconds=tokens)  # a second per megabyte

    if rule == "artefact":  # of test sets, every client answers all test images
        run = workload(settings, w, w.method)
        others = settings.partitions[w.partition].settings.get("transfer_to", ())
        labels = (w.dataset, *others) if w.artefact == TEST_SETS else ()
        shared = sum(contents(settings.datasets[label]).test for label in labels)
        megabytes, operations = run.evaluation()
        operations += run.encoding(run.all_clients * shared)
        return Work(1000 + loaded + megabytes, operations, host=1000 + loaded)
    return of_run(settings, w, job_factory.rounds_of(settings, w))


def of_run(settings: Settings, labels: Any, rounds: range | None = None) -> Work:
    """Estimate the most that a run's training, or a job's `rounds`, take with any of its trials."""
    study = job_factory.study_of_run(settings, labels)
    trials = job_factory.trials_of(settings, labels)
    rounds = range(study.rounds) if rounds is None else rounds
    numbers = [len(each) for each in job_factory.evaluations(study, rounds)]
    methods = (labels.method, *(trial.label for trial in trials))
    each = [_of_training(workload(settings, labels, m), len(rounds), *numbers) for m in methods]
    return Work(*map(max, zip(*map(astuple, each), strict=True)))


@dataclass(frozen=True)
class Workload:
    """The run that is estimated; its plugin declares what the method costs."""

    study: Study
    dataset: Dataset
    partition: Partition
    method: Method
    plugin: Plugin
    size: Sizes  # of the backbone
    data: Contents

    @property
    def images_of_a_step(self) -> int:
        """The number of a client's images in memory at once while it trains."""
        training = self.method.training
        return min(training["batch_size"], training["micro_batch"] or training["batch_size"])

    @cached_property
    def step(self) -> memory.ClientStep:
        """The sizes of a client's step of training."""
        size = self.size
        options = self.method.options
        inputs = self.plugin.forward_inputs
        passes = self.plugin.passes(options)
        images, texts = memory.forward_counts(inputs, passes, self.images_of_a_step)
        prompts = self.data.classes * NAME_TOKENS * size.text_width * size.text_depth
        trains = self.plugin.trains_weights(options)

        return memory.ClientStep(
            state_bytes=1e6 * size.weights if trains else 0,
            images=images,
            image_floats=size.image_floats,
            image_bytes=size.training_bytes,
            text_floats=texts * prompts,
            prompt_floats=self.plugin.prompts_of_a_block(options) * size.width,
            trains_weights=trains,
        )

    @cached_property
    def clients_at_once(self) -> int:
        """The number of clients that train as one batch, on a core."""
        if not (self.study.stacked and self.plugin.stacked):
            return 1
        clients = self.study.clients_per_round
        if self.plugin.needs_whole_cohorts(self.method.options):
            return clients
        return min(clients, memory.clients_at_once(self.step))

    @cached_property
    def all_clients(self) -> int:
        """The number of clients; a guess for a partition by domains that nobody counted."""
        settings = self.partition.settings
        domains = self.dataset.domains
        each = settings.get("clients_per_domain")
        return settings.get("clients") or (domains * each if domains and each else UNKNOWN_CLIENTS)

    def encoding(self, images: float, steps: float = 1) -> float:
        """Return the operations of encoding `images` in `steps` steps, and texts in each."""
        passes = self.plugin.passes(self.method.options)
        of_images, of_texts = memory.forward_counts(
            self.plugin.forward_inputs, passes, images / steps
        )
        tokens = 2 * of_texts * self.data.classes * NAME_TOKENS  # a global and a local context
        return steps * (of_images * self.size.operations + tokens * self.size.token_operations)

    def images_of_a_client(self) -> float:
        """Return the number of training images of a client."""
        classes = self.data.classes
        settings = self.partition.settings
        everyone = self.data.training / self.all_clients
        if self.partition.scheme == "disjoint":
            classes = -(-classes // self.all_clients)
        return min(everyone, settings["shots"] * classes) if settings.get("shots") else everyone

    def round_operations(self) -> float:
        """Return the operations of a round's training."""
        training = self.method.training
        images = self.images_of_a_client()
        images *= training["epochs"]
        if training["local_steps"] is not None:
            images = training["local_steps"] * training["batch_size"]
        operations = 3 * self.encoding(images, -(-images // self.images_of_a_step))
        if training["augment"] and "images" not in self.plugin.forward_inputs:
            operations += 2 * images * self.size.operations
        return self.study.clients_per_round * operations

    def evaluation(self, share: float = 1) -> tuple[float, float]:
        """Return megabytes and operations of one evaluation of this share of the clients."""
        # where the server has no model, each of these clients' models answers all images
        served = self.plugin.has_server_model(self.method.options)
        models = 1 if served else self.all_clients * share
        times = share + models if self.study.global_test else share
        read = "images" in self.plugin.forward_inputs  # else their features are cached
        megabytes = read * memory.images_at_once(self.size.image_floats) * self.size.passing
        return megabytes, self.encoding(times * self.data.test)


def workload(settings: Settings, labels: Any, method: str) -> Workload:
    """Return what the estimate of a run, or of one of its trials, is made of."""
    found = method_of(settings, labels.partition, method)
    dataset = settings.datasets[labels.dataset]
    return Workload(
        study=job_factory.study_of_run(settings, labels),
        dataset=dataset,
        partition=settings.partitions[labels.partition],
        method=found,
        plugin=find(found.plugin),
        size=sizes(job_factory.backbone_of(settings, labels)),
        data=contents(dataset),
    )


def _of_training(run: Workload, rounds: int, evaluations: int, sampled: int) -> Work:
    """Estimate rounds and evaluations, of which `sampled` are of `study.evaluate_clients`."""
    size = run.size
    step = run.step
    few = min(1, (run.study.evaluate_clients or run.all_clients) / run.all_clients)

    # operations of rounds, and of evaluations of all or of some clients
    epochs = run.plugin.cost.personalize_epochs
    epochs = run.method.options[epochs] if isinstance(epochs, str) else epochs
    operations = rounds * run.round_operations()
    for share, number in ((1, evaluations - sampled), (few, sampled)):
        _, once = run.evaluation(share)
        if epochs:
            once += 3 * run.data.training * epochs * share * size.operations + once
        operations += number * once

    # memory
    states = step.states(run.study.clients_per_round) / 1e6
    kept = 2 * run.all_clients * run.plugin.cost.keeps_weights * size.weights
    host = size.weights + max(size.weights, states + kept)  # loading holds two
    training = BACKWARD * run.clients_at_once * step.kept / 1e6
    return Work(host + max(training, run.evaluation()[0]), operations, host=host)
