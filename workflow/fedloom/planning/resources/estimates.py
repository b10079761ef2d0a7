"""Estimate what jobs compute, keep in memory and request from a cluster.

The estimates are too large rather than too small. Memory-mapped files (stores, caches) are not
counted, since the system may drop them from memory. A time limit is TIME_LIMIT_FACTOR times the
estimate. For jobs on a GPU, these limits are far too long; a profile's `set-resources` may shorten
them.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt
from fedloom.config.protocols import method_for
from fedloom.config.settings import Dataset, Method, Partition, Settings
from fedloom.config.study import Study
from fedloom.hooks.manifest import TEST_SETS, MethodManifest, find_method
from fedloom.machine import memory
from fedloom.planning import paths, settings_of_run
from fedloom.planning.resources.backbone_sizes import MB_PER_FLOAT, Sizes, sizes
from fedloom.planning.run_labels import Run, Wildcards

# these stand in for numbers that are not known before a store is written
UNKNOWN_IMAGES = 60_000
UNKNOWN_CLASSES = 100
UNKNOWN_CLIENTS = 10
# The side of an image in pixels, if the dataset sets no image_size. All images then have the same
# size, and it is small.
UNKNOWN_SIDE = 64

# the number of images that a source decodes and resizes in a minute
IMAGES_READ_PER_MINUTE = 3000
# Floating-point operations of a core per second. With a ViT-B/16 at 224 px, the features of 50,000
# images took 4.9 hours.
CORE_OPERATIONS_PER_SECOND = 1e11

# MB that a process with torch, timm and open_clip takes: 720 to 980 measured
LIBRARIES_MB = 1000
# MB of host memory that CUDA takes in addition
CUDA_MB = 2500
# the memory of a step, in multiples of the activations that it keeps: 1.16 was measured
STEP_MEMORY_FACTOR = 1.2

# a time limit is so many times the estimated time
TIME_LIMIT_FACTOR = 3
# minutes for reading inputs and writing results
STARTUP_MINUTES = 15
# the most minutes that the first attempt of a training job asks for
MAX_TRAINING_MINUTES = 1440


@dataclass(frozen=True)
class Work:
    """The memory and the computation of a job, on top of the libraries."""

    # megabytes of memory, if the job has no GPU
    megabytes: float
    # floating-point operations, which a GPU does faster than a core
    operations: float = 0.0
    # seconds of one core for the rest: reading, decoding, arrays
    seconds: float = 0.0
    # megabytes of the host's memory, if the job has a GPU
    host: float = 0.0


class Resources(NamedTuple):
    """The request of a job to a cluster: memory of the host in 10^6 bytes, and minutes."""

    mem_mb: int
    runtime: int


class Contents(NamedTuple):
    """The numbers of images and classes of a dataset, and of its training and test images.

    If the test split is unknown, half of the images count as test images, so the number may end in
    .5.
    """

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
        # Every image in a folder is a file, and the files were listed. A number that the recipe or
        # the keys state comes first.
        listed = 0
        if dataset.listing and dataset.settings.keys() & {"root", "parts"}:
            listed = dataset.listing["files"]
        images = images or max(UNKNOWN_IMAGES, listed)

    # the sizes of the two splits, which keys of the dataset may limit
    if test is None:
        training = images
        test = images / 2
    else:
        training = images - test
    training = min(training, dataset.settings.get("max_train") or images)
    test = min(test, dataset.settings.get("max_test") or images)

    return Contents(min(images, training + test), classes or UNKNOWN_CLASSES, training, test)


def image_megabytes(dataset: Dataset) -> float:
    """Return the megabytes of all images of a dataset, with three bytes per pixel."""
    side = dataset.settings.get("image_size", UNKNOWN_SIDE)
    return contents(dataset).images * 3 * side**2 / 1e6


def request(
    settings: Settings, rule: str, wildcards: Wildcards, attempt: int, on_gpu: bool
) -> Resources:
    """Return what a job requests: `attempt` times the request of its first attempt.

    The first attempt of a training job asks for at most MAX_TRAINING_MINUTES, since the next one
    resumes it.
    """
    work = estimate_job(settings, rule, wildcards)

    # memory, in steps of 500 MB
    own = work.megabytes
    if on_gpu:
        own = CUDA_MB + work.host
    megabytes = 500 * math.ceil((LIBRARIES_MB + own) / 500)

    # time, in steps of a quarter of an hour
    seconds = work.seconds + work.operations / CORE_OPERATIONS_PER_SECOND
    minutes = 15 * math.ceil((STARTUP_MINUTES + TIME_LIMIT_FACTOR * seconds / 60) / 15)
    if rule == "train":
        minutes = min(minutes, MAX_TRAINING_MINUTES)

    return Resources(mem_mb=attempt * megabytes, runtime=attempt * minutes)


def estimate_job(settings: Settings, rule: str, wildcards: Wildcards) -> Work:
    """Estimate a job of this rule, which its wildcards name.

    A rule whose jobs are all small has no estimate; workflow/rules states what they request.

    Raises:
        KeyError: there is no estimate for jobs of this rule.
    """
    return _ESTIMATES[rule](settings, wildcards)


def _dataset_work(settings: Settings, wildcards: Wildcards) -> Work:
    """Estimate the decoding of a dataset's images."""
    images = contents(settings.datasets[wildcards.dataset]).images
    return Work(500, seconds=60 * images / IMAGES_READ_PER_MINUTE)


