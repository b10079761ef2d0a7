"""The parts of an open_clip block, for `fedloom.backbones.blocks`."""

from open_clip.transformer import ResidualAttentionBlock

from fedloom.backbones.blocks import Parts, known_parts

NAMES = {
    "norm1": "ln_1",
    "in_weight": "attn.in_proj_weight",
    "in_bias": "attn.in_proj_bias",
    "proj": "attn.out_proj",
    "scale1": "ls_1",
    "norm2": "ln_2",
    "fc1": "mlp.c_fc",
    "activation": "mlp.gelu",
    "fc2": "mlp.c_proj",
    "scale2": "ls_2",
}


@known_parts.register
def _(block: ResidualAttentionBlock) -> Parts:
    return Parts(block, NAMES, block.attn.num_heads)
