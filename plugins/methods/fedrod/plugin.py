"""FedRoD: a generic head, trained as if classes were balanced, and a personal head beside it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification"
(ICLR 2022), Algorithm 1 with linear personal heads. Body and generic head minimise the balanced
softmax loss (Ren et al., NeurIPS 2020), in which the logit of class c is raised by gamma log(n_c),
for n_c images of the client; the server averages them. The personal head adds its
logits to the generic ones and minimises the client's own cross-entropy; no gradient of that loss
reaches body or generic head. A client answers by the sum of both heads, the server's model by the
generic one. Choices where the papers leave one open:

- pFedPG's rows train the whole ViT; option `train` freezes all but some weights, or trains prompts
  before a frozen ViT.
- Both losses are minimised in the same steps, as Algorithm 1 alternates them; the gradient of the
  personal head is clipped by its own norm.
- Personal heads start at zero, also that of a client that never trained, which answers by the
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
    """Compute generic logits [K, B, C], and the sum of generic and personal ones.

    The gradient of the sum reaches the personal head alone.
    """
    features = fl.model_features(task, params, images)  # [K, B, d]
    generic = fl.linear(features, params["head"])
    return generic, generic.detach() + fl.linear(features.detach(), params["personal_head"])


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute balanced softmax loss plus personal cross-entropy [K, B], and report the latter."""
    generic, personal = heads(task, params, batch.images)
    shares = clients.priors[:, None]  # n_c / n: [K, 1, C]; a factor of all classes cancels
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
