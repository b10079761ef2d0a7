"""FedAvg: the clients train all weights of the backbone and a linear head, and the server averages.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS
2017), Algorithm 1, of a pretrained ViT as in pFedPG's Tables 1-3. Choices where pFedPG leaves one
open:

- Clients are weighted by their training images; `weighted: false` weighs all alike.
- pFedPG reports no learning rate for full fine-tuning. Batch, epochs and weight decay are those of
  its Section 4.1.3; lr 0.03 with momentum 0.9 and clipping at 1 are ours.
- With `mu` > 0 each client adds mu/2 times its squared distance from what it received (FedProx: Li
  et al., MLSys 2020, Eq. 2).
- Option `train` freezes all weights but some: `bias$` is BitFit (Ben Zaken et al., ACL 2022). What
  is frozen is neither sent nor averaged.
"""

from torch import Tensor

from fedloom.toolbox import (
    Batch,
    Cohort,
    FedLoomError,
    Tree,
    Update,
    ViTTask,
    cross_entropy,
    hookimpl,
    make_updates,
    mean,
    squared_distance,
    train_locally,
)


@hookimpl
def init_server(task: ViTTask) -> Tree:
    pattern = task.options.train
    weights = task.backbone.init_weights(pattern)  # {name: [...]}
    if not weights:
        raise FedLoomError(f"fedavg: option train: no weight has '{pattern}' in its name")
    return {"params": {"head": task.backbone.init_head(task.num_classes), "weights": weights}}


def loss(
    task: ViTTask, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute cross-entropy plus proximal term [K, B], and report the cross-entropy."""
    logits = task.backbone.forward(batch.images, params["head"], weights=params["weights"])
    entropy = cross_entropy(logits, batch.labels)  # [K, B]
    if not task.options.mu:
        return entropy, {}
    penalty = task.options.mu / 2 * squared_distance(params, received["params"])  # [K]
    return entropy + penalty[:, None], {"reported_loss": entropy}


@hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    return make_updates(train_locally(task, loss, received, clients), clients)


@hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    return {"params": mean(updates, task.options.weighted)}


@hookimpl
def predict(task: ViTTask, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    params = received["params"]
    return task.backbone.forward(batch.images, params["head"], weights=params["weights"])
