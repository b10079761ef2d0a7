"""FedTPG: the context before the class names is generated from the class names.

Qiu et al., "Federated Text-driven Prompt Generation for Vision-Language Models" (ICLR 2024).
Clients share a network. From the text features T [n, d'] of n class names, it makes a context of m
tokens: m learned queries read T by cross-attention, and an MLP follows (Section 3.2). A client
trains the network on the task of its own classes: it gets only their names, and the loss is among
these classes. The server averages the networks (Algorithm 1). To predict among other classes, the
network gets the names of those classes. Choices, which follow the released code where the paper
leaves one open:

- Queries and T pass layer norms. Keys, values and queries have biases. The attention has no skip
  connection. Its output goes through x + MLP(x). The MLP is a layer norm, a linear layer to 8 d, a
  gate (one half times the GELU of the other half) and a linear layer to d. The released
  configuration has no self-attention after it, so there is none here.
- T are the features of the bare names. They have unit length.
- The network is drawn as torch draws its layers, and the queries from N(0, 0.02²).
- Every round starts with a fresh optimiser. A client of the released code keeps its own optimiser
  and its momentum. The cosine schedule there counts the rounds that the client took part in.
- With `names: all`, clients train among all classes, with the context of all names.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


def name_features(task: Task) -> Tensor:
    """Compute the features T [C, d'] of the bare class names."""
    return task.backbone.zero_shot(task.data.classes, ["{}"])


@fl.hookimpl
def init_server(task: Task) -> Tree:
    clip = task.backbone
    options = task.options
    fl.check_lengths(task, [options.length], "")
    d = clip.width
    d_text = name_features(task).shape[1]
    if d % options.heads:
        raise fl.FedLoomError(
            f"fedtpg: options.heads: {options.heads} does not divide the text tower's width {d}"
        )
    generator = task.generator("network")
    queries = clip.init_context(options.length, generator)  # [m, d]
    network = fl.init_cross_attention(d, d_text, generator, clip.device)
    return {"params": {"queries": queries, **network}}


def generate(params: Tree, names: Tensor, given: Tensor, heads: int) -> Tensor:
    """Return the context [K, m, d] that each client's network makes from class names.

    Args:
        names: text features T of all class names [C, d'].
        given: bool [K, C], the names that a client's network reads.
        heads: number of heads of the attention.
    """
    text = names.expand(len(given), -1, -1)  # [K, C, d']
    return fl.read_tokens(params, params["queries"], text, given, heads)


def logits(task: Task, params: Tree, names: Tensor, given: Tensor, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] of images for all classes, under each client's generated context."""
    context = generate(params, names, given, task.options.heads)
    text = task.backbone.text_features(context, task.data.classes)  # [K, C, d']
    return task.backbone.logits(batch.features, text)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] among the client's own classes, or all (`names: all`)."""
    given = torch.ones_like(clients.priors, dtype=torch.bool)
    if task.options.names == "own":
        given = clients.priors > 0  # [K, C]
    scores = logits(task, params, received["names"][0], given, batch)
    return fl.cross_entropy_among(scores, batch.labels, given)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    known = {**received, "names": name_features(task).expand(len(clients), -1, -1)}
    trained = fl.train_locally(task, loss, known, clients)
    metrics = dict[str, Tensor]()
    if task.options.names == "own":
        metrics["guessing_loss"] = fl.guessing_losses(clients.priors > 0)
    return fl.make_updates(trained, clients, metrics=metrics)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    shape = len(batch.rows), task.num_classes
    everything = torch.ones(shape, dtype=torch.bool, device=batch.rows.device)
    return logits(task, received["params"], name_features(task), everything, batch)
