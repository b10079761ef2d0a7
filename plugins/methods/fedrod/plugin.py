"""FedRoD: a generic head, trained as if classes were balanced, and a personal head beside it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification"
(ICLR 2022), Algorithm 1 with linear personal heads.

1. The body and the generic head minimise the balanced softmax loss (Ren et al., NeurIPS 2020). This
   loss raises the logit of class c by gamma log(n_c), where n_c is the client's number of images of
   the class. The server averages both.
2. The personal head adds its logits to the generic ones, and minimises the client's own
   cross-entropy. No gradient of this loss reaches the body or the generic head.
3. A client answers with the sum of both heads, and the server's model with the generic head.

Choices where the papers leave one open:

- pFedPG's rows train the whole ViT. The option `train` freezes all weights but some, or trains
  prompts before a frozen ViT.
- Both losses are minimised in the same steps, where Algorithm 1 alternates between them. The
  gradient of the personal head is clipped by its own norm.
- Personal heads start at zero. A client that never trained has such a head, and so answers with the
  generic head. The variant with a hypernetwork for personal heads is left out.
- The reported loss is that of the personal answer.

There is no official code.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fl.init_model(task)}  # body and generic head


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"personal_head": task.backbone.init_head(task.num_classes)}  # [C, d]


def heads(task: Task, params: Tree, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the generic logits [K, B, C], and the sum of generic and personal logits [K, B, C].

    The gradient of the sum reaches only the personal head.
    """
    features = fl.model_features(task, params, images)  # [K, B, d]
    generic = fl.linear(features, params["head"])
    return generic, generic.detach() + fl.linear(features.detach(), params["personal_head"])


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the balanced softmax loss plus the personal cross-entropy [K, B].

    The balanced softmax loss is the cross-entropy of the generic logits plus gamma log(n_c). Only
    the personal cross-entropy is reported.
    """
    generic, personal = heads(task, params, batch.images)
    shares = clients.priors[:, None]  # n_c / n [K, 1, C]; 1 / n cancels in the softmax
    raised = generic + task.options.gamma * shares.log() if task.options.gamma else generic
    entropy = fl.cross_entropy(personal, batch.labels)
    return fl.cross_entropy(raised, batch.labels) + entropy, {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = received["params"] | clients.state
    apart = ("personal_head",)
    trained = fl.train_locally(task, loss, received, clients, params=start, clip_apart=apart)
    return fl.make_updates(trained, clients, kept=["personal_head"])


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    generic, personal = heads(task, received["params"] | clients.state, batch.images)
    return generic if clients.is_server_model else personal  # [K, B, C]
