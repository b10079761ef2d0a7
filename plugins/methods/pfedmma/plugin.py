"""pFedMMA: adapters in both towers of a CLIP, whose middle layer the towers and clients share.

Ghiasvand et al., "pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for
Vision-Language Models" (ICLR 2026), on the adapters of MMA (Yang et al., CVPR 2024). Beside the
attention and the MLP of a block, which reads x, an adapter adds

    scale * up(relu(shared(relu(down(norm1(x))))))

to the block's output. Layers `down` and `up` are of a tower, and stay with the client; `shared` is
one for both towers' blocks, and alone is averaged, weighted by training images. We could read the
abstract and the released code, and follow the code:

- Adapters are in the last `blocks` blocks of either tower, where the shallower has as many, and
  pairs count from the last: 5 to 12 in a ViT-B/16.
- Gradients of the adapters are divided by `scale`, as if it were 1; what passes on to earlier
  blocks is not.
- Weights start from N(0, 2 / outputs), biases at zero, alike on all clients and far from zero: the
  small `scale` keeps CLIP's features near their start.
- Texts are "a photo of a <class>.", whose words are not trained.
- A client that never trained has the first `down` and `up`; there is no server model.
- Every client starts a round with a fresh optimiser; that of the released code, momentum included,
  goes on through all clients and rounds.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


def adapted(task: Task) -> int:
    """Return S, the number of blocks with adapters of each tower."""
    clip = task.backbone
    return min(task.options.blocks, clip.text_depth, clip.image_depth)


def fresh_layer(task: Task, name: str, outputs: int, inputs: int) -> Tree:
    """Draw a layer of every adapter: weight [S, outputs, inputs] and bias [S, outputs]."""
    count = adapted(task)
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


def around(scale: float, down: Tree, shared: Tree, up: Tree) -> dict:
    """Return the inserts of a block: one reads norm1(x), the other adds what came of it."""
    waiting: list[Tensor] = []

    def read(given: Tensor, out: Tensor) -> Tensor:
        x = given.flatten(1, -2)  # [K, n T, d]
        for layer in (down, shared):
            x = fl.apply_linear(x, layer).relu()
        waiting.append(scale * fl.apply_linear(x, up).view_as(given))
        return out

    return {"attention": read, "mlp": lambda given, out: out + waiting.pop()}


def words(task: Task, clients: Cohort) -> Tensor:
    """Return what stands before every class's name [K, L, d]."""
    return task.backbone.embed_text(task.options.words).expand(len(clients), -1, -1)


def logits(task: Task, params: Tree, context: Tensor, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] of layers [K, S, ...] and the embedded words [K, L, d]."""
    clip = task.backbone
    scale = task.options.scale
    count = adapted(task)
    # the same values, with gradients that are divided by scale
    params = fl.tensor_map(lambda v: v + (1 / scale - 1) * (v - v.detach()), params)

    def inserts(tower: str, depth: int) -> dict:
        layers = [params[tower]["down"], params["shared"], params[tower]["up"]]
        return {
            depth - count + 1 + i: around(scale, *(fl.at_block(layer, i) for layer in layers))
            for i in range(count)
        }

    images, _ = clip.image_features(batch.images, inserts=inserts("image", clip.image_depth))
    of_texts = inserts("text", clip.text_depth)
    texts = clip.text_features(context, task.data.classes, inserts=of_texts)
    return clip.logits(images, texts)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, received["words"], batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = received["params"] | clients.state
    known = {"words": words(task, clients)}
    trained = fl.train_locally(task, loss, known, clients, params=start)
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # it has no adapter's outer layers
    params = received["params"] | clients.state
    return logits(task, params, words(task, clients), batch)
