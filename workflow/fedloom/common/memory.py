"""The memory of training, and how many clients train as one batch within it.

Planning and the runtime call the same functions, so that a job asks a cluster for the memory that
it takes. The answers follow from sizes and the kind of device alone (of a GPU, its whole memory and
not the free part), so that a run is divided alike on all machines of a kind.
"""

from dataclasses import dataclass

# Numbers per token, feature and block: a training step of a ViT-B/16 at 224 px took 78 MB an image.
SAVED = 11

# About five copies of the trained parameters exist at once: received, trained, gradient, one or two
# moments of the optimiser. A ViT-B/16 of 343 MB thus trains alone; prompts never do.
BYTES_AT_ONCE = 256 * 2**20

# Floats between two blocks of a backbone that fit the caches of a core: 80 images of the micro ViT.
# A larger batch is no faster and needs more memory.
FLOATS_AT_ONCE = 2**17

# The same for prompts before all classes at the inputs of a text tower's blocks: 1,000 classes of
# five clients of the micro CLIP, or 100 classes of two with the tower of a ViT-B-16.
TEXT_FLOATS_AT_ONCE = 6 * 2**20

FEWEST = 16  # images of a pass, or a large backbone would read its weights for every image
IMAGES_AT_ONCE = 256  # of a pass without training
CACHED_AT_ONCE = 128  # images whose features are computed at once for a cache

GPU_SHARE = 0.5  # of a GPU's memory, for the activations that wait for the backward pass


def training_bytes(image_floats: int, blocks: int, checkpointing: bool = False) -> int:
    """Return the bytes that training keeps of an image in a transformer for the backward pass.

    Args:
        image_floats: T d, of the T tokens of an image.
        checkpointing: only the inputs of blocks are kept, and the inside of one at a time.
    """
    numbers = blocks + SAVED if checkpointing else SAVED * blocks
    return 4 * image_floats * numbers


@dataclass(frozen=True)
class ClientStep:
    """The sizes of one client's step of training.

    Attributes:
        state_bytes: what the client receives and keeps.
        images: images of the step that pass through the backbone at once.
        image_floats, image_bytes: see `image_floats` and `training_bytes` of a backbone.
        text_floats: prompts before all classes at the inputs of a text tower's blocks.
    """

    state_bytes: float
    images: int = 0
    image_floats: int = 0
    image_bytes: int = 0
    text_floats: float = 0.0

    @property
    def kept(self) -> float:
        """Return the bytes that wait for the backward pass."""
        return self.images * self.image_bytes + 4 * SAVED * self.text_floats


def images_at_once(image_floats: int, on_gpu: bool = False) -> int:
    """Return how many images a pass without training encodes at once."""
    fit = IMAGES_AT_ONCE if on_gpu else FLOATS_AT_ONCE // image_floats
    return min(IMAGES_AT_ONCE, max(FEWEST, fit))


def clients_at_once(step: ClientStep, gpu_bytes: int | None = None) -> int:
    """Return how many clients may train as one batch, at least one; `gpu_bytes` is None on CPUs."""
    fit = max(1, int(BYTES_AT_ONCE // max(1, step.state_bytes)))
    if gpu_bytes is not None:
        bound = GPU_SHARE * gpu_bytes / step.kept if step.kept else fit
    else:
        share = step.images * step.image_floats / FLOATS_AT_ONCE
        share += step.text_floats / TEXT_FLOATS_AT_ONCE
        bound = 1 / share if share else fit
    return max(1, min(fit, int(bound)))
