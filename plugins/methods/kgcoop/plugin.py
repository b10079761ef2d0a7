"""FedKgCoOp: PromptFL whose class texts are held near those of a hand-written prompt.

Yao et al., "Visual-Language Prompt Tuning with Knowledge-guided Context Optimization" (CVPR 2023),
Eq. 5-6. It is CoOp (Zhou et al., IJCV 2022) with one context for all classes. Its loss adds lambda
(`weight`) times the distance between the learned texts and hand-written ones.

The authors train on one machine. Under FedAvg, weighted by training images, it is FedKgCoOp, a
baseline of FedTPG (ICLR 2024). With `averaged: false`, every client trains a context alone, and
nothing is sent. This is KgCoOp, or with `weight: 0` CoOp itself. Choices:

- The paper's Eq. 5 is the squared distance of two texts. The released code takes 1 - cosine, which
  is half of it for features of unit length. Here, as in the code, lambda is the factor of 1 -
  cosine. Its value is 8 in the paper and in the released script.
- The cross-entropy and the distance are over all classes of the data set. In FedTPG's released code
  they are over the classes of the client.
- The context starts from the words "a photo of a", as in the released code. For some data sets, the
  code has another hand-written prompt (`template`).
- A round is one epoch. The released script trains 100 epochs, the first at a learning rate of 1e-5,
  which is left out here. A client starts each round with a fresh optimiser.
- Without averaging, a client that never trained has the first context, and there is no server
  model.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


def fresh_context(task: Task) -> Tree:
    """Return the parameters before training: a fresh context [L, d]."""
    options = task.options
    context = fl.init_context(task, options.length, options.words, task.generator("context"))
    return {"context": context}  # [L, d]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fresh_context(task) if task.options.averaged else {}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {} if task.options.averaged else fresh_context(task)  # the same on all clients


def texts(task: Task, params: Tree) -> Tensor:
    """Compute the text features [K, C, d_joint] of the classes under contexts [K, L, d]."""
    return task.backbone.text_features(params["context"], task.data.classes)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy plus lambda times the distance [K, B] (Eq. 6).

    The distance is 1 - cosine between the learned and the hand-written text of a class, averaged
    over classes (Eq. 5). Only the cross-entropy is reported.
    """
    learned = texts(task, params)
    entropy = fl.cross_entropy(task.backbone.logits(batch.features, learned), batch.labels)
    distance = (1 - (learned * received["written"]).sum(-1)).mean(-1)  # [K], Eq. 5
    return entropy + task.options.weight * distance[:, None], {"reported_loss": entropy}  # Eq. 6


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    written = task.backbone.zero_shot(task.data.classes, [task.options.template])  # [C, d_joint]
    known = {**received, "written": written.expand(len(clients), -1, -1)}
    start = clients.state or received["params"]
    trained = fl.train_locally(task, loss, known, clients, params=start)
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model and not task.options.averaged:
        return None  # without averaging there is no server model
    learned = texts(task, clients.state or received["params"])
    return task.backbone.logits(batch.features, learned)
