"""FedLoRA: low-rank additions to the attention's matrices and a linear head, averaged.

Hu et al., LoRA (ICLR 2022), Eq. 3: W x + alpha / r B A x, in every block, under FedAvg. With
`freeze_a` it is FFA-LoRA (Sun et al., "Improving LoRA in Privacy-preserving Federated Learning",
ICLR 2024): A keeps its first values, so that the mean of the clients' products B A is the product
of the means, which it is not otherwise. Choices where the papers leave one open:

- A starts from N(0, 1 / d) and B at zero. LoRA says "random Gaussian" of A and no variance.
- A frozen A is drawn by every client from the run's seed, so that it is never sent.
- The head is trained and averaged beside them, as in FedVPT, from which the training values are;
  the papers train language models.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update, ViTTask


def initial_a(task: ViTTask) -> Tree:
    """Draw A [M, r, d] of every target, the same in every round."""
    vit, generator = task.backbone, task.at(0).generator("lora")
    shape = (vit.depth, task.options.rank, vit.width)
    drawn = {t: torch.randn(shape, generator=generator) for t in sorted(task.options.targets)}
    return {target: (a / vit.width**0.5).to(vit.device) for target, a in drawn.items()}


@fl.hookimpl
def init_server(task: ViTTask) -> Tree:
    vit, options = task.backbone, task.options
    shape = (vit.depth, vit.width, options.rank)
    b = {target: torch.zeros(shape, device=vit.device) for target in options.targets}
    params = {"head": vit.init_head(task.num_classes), "b": b}
    return {"params": params if options.freeze_a else params | {"a": initial_a(task)}}


def logits(task: ViTTask, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with A [K, M, r, d] and B [K, M, d, r] of every target."""
    options, clients = task.options, len(params["head"])
    if options.freeze_a:
        a = {t: value.expand(clients, -1, -1, -1) for t, value in initial_a(task).items()}
    else:
        a = params["a"]
    b, scale = params["b"], options.alpha / options.rank
    inserts = {
        j: {t: fl.lora(a[t][:, j - 1], b[t][:, j - 1], scale) for t in options.targets}
        for j in range(1, task.backbone.depth + 1)
    }
    return task.backbone.forward(batch.images, params["head"], inserts=inserts)


def loss(task: ViTTask, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


@fl.hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def predict(task: ViTTask, received: Tree, batch: Batch) -> Tensor:
    return logits(task, received["params"], batch)
