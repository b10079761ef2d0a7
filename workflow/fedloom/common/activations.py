"""What training keeps of the inside of a transformer for the backward pass."""

# Numbers per token, feature and block: a training step of a ViT-B/16 at 224 px took 78 MB an image.
SAVED = 11


def training_bytes(image_floats: int, blocks: int, checkpointing: bool = False) -> int:
    """Return the bytes that training keeps of an image in a transformer.

    Args:
        image_floats: T d, of the T tokens of an image.
        checkpointing: only the inputs of blocks are kept, and the inside of one at a time.
    """
    numbers = blocks + SAVED if checkpointing else SAVED * blocks
    return 4 * image_floats * numbers
