"""FedMaPLe: prompts in both towers of a CLIP, those of images made from those of the text.

Khattak et al., "MaPLe: Multi-modal Prompt Learning" (CVPR 2023), Section 3.2, trained by FedAvg.
Text prompts P_1 ... P_J replace the context at the input of the first J blocks of the text tower.
In the image tower, image prompts F_j(P_j) follow the class token at the first J blocks, where each
F_j is a linear layer. Later blocks carry on what the prompts have become. Prompts and layers are
trained and averaged, weighted by training images. Choices:

- J = 9 and prompts of two tokens, as in the paper. J is at most the depth of the shallower tower.
- The context starts from the embedding of "a photo of a", cut to its length. Deeper prompts start
  from N(0, 0.02²). The layers start as torch draws linear layers, from U(-1, 1) / sqrt(d).
- `variant: released` differs in three ways. The first image prompts are beside the patches from the
  start, so that they pass the norm before the image tower's first block. The words of "a photo of
  a" that the context has no room for stay before every class's name, untrained: with two tokens,
  these are "of a". Layers 2 to J start with the same values.
- MaPLe reports the epochs of a whole training. Here a round is one epoch, as in FedPHA's studies.
  Momentum and weight decay are those of CoOp, on whose code MaPLe's authors build.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    clip = task.backbone
    length = task.options.length
    fl.check_lengths(task, [length], "")
    depth = min(task.options.depth, clip.text_depth, clip.image_depth)
    drawn = [clip.init_context(length, task.generator("text", j)) for j in range(depth)]
    text = torch.stack(drawn)  # [J, L, d]
    if task.options.words:
        known = clip.embed_text(task.options.words)[:length]
        text[0, : len(known)] = known

    # the couplings F_j: linear layers from width d (text tower) to width d' (image tower)
    generator = task.generator("coupling")
    draw = partial(fl.init_linear, clip.width, generator=generator, device=clip.device)
    weight = draw(depth, clip.image_width, clip.width)  # [J, d', d]
    bias = draw(depth, clip.image_width)  # [J, d']
    if task.options.variant == "released":
        weight[1:] = weight[1:2]
        bias[1:] = bias[1:2]
    return {"params": {"text": text, "coupling": weight, "coupling_bias": bias}}


def texts_after_context(task: Task) -> Sequence[str]:
    """Return the text that follows the context, for each of the C classes.

    It is the class name. With `variant: released`, the words that the context has no room for
    stand before the name.

    Raises:
        FedLoomError: the context ends within a word.
    """
    options = task.options
    classes = task.data.classes
    if options.variant == "paper":
        return classes

    # the number of tokens of the first n words, for each n
    words = options.words.split()
    parts = [" ".join(words[:n]) for n in range(len(words) + 1)]
    sizes = [len(task.backbone.embed_text(part)) for part in parts]

    # the words that the context has no room for
    if options.length >= sizes[-1]:
        return classes
    if options.length not in sizes:
        raise fl.FedLoomError(
            f"fedmaple: options.length must end with a word of options.words, '{options.words}', "
            f"got {options.length}; its words end after {sizes[1:]} tokens"
        )
    rest = " ".join(words[sizes.index(options.length) :])
    return [f"{rest} {name}" for name in classes]


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with prompts in the first J blocks of both towers.

    Args:
        params: `text`, the prompts P_j [K, J, L, d]; `coupling` [K, J, d', d] and `coupling_bias`
            [K, J, d'], the layers F_j.
    """
    clip = task.backbone
    text = params["text"]
    image = fl.linear(text, params["coupling"], params["coupling_bias"])  # F_j(P_j) [K, J, L, d']
    if task.options.variant == "released":
        image = torch.cat([clip.first_norm(image[:, :1]), image[:, 1:]], 1)
    blocks = range(1, text.shape[1] + 1)
    text_inserts = {
        j: {"input": fl.deep_prompts(text[:, j - 1], first=False)} for j in blocks if j > 1
    }
    image_inserts = {j: {"input": fl.deep_prompts(image[:, j - 1], first=j == 1)} for j in blocks}
    classes = clip.text_features(
        text[:, 0], texts_after_context(task), inserts=text_inserts
    )  # [K, C, d_joint]
    images, _ = clip.image_features(batch.images, inserts=image_inserts)  # [K, B, d_joint]
    return clip.logits(images, classes)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return logits(task, received["params"], batch)
