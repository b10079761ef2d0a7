"""The memory of training, and how many clients train as one batch within it.

Planning and the runtime call the same functions. The answers follow from sizes and the kind of
device alone, so that a run is divided alike on all machines of a kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Numbers of four bytes that wait for the backward pass, per token, feature and block: a ViT-B/16 at
# 224 px keeps 10.0, in bf16 6.6. If its weights train, it keeps TRAINED times as many.
SAVED = 11
SAVED_BF16 = 8
TRAINED = 1.7

# About so many copies of a state exist at once: received, trained, gradient, one or two moments of
# the optimiser.
COPIES = 5

# Images of a pass without training, at least, or a large backbone would read its weights for every
# image.
FEWEST = 16
# Images of a pass for a cache.
CACHED_AT_ONCE = 128

# Share of a GPU's memory that images, or their patches, may take.
RESIDENT = 0.5
# Share of the memory that weights, states and images leave for activations that wait for the
# backward pass. A step's peak is 1.2 times as large, and CUDA itself takes a gigabyte.
GPU_SHARE = 0.5


@dataclass(frozen=True)
class BatchLimits:
    """How much is trained or evaluated as one batch, at most.

    Attributes:
        state_bytes: of the clients that train at once: a ViT-B/16 of 343 MB trains alone.
        floats: between two blocks of a backbone that fit the caches of a core: 80 images of the
            micro ViT. Larger batches are not faster and need more memory.
        text_floats: of prompts before all classes, at the inputs of a text tower's blocks: 1,000
            classes of five clients of the micro CLIP.
        prompts: of all clients, each before a class's name, where an image has its own context.
        images: of a pass without training.
        features: of images, where a pass reads nothing else; logits of 1000 classes are then 16 MB.
    """

    state_bytes: int = 256 * 2**20
    floats: int = 2**17
    text_floats: int = 6 * 2**20
    prompts: int = 6400
    images: int = 256
    features: int = 4096


USUAL_BATCH_LIMITS = BatchLimits()


def training_bytes(
    image_floats: int, blocks: int, checkpointing: bool = False, precision: str = "float32"
) -> int:
    """Return the bytes that training keeps of an image in a transformer for the backward pass.

    Its weights are frozen, and it has no prompts; `ClientStep` counts both. `image_floats` is T d,
    of an image's T tokens. With checkpointing, only the inputs of blocks are kept, and one inside.
    """
    saved = SAVED
    if precision == "bf16":
        saved = SAVED_BF16

    # numbers of four bytes per token and feature
    numbers = saved * blocks
    if checkpointing:
        numbers = blocks + saved
    return 4 * image_floats * numbers


@dataclass(frozen=True)
class ClientStep:
    """The sizes of one client's step of training."""

    # bytes that the client receives and keeps
    state_bytes: float
    # images that pass through the backbone at once
    images: float = 0
    # of one image: `image_floats` and `training_bytes` of a backbone
    image_floats: int = 0
    image_bytes: int = 0
    # floats of prompts before all classes at the inputs of a text tower's blocks
    text_floats: float = 0.0
    # P d, of the P prompts that a block has beside an image's tokens
    prompt_floats: int = 0
    # True if the backbone's own weights train
    trains_weights: bool = False

    @property
    def kept(self) -> float:
        """Return the bytes that wait for the backward pass."""
        of_images = float(self.images * self.image_bytes)
        if of_images:
            of_images *= 1 + self.prompt_floats / self.image_floats
        if self.trains_weights:
            of_images *= TRAINED
        return of_images + 4 * SAVED * self.text_floats

    def states(self, clients: int, limits: BatchLimits = USUAL_BATCH_LIMITS) -> float:
        """Return the bytes of all copies of the state in a round of `clients`, uploads included."""
        at_once = max(self.state_bytes, min(limits.state_bytes, clients * self.state_bytes))
        return COPIES * at_once + clients * self.state_bytes


class ForwardCounts(NamedTuple):
    """What a step encodes: a number of images, and how often the texts of all classes."""

    images: float
    texts: float


def forward_counts(inputs: Sequence[str], passes: int | str, images: float) -> ForwardCounts:
    """Return what a step of `images` encodes of the method's forward `inputs`.

    `passes` is a number of passes over both images and texts, or a word, as "image": then each
    image has texts of its own.
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


def images_at_once(
    image_floats: int, on_gpu: bool = False, limits: BatchLimits = USUAL_BATCH_LIMITS
) -> int:
    """Return how many images a pass without training encodes at once."""
    fit = limits.images
    if not on_gpu:
        fit = limits.floats // image_floats
    return min(limits.images, max(FEWEST, fit))


def stays_on_gpu(size: float, gpu_bytes: float) -> bool:
    """Return True if images, or their patches, of this size stay on a GPU."""
    return size <= RESIDENT * gpu_bytes


def activation_bytes(gpu_bytes: float, weights: float, states: float, images: float) -> float:
    """Return the bytes of a GPU that activations may take beside weights, states and images."""
    resident = 0.0
    if stays_on_gpu(images, gpu_bytes):
        resident = images
    return GPU_SHARE * max(0.0, gpu_bytes - weights - states - resident)


def clients_at_once(
    step: ClientStep, room: float | None = None, limits: BatchLimits = USUAL_BATCH_LIMITS
) -> int:
    """Return how many clients may train as one batch; `room` is a GPU's `activation_bytes`."""
    # as many as have room for their states
    fit = limits.state_bytes // max(1, step.state_bytes)

    # on a GPU, as many as have room for their activations; one without any is not bounded
    if room is not None:
        if step.kept:
            fit = min(fit, room / step.kept)
        return max(1, int(fit))

    # on a core, as many as fit its caches: the share that one client takes of them
    share = step.images * step.image_floats / limits.floats
    share += step.text_floats / limits.text_floats
    if share:
        fit = min(fit, 1 / share)
    return max(1, int(fit))
