"""What training keeps of the inside of a transformer for the backward pass."""

# Numbers per token, feature and block: a training step of a ViT-B/16 at 224 px took 78 MB an image.
SAVED = 11
