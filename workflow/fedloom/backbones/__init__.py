"""Frozen backbones. The only place that knows the insides of timm and open_clip.

Shapes, everywhere: K clients in a cohort, B batch, T tokens, P prompts, d width, C classes,
M blocks (numbered from 1), L text length.
"""


def load(spec: dict, device: object = "cpu"):
    """A FrozenViT or FrozenCLIP, by the library of an entry of the config's `backbones`.

    Raises:
        FedLoomError: see `vit.load` and `clip.load`.
    """
    # each library takes seconds to import, and a job needs one of them
    if spec["library"] == "open_clip":
        from fedloom.backbones import clip

        return clip.load(spec, device)
    from fedloom.backbones import vit

    return vit.load(spec, device)
