"""Estimate the memory of training, and how many clients may train as one batch.

Planning and the runtime call the same functions. Their results depend only on sizes and on the kind
of device, so that all machines of a kind divide a run in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# How many numbers of four bytes training keeps for the backward pass, per token, feature and block.
# A ViT-B/16 at 224 px keeps 10.0 in float32 and 6.6 in bf16. If the weights of the backbone train,
# it keeps SAVED_IF_WEIGHTS_TRAIN times as many.
SAVED_FLOATS = 11
SAVED_FLOATS_BF16 = 8
SAVED_IF_WEIGHTS_TRAIN = 1.7

# About so many copies of a client's state exist at once: the state that the client received, the
# state that it trains, the gradient, and one or two moments of the optimiser.
STATE_COPIES = 5

# The fewest images of a pass without training. With fewer, a large backbone would read all of its
# weights for each image.
MIN_IMAGES_PER_PASS = 16
# The number of images in a pass for a cache.
CACHED_AT_ONCE = 128

# Share of a GPU's memory that images, or their patches, may take.
RESIDENT_SHARE = 0.5
# Activations that are kept for the backward pass may take this share of the memory that weights,
# states and images leave free. The peak of a step is 1.2 times as large as these activations, and
# CUDA itself takes a gigabyte.
ACTIVATION_SHARE = 0.5


@dataclass(frozen=True)
class BatchLimits:
    """The most that is trained or evaluated as one batch.

    Attributes:
        state_bytes: bytes of the states of the clients that train at once. A client that trains a
            ViT-B/16 of 343 MB trains alone.
        floats: numbers between two blocks of a backbone. So many fit into the caches of a core: 80
            images of the micro ViT. Larger batches are not faster, and need more memory.
        text_floats: numbers at the inputs of a text tower's blocks, for the prompts of all classes
            together: the micro CLIP with 1,000 classes for five clients.
        prompts: number of prompts of all clients, if every image has a context of its own. A prompt
            is a context before the name of one class.
        images: number of images in a pass without training.
        features: number of images in a pass that reads only their features. The logits of 1,000
            classes then take 16 MB.
    """

    state_bytes: int = 256 * 2**20
    floats: int = 2**17
    text_floats: int = 6 * 2**20
    prompts: int = 6400
    images: int = 256
    features: int = 4096


USUAL_BATCH_LIMITS = BatchLimits()


def training_bytes(
    image_floats: int,
    blocks: int,
    checkpointing: bool = False,
    precision: str = "float32",
    saved_floats: float = SAVED_FLOATS,
) -> int:
    """Return the bytes that training a transformer keeps of one image for the backward pass.

    This holds for frozen weights and no prompts; `ClientStep` adds what these take.

    Args:
        image_floats: T d, where T is the number of an image's tokens, and d their width.
        blocks: the number of blocks.
        checkpointing: keep only the inputs of the blocks, and the inside of one block at a time.
        precision: the number format of the backbone.
        saved_floats: how many numbers a block keeps in float32, per token and feature.
    """
    saved = saved_floats
    if precision == "bf16":
        saved = saved_floats * SAVED_FLOATS_BF16 / SAVED_FLOATS

    # numbers of four bytes per token and feature
    numbers = saved * blocks
    if checkpointing:
        numbers = blocks + saved
    return round(4 * image_floats * numbers)


@dataclass(frozen=True)
class ClientStep:
    """The sizes of one client's step of training."""

    # bytes that the client receives and keeps
    state_bytes: float
    # images that pass through the backbone at once
    images: float = 0
    # of one image: the T d numbers of its tokens, and the bytes that `training_bytes` returns
    image_floats: int = 0
    image_bytes: int = 0
    # numbers at the inputs of a text tower's blocks, for the prompts of all classes
    text_floats: float = 0.0
    # P d, where P is the number of prompts that a block has beside an image's tokens
    prompt_floats: int = 0
    # True if the backbone's own weights train
    trains_weights: bool = False

    @property
    def kept(self) -> float:
        """The bytes of activations that are kept for the backward pass."""
        image_activations = float(self.images * self.image_bytes)
        if image_activations:
            image_activations *= 1 + self.prompt_floats / self.image_floats
        if self.trains_weights:
            image_activations *= SAVED_IF_WEIGHTS_TRAIN
        return image_activations + 4 * SAVED_FLOATS * self.text_floats

    def states(self, clients: int, limits: BatchLimits = USUAL_BATCH_LIMITS) -> float:
        """Return the bytes of all copies of states in a round of `clients`, with the uploads."""
        at_once = max(self.state_bytes, min(limits.state_bytes, clients * self.state_bytes))
        return STATE_COPIES * at_once + clients * self.state_bytes


