"""pFedMMA: adapters in both towers of a CLIP, whose middle layer the towers and clients share.

Ghiasvand et al., "pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for
Vision-Language Models" (ICLR 2026), with the adapters of MMA (Yang et al., CVPR 2024). Let x be the
input of a block. An adapter adds

    scale * up(relu(shared(relu(down(norm1(x))))))

to the output of the block. The layers `down` and `up` belong to a tower and stay on the client. The
layer `shared` serves the blocks of both towers. Only `shared` is averaged, weighted by training
images. We could read only the abstract and the released code, and follow the code:

- Adapters are in the last `blocks` blocks of each tower, or in as many as the shallower tower has.
  Blocks are paired from the last one on: 5 to 12 in a ViT-B/16.
- The gradients of the adapters are divided by `scale`, as if it were 1. Gradients that pass on to
  earlier blocks are not divided.
- Weights start from N(0, 2 / outputs) and biases at zero, with the same values on all clients. The
  weights are far from zero, but the small `scale` keeps CLIP's features near their first values.
- Texts are "a photo of a <class>.". Their words are not trained.
- A client that never trained has the first `down` and `up`. There is no server model.
- Every client starts a round with a fresh optimiser. The optimiser of the released code goes on
  through all clients and rounds, including its momentum.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


def adapted_block_count(task: Task) -> int:
    """Return S, the number of blocks of each tower that have adapters."""
    clip = task.backbone
    return min(task.options.blocks, clip.text_depth, clip.image_depth)


def fresh_layer(task: Task, name: str, outputs: int, inputs: int) -> Tree:
    """Draw the layer `name` of the S adapters, the same for all clients and rounds.

    `weight` [S, outputs, inputs] is from N(0, 2 / outputs), and `bias` [S, outputs] is zero.
    """
    count = adapted_block_count(task)
    device = task.backbone.device
    drawn = torch.randn(count, outputs, inputs, generator=task.at(0).generator(name))
    weight = (2 / outputs) ** 0.5 * drawn
    return {"weight": weight.to(device), "bias": torch.zeros(count, outputs, device=device)}


@fl.hookimpl
def init_server(task: Task) -> Tree:
    hidden = task.options.hidden
    return {"params": {"shared": fresh_layer(task, "shared", hidden, hidden)}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    clip = task.backbone
    hidden = task.options.hidden
    return {
        tower: {
            "down": fresh_layer(task, f"{tower} down", hidden, width),
            "up": fresh_layer(task, f"{tower} up", width, hidden),
        }
        for tower, width in {"text": clip.width, "image": clip.image_width}.items()
    }


def adapter_inserts(scale: float, down: Tree, shared: Tree, up: Tree) -> dict:
    """Return the inserts that add scale * up(relu(shared(relu(down(norm1(x)))))) to a block.

    The input of the block is x. The insert at "attention" reads norm1(x) and computes this term.
    The insert at "mlp" adds the term to the output.
    """
    waiting: list[Tensor] = []  # passes the term from the first insert to the second

    def read(given: Tensor, out: Tensor) -> Tensor:
        """Compute the term from what entered the attention, and leave its output as it is."""
        x = given.flatten(1, -2)  # [K, n T, d]
        for layer in (down, shared):
            x = fl.apply_linear(x, layer).relu()
        waiting.append(scale * fl.apply_linear(x, up).view_as(given))
        return out

    return {"attention": read, "mlp": lambda given, out: out + waiting.pop()}


def embed_words(task: Task, clients: Cohort) -> Tensor:
    """Return the embedded words [K, L, d] that stand before each class name."""
    return task.backbone.embed_text(task.options.words).expand(len(clients), -1, -1)


def logits(task: Task, params: Tree, context: Tensor, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with adapters in the last S blocks of both towers.

    Args:
        params: `shared`, and `down` and `up` of each tower; tensors are [K, S, ...].
        context: the embedded words [K, L, d] before the class names.
    """
    clip = task.backbone
    scale = task.options.scale
    count = adapted_block_count(task)
    # the same values, with gradients that are divided by scale
    params = fl.tensor_map(lambda v: v + (1 / scale - 1) * (v - v.detach()), params)

    def inserts(tower: str, depth: int) -> dict:
        """Return the inserts of the last S of `depth` blocks, by number of the block."""
        layers = [params[tower]["down"], params["shared"], params[tower]["up"]]
        return {
            depth - count + 1 + i: adapter_inserts(
                scale, *(fl.at_block(layer, i) for layer in layers)
            )
            for i in range(count)
        }

    images, _ = clip.image_features(batch.images, inserts=inserts("image", clip.image_depth))
    text_inserts = inserts("text", clip.text_depth)
    texts = clip.text_features(context, task.data.classes, inserts=text_inserts)
    return clip.logits(images, texts)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, received["words"], batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = received["params"] | clients.state
    known = {"words": embed_words(task, clients)}
    trained = fl.train_locally(task, loss, known, clients, params=start)
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # the server has neither `down` nor `up`
    params = received["params"] | clients.state
    return logits(task, params, embed_words(task, clients), batch)
