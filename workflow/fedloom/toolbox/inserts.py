"""Inserts: functions that methods put into the places of a block, and their trained tensors.

Each function below takes the trained tensors of K clients and returns an insert for
`backbone.forward`. An insert is a function of (what entered the place, what comes out of it), both
[K, B, T, ...]:

    inserts = {j: {"mlp": adapter(at_block(params["adapters"], i))} for i, j in enumerate(blocks)}
    logits = task.backbone.forward(batch.images, params["head"], inserts=inserts)
"""

import torch
from torch import Tensor

from fedloom.backbones.blocks import Insert
from fedloom.backbones.vit import insert, linear, replace
from fedloom.common.trees import Tree, tensor_map
from fedloom.federated.task import ViTTask


def at_block(params: Tree, index: int) -> Tree:
    """Return the tensors [K, ...] of one block, from tensors [K, S, ...] of S blocks.

    `index` is the block's position among the S blocks, from 0.
    """
    return tensor_map(lambda value: value[:, index], params)


def init_adapters(task: ViTTask, hidden: int, generator: torch.Generator) -> Tree:
    """Draw a bottleneck of width h = `hidden` for each of the backbone's M blocks.

    `down` [M, h, d] is from N(0, 1 / d). `down_bias` [M, h], `up` [M, d, h] and `up_bias` [M, d]
    are zero, so that adapters change nothing before training (Houlsby et al., Section 2.1).
    """
    vit = task.backbone
    down = torch.randn(vit.depth, hidden, vit.width, generator=generator) / vit.width**0.5
    shapes = {"down_bias": (hidden,), "up": (vit.width, hidden), "up_bias": (vit.width,)}
    zeros = {k: torch.zeros(vit.depth, *v, device=vit.device) for k, v in shapes.items()}
    return {"down": down.to(vit.device), **zeros}


def bottleneck(x: Tensor, params: Tree) -> Tensor:
    """Return up(relu(down(x))) [K, B, T, d] for tokens x.

    `params` has the tensors [K, ...] of one block (see `init_adapters`).
    """
    hidden = torch.relu(linear(x, params["down"], params["down_bias"]))
    return linear(hidden, params["up"], params["up_bias"])


def adapter(params: Tree, scale: float = 1.0) -> Insert:
    """Return a sequential adapter: it reads what comes out of its place (Houlsby et al., 2019).

    At the places "attention" and "mlp", it lies between a sub-layer and its skip connection.
    """
    return lambda given, out: out + scale * bottleneck(out, params)


def parallel_adapter(params: Tree, scale: float = 0.1) -> Insert:
    """Return a parallel adapter: it reads what entered its place (AdaptFormer, Eq. 4-6)."""
    return lambda given, out: out + scale * bottleneck(given, params)


def lora(a: Tensor, b: Tensor, scale: float) -> Insert:
    """Return a low-rank addition to a linear layer: W x + scale B A x (Hu et al., LoRA, Eq. 3).

    Its places are "q", "k", "v", "proj", "fc1" and "fc2".

    Args:
        a: A [K, r, i], for a layer with i inputs.
        b: B [K, o, r], for a layer with o outputs; zeros before training.
        scale: alpha / r in the paper.
    """
    return lambda given, out: out + scale * linear(linear(given, a), b)


def deep_prompts(tokens: Tensor, *, first: bool) -> Insert:
    """Return deep prompts (VPT-deep), P tokens behind the first token of a block.

    Their place is "input". In the text tower of a CLIP they are a context in front of the class
    name.

    Args:
        tokens: the prompts [K, P, d].
        first: True for the first block with prompts, where they are inserted. At later blocks they
            replace the P tokens that the prompts of the block before have become.
    """
    if first:
        return lambda given, out: insert(out, tokens)
    return lambda given, out: replace(out, tokens)
