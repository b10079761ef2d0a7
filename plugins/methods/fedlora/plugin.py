"""FedLoRA: low-rank additions to the attention's matrices and a linear head, averaged.

The additions are those of Hu et al., LoRA (ICLR 2022), Eq. 3: W x + alpha / r B A x, in every
block. They are trained by FedAvg. The option `shared` turns the method into one of two others:

- With "b" it is FFA-LoRA (Sun et al., "Improving LoRA in Privacy-preserving Federated Learning",
  ICLR 2024). A keeps its first values. Then the mean of the clients' products B A is the product of
  the means, which it is not otherwise.
- With "a" it is FedSA-LoRA (Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated
  Learning", ICLR 2025). Both are trained, but only A is averaged. B and the head stay on the
  client.

Choices where the papers leave one open:

- A starts from N(0, 1 / d), and B at zero. LoRA says "random Gaussian" for A, without a variance.
  The released code of FedSA-LoRA uses a library that draws A from U(-1/sqrt(d), 1/sqrt(d)), with a
  third of this variance.
- The additions have no dropout. FedSA-LoRA's released configuration drops 5 % of their inputs.
- Every client draws a frozen A from the run's seed, so it is never sent.
- The head is trained together with the additions, as in FedVPT, whose training options are used.
  The papers train language models. The head is averaged, but not in FedSA-LoRA, whose released
  configuration keeps the classifier on the client. Clients are weighted by their training images,
  as in that configuration.
- In FedSA-LoRA, a client that never trained has a B and a head of zeros, and the server has no
  model.
- With `ranks`, a client of rank r uses only the first r rows of A and columns of B, and scales by
  alpha / r. It sends zeros for the others, which count in the mean. The zeros are counted as bytes.
- HetLoRA (Cho et al., "Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation
  Models", EMNLP 2024) pads and truncates in the same way. It also prunes ranks, and weights a
  client by the Frobenius norm of its product B A ("sparsity-weighted aggregation"). Neither is done
  here: clients are weighted by their images.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


def largest_rank(task: Task) -> int:
    """Return the largest rank of a client, which is the number of rows of A."""
    return max(task.options.ranks, default=task.options.rank)


def initial_a(task: Task) -> Tree:
    """Draw A [M, r, d] of every target from N(0, 1 / d), the same in every round; M blocks."""
    vit = task.backbone
    generator = task.at(0).generator("lora")
    shape = (vit.depth, largest_rank(task), vit.width)
    drawn = {t: torch.randn(shape, generator=generator) for t in sorted(task.options.targets)}
    return {target: (a / vit.width**0.5).to(vit.device) for target, a in drawn.items()}


@fl.hookimpl
def init_server(task: Task) -> Tree:
    drawn = {} if task.options.shared == "b" else {"a": initial_a(task)}
    return {"params": drawn if task.options.shared == "a" else drawn | initial_b(task)}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return initial_b(task) if task.options.shared == "a" else {}


def initial_b(task: Task) -> Tree:
    """Return zeros: B [M, d, r] of every target in the M blocks, and the head [C, d]."""
    vit = task.backbone
    shape = (vit.depth, vit.width, largest_rank(task))
    b = {target: torch.zeros(shape, device=vit.device) for target in task.options.targets}
    return {"head": vit.init_head(task.num_classes), "b": b}


def frozen_state(task: Task, clients: Cohort) -> Tree:
    """Return what clients need besides the parameters.

    Returns:
        `rows` [K, r], 1 for the rows of A that the client's rank covers, else 0; `scale` [K],
        alpha over the client's rank; and, with `shared: b`, the frozen `a` {target: [K, M, r, d]}.
        The server's model has the largest rank.
    """
    options = task.options
    count = len(clients)
    device = task.backbone.device
    most = largest_rank(task)
    known = task.data.num_clients
    ranks = torch.full((count,), most)
    if options.ranks and not clients.is_server_model:
        entries = [fl.entry_of(k, known, len(options.ranks)) for k in clients.ids]
        ranks = torch.tensor([options.ranks[entry] for entry in entries])
    rows = (torch.arange(most) < ranks[:, None]).float()
    values: Tree = {"rows": rows.to(device), "scale": (options.alpha / ranks).to(device)}
    if options.shared == "b":
        drawn = initial_a(task).items()
        values["a"] = {target: a.expand(count, -1, -1, -1) for target, a in drawn}
    return values


def logits(task: Task, params: Tree, known: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with additions alpha / r B A x to every target of every block.

    Args:
        params: `head` [K, C, d], `b` {target: [K, M, d, r]} and, unless it is frozen, `a`
            {target: [K, M, r, d]}.
        known: as `frozen_state` returns it.
    """
    a = known["a"] if task.options.shared == "b" else params["a"]
    b = params["b"]
    rows = known["rows"][..., None]
    scale = known["scale"][:, None, None, None]
    inserts = {
        j: {t: fl.lora(rows * a[t][:, j - 1], b[t][:, j - 1], scale) for t in task.options.targets}
        for j in range(1, task.backbone.depth + 1)
    }
    return task.backbone.forward(batch.images, params["head"], inserts=inserts)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, received, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    known = frozen_state(task, clients)
    start = received["params"] | clients.state
    trained = fl.train_locally(task, loss, known, clients, params=start)
    # a client uploads zeros beyond its rank
    if task.options.ranks:
        rows = known["rows"]
        params = trained.params
        masks = {"a": rows[:, None, :, None], "b": rows[:, None, None]}
        for name in masks.keys() & params.keys():
            params[name] = {t: masks[name] * value for t, value in params[name].items()}
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model and task.options.shared == "a":
        return None  # the server has neither B nor a head
    return logits(task, received["params"] | clients.state, frozen_state(task, clients), batch)
