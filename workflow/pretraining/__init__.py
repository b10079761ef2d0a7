"""The training of the bundled micro backbones. No study runs it."""
