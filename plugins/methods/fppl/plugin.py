"""FPPL: a set of prompts for each part of a stream, fused, and a head that prototypes debias.

He et al., "FPPL: An Efficient and Non-IID Robust Federated Continual Learning Framework" (arXiv
2024), for partitions with `arrivals`.

1. Each part of the stream has prompts at the first blocks. The prompts of a block are removed
   before the next block.
2. An image's prompts are a weighted sum over the parts that have arrived. The weights are a softmax
   of scaled cosines, between the image's frozen class token and a trained key of each part.
3. Clients train the newest part's prompts, all keys and the head. The loss is the cross-entropy
   among the classes that they train on now, plus InfoNCE between an image's feature and the global
   prototypes of these classes.
4. Clients upload their mean feature of every class. The server averages these to global prototypes,
   and trains the head on all of them.

Choices where the paper leaves one open, as in the released code if not said otherwise:

- In the first round in which clients train a part, its prompts start as those of the part before.
- Clients are weighted by their training images.
- The server keeps the last prototype of every client and class for good. (The released code keeps
  one for each part. This is the same if classes arrive. If domains arrive, a later part replaces
  it.)
- A label without a global prototype adds no InfoNCE to the batch's mean. (The released code takes
  the mean over only the other images.)
- An image is classified among the classes that have arrived.
- A client computes its prototypes with the model that it uploads.
- The server's batches are as large as the clients'. Its Adam starts anew in every round.
- Images are normalised for the backbone, and neither cropped nor flipped. With `training.augment`,
  training steps are augmented, but prototypes are not. (The released code does not normalise
  images. It crops and flips them at random, for prototypes too.)
- Clients are selected among those with images to train on. (The released code selects among all
  clients, and then drops those without images.)
- All clients get the parts in the same order. (With `async_task`, the released code can give each
  client another order.)
- The server trains the head on the prototypes of all parts. (With `wo_pool`, the released code can
  leave out those of earlier parts.)
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]

OUT = -1e4  # the logit of a class that is left out of a softmax


def prompted_blocks(task: Task) -> int:
    """Return M, the number of blocks that have prompts."""
    return min(task.options.blocks, task.backbone.depth)


@fl.hookimpl
def init_server(task: Task) -> Tree:
    vit = task.backbone
    parts = task.arrived.parts
    classes = task.num_classes
    shapes = {
        "prompts": (parts, prompted_blocks(task), task.options.prompts, vit.width),
        "keys": (parts, vit.width),
        "head": (classes, vit.width),
        "bias": (classes,),
    }
    params = {"scale": torch.ones(1, device=vit.device)}
    for name, shape in shapes.items():
        generator = task.generator(f"fppl: {name}")
        bound = 1.0 if name == "prompts" else vit.width**-0.5
        params[name] = fl.init_uniform(bound, *shape, generator=generator, device=vit.device)

    clients = task.data.num_clients
    device = vit.device
    return {
        "params": params,
        "constants": {
            "prototypes": torch.zeros(classes, vit.width, device=device),
            "known": torch.zeros(classes, device=device),  # 1: has a prototype
            "trained": torch.zeros(parts, device=device),  # 1: clients have trained the part
        },
        # the last prototype that each client has sent of each class, and 1 where there is one
        "uploaded": torch.zeros(clients, classes, vit.width, device=device),
        "held": torch.zeros(clients, classes, device=device),
    }


def fuse_prompts(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Return the fused prompts [K, B, M, P, d] of every image, at M blocks.

    They are the sum over the arrived parts s of w_s prompts_s, with the weights w = softmax(scale *
    cos(x, key_s)) for the frozen class token x of the image. With `fusion: false`, the part of the
    largest weight gets the weight 1. Among prompts, only the newest part's get gradients.

    Args:
        params: `prompts` [K, S, M, P, d] of S parts, `keys` [K, S, d] and `scale` [K, 1].
    """
    newest = task.arrived.part
    logits = params["scale"][..., None] * fl.cosine_similarity(batch.features, params["keys"])
    weights = logits[..., : newest + 1].softmax(-1)  # [K, B, newest + 1]
    if not task.options.fusion:
        weights = F.one_hot(weights.argmax(-1), newest + 1).to(weights.dtype)
    prompts = params["prompts"][:, : newest + 1]
    prompts = torch.cat([prompts[:, :-1].detach(), prompts[:, -1:]], 1)
    return torch.einsum("kbs,ksmpd->kbmpd", weights, prompts)