def images_of_a_step(batch_size: int, micro_batch: int | None) -> int:
    """Return how many of a client's images are in memory at once while it trains."""
    return min(batch_size, micro_batch or batch_size)


class ForwardCounts(NamedTuple):
    """What a step encodes: so many images, and the texts of all classes so many times."""

    images: float
    texts: float


def forward_counts(inputs: Sequence[str], passes: int | str, images: float) -> ForwardCounts:
    """Return how many images and texts a step encodes.

    Args:
        inputs: the inputs of the method's forward pass. The step encodes images only if "images" is
            among them, and texts only if "texts" is.
        passes: the number of passes over images and over texts, or a word, such as "image": then
            there is one pass over the images, and each image has texts of its own.
        images: the number of images in the step.
    """
    image_passes: float = 1
    text_passes: float = images
    if not isinstance(passes, str):
        image_passes = passes
        text_passes = passes

    # a method that reads cached features, say, encodes no images
    if "images" not in inputs:
        image_passes = 0
    if "texts" not in inputs:
        text_passes = 0
    return ForwardCounts(image_passes * images, text_passes)


def max_images_per_pass(
    image_floats: int, on_gpu: bool = False, limits: BatchLimits = USUAL_BATCH_LIMITS
) -> int:
    """Return how many images a pass without training encodes at once."""
    fit = limits.images
    if not on_gpu:
        fit = limits.floats // image_floats
    return min(limits.images, max(MIN_IMAGES_PER_PASS, fit))


def stays_on_gpu(size: float, gpu_bytes: float) -> bool:
    """Return True if images, or their patches, stay on a GPU; both sizes are in bytes."""
    return size <= RESIDENT_SHARE * gpu_bytes


def free_activation_bytes(gpu_bytes: float, weights: float, states: float, images: float) -> float:
    """Return the bytes of a GPU that activations may take beside weights, states and images.

    All arguments are in bytes.
    """
    resident = 0.0
    if stays_on_gpu(images, gpu_bytes):
        resident = images
    return ACTIVATION_SHARE * max(0.0, gpu_bytes - weights - states - resident)


def cohort_size(
    clients: int,
    step: ClientStep,
    room: float | None = None,
    limits: BatchLimits = USUAL_BATCH_LIMITS,
    *,
    stacked: bool,
    whole_cohorts: bool,
) -> int:
    """Return how many of the `clients` may train as one batch, by the method and by the memory.

    Args:
        clients: number of the clients that train.
        step, room, limits: see `max_clients`.
        stacked: False if every client trains alone.
        whole_cohorts: True if all clients must train together, whatever they take.
    """
    if not stacked:
        return 1
    if whole_cohorts:
        return clients
    return max_clients(step, room, limits)


def max_clients(
    step: ClientStep, room: float | None = None, limits: BatchLimits = USUAL_BATCH_LIMITS
) -> int:
    """Return how many clients may train as one batch.

    `room` is the result of `free_activation_bytes` on a GPU, and None on CPU cores.
    """
    # as many clients as have room for their states
    fit = limits.state_bytes // max(1, step.state_bytes)

    # on a GPU, also as many as have room for their activations, if a step keeps any
    if room is not None:
        if step.kept:
            fit = min(fit, room / step.kept)
        return max(1, int(fit))

    # on CPU cores, also as many as fit into the caches of a core; one client takes `share` of them
    share = step.images * step.image_floats / limits.floats
    share += step.text_floats / limits.text_floats
    if share:
        fit = min(fit, 1 / share)
    return max(1, int(fit))
