"""PromptFolio: class texts are a portfolio of those of a shared and of a personal context.

Pan et al., "Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and
Method" (NeurIPS 2024). The text of class c is (1 - theta) g_c + theta l_c. Here g_c is the text
feature under the shared context, and l_c that under the client's own context, both of unit length.
Both contexts are trained. The shared one is averaged, weighted by training images. Choices, which
follow the released code where we could not read the paper:

- The mixed text is not scaled to unit length again.
- Both contexts start from N(0, 0.02²). They are drawn separately, and have the same values on all
  clients.
- A client that never trained has the first personal context. The server's model has only the shared
  context.
- The released learning rate follows a cosine of ten epochs, down and up again, which goes on
  through clients and rounds, as its optimiser does. Here the learning rate is constant, and every
  client starts a round with a fresh optimiser.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


def fresh_context(task: Task, which: str) -> Tensor:
    """Draw a context [L, d]; `which` names its random stream."""
    return fl.init_context(task, task.options.length, task.options.words, task.generator(which))


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": {"shared": fresh_context(task, "shared")}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"personal": fresh_context(task, "personal")}  # the same on all clients


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with the texts (1 - theta) g_c + theta l_c of the classes c.

    Args:
        params: the contexts `shared`, for g, and `personal`, for l; both are [K, L, d].
    """
    clip = task.backbone
    theta = task.options.theta
    contexts = torch.stack([params["shared"], params["personal"]], 1)  # [K, 2, L, d]
    shared, personal = clip.text_features(contexts, task.data.classes).unbind(1)  # [K, C, d_joint]
    return clip.logits(batch.features, (1 - theta) * shared + theta * personal)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = received["params"] | clients.state
    trained = fl.train_locally(task, loss, received, clients, params=start)
    return fl.make_updates(trained, clients, kept=["personal"])


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    if not clients.is_server_model:
        return logits(task, received["params"] | clients.state, batch)
    texts = task.backbone.text_features(received["params"]["shared"], task.data.classes)
    return task.backbone.logits(batch.features, texts)