def features(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Return the features that heads classify, [K, B, d], of images with their prompts."""
    vit = task.backbone
    prompts = fuse_prompts(task, params, batch)
    tokens = vit.embed(batch.images)  # [K, B, T, d]
    for j in range(1, vit.depth + 1):
        if j <= prompted_blocks(task):
            tokens = vit.block(j, fl.insert(tokens, prompts[:, :, j - 1]))
            tokens = torch.cat([tokens[..., :1, :], tokens[..., 1 + task.options.prompts :, :]], -2)
        else:
            tokens = vit.block(j, tokens, read="pooled")
    return vit.pool(tokens)


def logits_among(params: Tree, feature: Tensor, classes: Tensor) -> Tensor:
    """Return logits [K, B, C] of features [K, B, d]; OUT for classes not among `classes` [C]."""
    logits = fl.linear(feature, params["head"], params["bias"])
    return logits.masked_fill(~classes, OUT)


def info_nce(task: Task, feature: Tensor, constants: Tree, labels: Tensor) -> Tensor:
    """Return InfoNCE [K, B] between features [K, B, d] and the global prototypes.

    It is the cross-entropy of cosine / temperature, among the classes that clients train on now and
    that have a prototype. It is 0 for an image whose class is not among them.

    Args:
        constants: `prototypes` [K, C, d], and `known` [K, C], 1 where there is one.
    """
    known = constants["known"].bool()  # [K, C]
    cosines = fl.cosine_similarity(feature, constants["prototypes"]) / task.options.temperature
    among = (known & task.arrived.training)[:, None]  # [K, 1, C]
    losses = fl.cross_entropy(cosines.masked_fill(~among, OUT), labels)
    return losses.where(among.expand_as(cosines).gather(-1, labels[..., None])[..., 0], 0)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy plus the weighted InfoNCE [K, B]; report the cross-entropy."""
    feature = features(task, params, batch)
    logits = logits_among(params, feature, task.arrived.training)
    pull = info_nce(task, feature, received["constants"], batch.labels)
    entropy = fl.cross_entropy(logits, batch.labels)
    return entropy + task.options.unified * pull, {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = dict(received["params"])
    part = task.arrived.part

    # when clients first train a part, its prompts start as those of the part before
    if part and not received["constants"]["trained"][0, part]:
        start["prompts"] = start["prompts"].clone()
        start["prompts"][:, part] = start["prompts"][:, part - 1]
    trained = fl.train_locally(task, loss, received, clients, params=start)
    prototypes, held = class_features(task, trained.params, clients)
    return fl.make_updates(trained, clients, prototypes=prototypes, held=held)


@torch.no_grad()
def class_features(task: Task, params: Tree, clients: Cohort) -> tuple[Tensor, Tensor]:
    """Return the prototypes of every client: its mean feature of each class.

    Returns:
        Prototypes [K, C, d], and a mask [K, C] with 1 where the client has images of the class.
        Without images, the prototype is zero.
    """
    total = torch.zeros(())
    count = torch.zeros(())
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        one_hot = F.one_hot(batch.labels, task.num_classes) * batch.mask[..., None]  # [K, B, C]
        total = total + one_hot.mT.float() @ features(task, params, batch)
        count = count + one_hot.sum(1)
    return total / count.clamp(min=1)[..., None], (count > 0).float()


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    # the prototypes that clients have sent in any round
    uploaded = server["uploaded"].clone()
    held = server["held"].clone()
    for update in updates:
        new = update.payload["held"].bool()
        payload = update.payload
        uploaded[update.client, new] = payload["prototypes"][new]
        held[update.client, new] = 1

    # the global prototypes: their means over clients
    total = held.sum(0)  # number of clients [C]
    trained = server["constants"]["trained"].clone()
    trained[task.arrived.part] = 1
    constants = {
        "prototypes": uploaded.sum(0) / total.clamp(min=1)[:, None],
        "known": (total > 0).float(),
        "trained": trained,
    }

    # the parameters, with a head that is fitted to the prototypes
    params = debias_head(task, fl.mean(updates, weighted=True), uploaded, held)
    return {"params": params, "constants": constants, "uploaded": uploaded, "held": held}


def debias_head(task: Task, params: Tree, uploaded: Tensor, held: Tensor) -> Tree:
    """Return the parameters with the head trained on the clients' prototypes.

    Args:
        params: the averaged parameters.
        uploaded: prototypes [N, C, d] of the N clients.
        held: [N, C], 1 where there is a prototype.
    """
    clients, labels = held.nonzero(as_tuple=True)
    inputs = uploaded[clients, labels]  # [n, d] of n prototypes
    known = held.any(0)  # [C], the classes with a prototype
    head = {name: params[name].clone().requires_grad_() for name in ("head", "bias")}
    optimizer = torch.optim.Adam([*head.values()], task.options.debias_lr)
    stream = task.generator("fppl: debiasing")
    for _ in range(task.options.debias_epochs):
        order = torch.randperm(len(labels), generator=stream)
        for rows in order.to(labels.device).split(task.training.batch_size):
            optimizer.zero_grad()
            stacked = {name: value[None] for name, value in head.items()}
            logits = logits_among(stacked, inputs[None, rows], known)[0]
            F.cross_entropy(logits, labels[rows]).backward()
            optimizer.step()
    return params | {name: value.detach() for name, value in head.items()}


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    params = received["params"]
    return logits_among(params, features(task, params, batch), task.arrived.seen)