def _cache_work(settings: Settings, wildcards: Wildcards) -> Work:
    """Estimate a pass of a backbone over all images of a dataset."""
    images = contents(settings.datasets[wildcards.dataset]).images
    size = sizes(settings.backbones[wildcards.backbone])
    loaded = _loading_megabytes(size)
    passing = memory.CACHED_AT_ONCE * size.passing
    return Work(loaded + passing, images * size.operations, host=loaded)


def _features_work(settings: Settings, wildcards: Wildcards) -> Work:
    """Estimate a job that reads the features of all images of a dataset."""
    images = contents(settings.datasets[wildcards.dataset]).images
    size = sizes(settings.backbones[wildcards.backbone])

    # memory holds the class tokens at every block twice; a megabyte of them takes a second
    tokens = images * size.depth * size.width * MB_PER_FLOAT
    return Work(2 * tokens, seconds=tokens)


def _artefact_work(settings: Settings, wildcards: Wildcards) -> Work:
    """Estimate the computation of an artefact."""
    # for TEST_SETS, every client answers all test images of these datasets
    labels: tuple[str, ...] = ()
    if wildcards.artefact == TEST_SETS:
        others = settings.partitions[wildcards.partition].settings.get("transfer_to", ())
        labels = (wildcards.dataset, *others)
    shared = sum(contents(settings.datasets[label]).test for label in labels)

    # any other artefact is assumed to cost as much as an evaluation
    run = workload(settings, wildcards, wildcards.method)
    megabytes, operations = run.evaluation()
    operations += run.encoding(run.all_clients * shared)

    loaded = _loading_megabytes(sizes(settings.backbones[wildcards.backbone]))
    return Work(1000 + loaded + megabytes, operations, host=1000 + loaded)


def _loading_megabytes(size: Sizes) -> float:
    """Return the megabytes of a backbone while it is loaded: memory holds its weights twice."""
    return 2 * size.weights


def _train_work(settings: Settings, wildcards: Wildcards) -> Work:
    """Estimate the rounds of a training job."""
    return estimate_run(settings, wildcards, settings_of_run.rounds_of_job(settings, wildcards))


# the function that estimates a job, by rule
_ESTIMATES = {
    "dataset": _dataset_work,
    "cache": _cache_work,
    "prototypes": _features_work,
    "block_accuracy": _features_work,
    "train": _train_work,
    "artefact": _artefact_work,
}


def estimate_run(settings: Settings, labels: Run | Wildcards, rounds: range | None = None) -> Work:
    """Estimate the training of a run, or of only some of its `rounds`.

    If the run's options are chosen from trials, this is the most that it takes with any of them.
    """
    study = settings_of_run.study_of_run(settings, labels)
    rounds = range(study.rounds) if rounds is None else rounds
    evaluations, sampled = map(len, settings_of_run.rounds_to_evaluate(study, rounds))

    # nobody knows yet which trial's options the run is trained with
    trials = settings_of_run.trials_of_run(settings, labels)
    works = list[Work]()
    for method in (labels.method, *(trial.label for trial in trials)):
        run = workload(settings, labels, method)
        works.append(_estimate_training(run, len(rounds), evaluations, sampled))

    return Work(
        megabytes=max(work.megabytes for work in works),
        operations=max(work.operations for work in works),
        seconds=max(work.seconds for work in works),
        host=max(work.host for work in works),
    )


@dataclass(frozen=True)
class Workload:
    """The facts of a run that its estimate needs; the plugin declares what the method costs."""

    study: Study
    dataset: Dataset
    partition: Partition
    method: Method
    plugin: MethodManifest
    # the sizes of the backbone
    size: Sizes
    data: Contents

    @property
    def images_of_a_step(self) -> int:
        """The number of a client's images in memory at once while it trains."""
        training = self.method.training
        return memory.images_of_a_step(training["batch_size"], training["micro_batch"])

    @cached_property
    def step(self) -> memory.ClientStep:
        """The sizes of a client's step of training."""
        size = self.size
        options = self.method.options

        # the images that a step encodes, and the prompts of all classes at the text tower's blocks
        inputs = self.plugin.forward_inputs
        passes = self.plugin.passes(options)
        images, texts = memory.forward_counts(inputs, passes, self.images_of_a_step)
        prompts = self.data.classes * size.tokens_of_class * size.text_width * size.text_depth

        # a client's prompts and head are small beside a backbone's weights
        trains = self.plugin.trains_weights(options)
        state_bytes = 0.0
        if trains:
            state_bytes = 1e6 * size.weights

        return memory.ClientStep(
            state_bytes=state_bytes,
            images=images,
            image_floats=size.image_floats,
            image_bytes=size.training_bytes,
            text_floats=texts * prompts,
            prompt_floats=self.plugin.prompts_of_a_block(options) * size.width,
            trains_weights=trains,
        )

    @cached_property
    def clients_per_batch(self) -> int:
        """The number of clients that train as one batch on CPU cores."""
        clients = self.study.clients_per_round
        fit = memory.cohort_size(
            clients,
            self.step,
            stacked=self.study.stacked and self.plugin.stacked,
            whole_cohorts=self.plugin.needs_whole_cohorts(self.method.options),
        )
        return min(clients, fit)

    @cached_property
    def all_clients(self) -> int:
        """The number of clients; UNKNOWN_CLIENTS if neither partition nor recipe tell it."""
        settings = self.partition.settings
        if settings.get("clients"):
            return settings["clients"]

        domains = self.dataset.domains
        clients_per_domain = settings.get("clients_per_domain")
        if domains and clients_per_domain:
            return domains * clients_per_domain
        return UNKNOWN_CLIENTS

    def encoding(self, images: float, steps: float = 1) -> float:
        """Return the operations of encoding `images` in `steps` steps, with texts in each step."""
        passes = self.plugin.passes(self.method.options)
        encoded_images, encoded_texts = memory.forward_counts(
            self.plugin.forward_inputs, passes, images / steps
        )

        # texts may have a global and a local context
        tokens = 2 * encoded_texts * self.data.classes * self.size.tokens_of_class
        return steps * (encoded_images * self.size.operations + tokens * self.size.token_operations)

    def images_of_a_client(self) -> float:
        """Return the number of training images of a client."""
        share = self.data.training / self.all_clients
        shots = self.partition.settings.get("shots")
        if not shots:
            return share

        # `shots` images of each class that a client has
        classes = self.data.classes
        if self.partition.scheme == "disjoint":
            classes = -(-classes // self.all_clients)
        return min(share, shots * classes)

    def round_operations(self) -> float:
        """Return the operations of a round's training."""
        # the number of images that a client trains on, with repetitions
        training = self.method.training
        images = self.images_of_a_client()
        images *= training["epochs"]
        if training["local_steps"] is not None:
            images = training["local_steps"] * training["batch_size"]

        # a backward pass takes twice as much as a forward pass
        operations = 3 * self.encoding(images, -(-images // self.images_of_a_step))

        # no cache has the features of augmented images
        if training["augment"] and "images" not in self.plugin.forward_inputs:
            operations += 2 * images * self.size.operations
        return self.study.clients_per_round * operations

    def evaluation(self, share: float = 1) -> tuple[float, float]:
        """Return megabytes and operations of one evaluation of this share of the clients."""
        # How often all test images are answered: once by the clients that have them. For a global
        # test, also by the server's model, or, without one, by the model of each of these clients.
        times = share
        if self.study.global_test:
            served = self.plugin.has_server_model(self.method.options)
            times += 1 if served else self.all_clients * share

        # cached features take no memory, as their file is mapped
        megabytes = 0.0
        if "images" in self.plugin.forward_inputs:
            megabytes = memory.max_images_per_pass(self.size.image_floats) * self.size.passing

        return megabytes, self.encoding(times * self.data.test)


def workload(settings: Settings, labels: Run | Wildcards, method: str) -> Workload:
    """Return the facts that the estimate of a run needs; `method` is its own or a trial's label."""
    found = method_for(settings, labels.partition, method)
    dataset = settings.datasets[labels.dataset]
    return Workload(
        study=settings_of_run.study_of_run(settings, labels),
        dataset=dataset,
        partition=settings.partitions[labels.partition],
        method=found,
        plugin=find_method(found.plugin),
        size=sizes(settings_of_run.backbone_of_run(settings, labels)),
        data=contents(dataset),
    )


def _estimate_training(run: Workload, rounds: int, evaluations: int, sampled: int) -> Work:
    """Estimate some rounds of training and some evaluations.

    In `sampled` of the evaluations, only `study.evaluate_clients` clients are evaluated.
    """
    size = run.size
    step = run.step

    # the epochs of training before an evaluation: a number, or the name of an option
    epochs = run.plugin.cost.personalize_epochs
    if isinstance(epochs, str):
        epochs = run.method.options[epochs]

    # operations of rounds, and of evaluations of all or of some clients
    few = min(1, (run.study.evaluate_clients or run.all_clients) / run.all_clients)
    operations = rounds * run.round_operations()
    for share, number in ((1, evaluations - sampled), (few, sampled)):
        _, once = run.evaluation(share)
        if epochs:
            # clients train, and answer a second time after that
            once += 3 * run.data.training * epochs * share * size.operations + once
        operations += number * once

    # megabytes of weights and of clients' states; while they are loaded, weights count twice
    states = step.states(run.study.clients_per_round) / 1e6
    kept = 2 * run.all_clients * run.plugin.cost.keeps_weights * size.weights
    host = size.weights + max(size.weights, states + kept)

    # megabytes of activations, while clients train or are evaluated
    training = STEP_MEMORY_FACTOR * run.clients_per_batch * step.kept / 1e6
    evaluating, _ = run.evaluation()
    return Work(host + max(training, evaluating), operations, host=host)
