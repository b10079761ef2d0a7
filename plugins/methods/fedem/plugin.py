"""FedEM: every client mixes the same few models with its personal weights.

Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions" (NeurIPS 2021),
Algorithm 1. A client's data are a mixture of M distributions, and each distribution has a model
theta_m. In a round, a client receives the models, has kept its weights pi, and makes two steps:

- E-step: compute how responsible model m is for image i, q_im ~ pi_m exp(-loss of theta_m on i).
- M-step: set pi_m to the mean of q_im over the client's images, and train each model on the losses
  weighted by q_im.

Then the server averages every model, weighted by training images. A client answers with the
mixture, under pi, of the models' probabilities. Choices where the papers leave one open:

- SGPT does not say what its row of FedEM trains. Here it is the whole ViT, as in the paper. The
  option `train` freezes all weights but some, or trains prompts before a frozen ViT. M is 3, as in
  the paper.
- All models start from the same backbone and the same head of zeros, like all methods here, so EM
  could not tell them apart. Therefore the weights pi of a client start at random, drawn uniformly
  from all mixtures. With `head: drawn`, as in the paper's experiments, pi starts uniform instead.
  Each model then draws its own head, as torch.nn.Linear draws its weights.
- All models are trained in the same steps, on the sum of their weighted losses. The gradient of
  each model is clipped by its own norm.
- pi stays on the client. It is estimated again before a test, on the models of that round, by
  `newcomer_steps` steps of EM that leave the models as they are. This is how the paper treats
  clients that never trained, which start with a uniform pi. The server's model has no data, so its
  pi is uniform.
- The released code averages over all clients. Clients that were not sampled count with the models
  that they received, which slows the server down. It tests with the pi of a client's last round.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    drawn = task.options.head == "drawn"
    zero = fl.init_model(task)
    numbers = range(task.options.components)
    models = [zero | ({"head": fl.random_head(task, m)} if drawn else {}) for m in numbers]
    return {"params": fl.tensor_map(torch.clone, fl.stack(models))}  # {name: [M, ...]}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    if task.options.head == "drawn":
        return uniform_mixture(task)
    draw = torch.rand(task.options.components, generator=task.generator("weights", client))
    # exponential draws; divided by their sum, they are uniform over all mixtures
    parts = -draw.clamp(min=1e-6).log()
    return {"weights": (parts / parts.sum()).to(task.backbone.device)}  # pi


@fl.hookimpl
def unseen_client_state(task: Task) -> Tree:
    return uniform_mixture(task)


def uniform_mixture(task: Task) -> Tree:
    """Return the personal state with uniform weights pi [M]."""
    count = task.options.components
    return {"weights": torch.full((count,), 1 / count, device=task.backbone.device)}  # pi


def unstack_models(models: Tree) -> dict[str, Tree]:
    """Split the models {name: [K, M, ...]} into M trees {name: [K, ...]}, by number."""
    count = models["head"].shape[1]
    return {str(m): fl.tensor_map(lambda v, m=m: v[:, m], models) for m in range(count)}


def stack_models(models: dict[str, Tree]) -> Tree:
    """Join M trees {name: [K, ...]} to one {name: [K, M, ...]}, as `unstack_models` split them."""
    return fl.tensor_map(lambda *each: torch.stack(each, 1), *models.values())


def logits(task: Task, models: dict[str, Tree], batch: Batch) -> Tensor:
    """Compute the logits [K, B, M, C] of every model for every image."""
    return torch.stack([fl.model_logits(task, own, batch) for own in models.values()], 2)


def losses(task: Task, models: dict[str, Tree], batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B, M] of every model on every image."""
    each = logits(task, models, batch).unbind(2)
    return torch.stack([fl.cross_entropy(own, batch.labels) for own in each], -1)


@torch.no_grad()
def losses_by_row(task: Task, models: Tree, clients: Cohort) -> Tensor:
    """Compute the received models' losses on the clients' training images.

    Returns:
        [N, M]: row of the image store, model. Rows of other clients' images are zero.
    """
    table = models["head"].new_zeros(len(task.data.store), task.options.components)
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        table[batch.rows[batch.mask]] = losses(task, unstack_models(models), batch)[batch.mask]
    return table


def responsibilities(weights: Tensor, values: Tensor) -> Tensor:
    """Compute q_im ~ pi_m exp(-loss_im) [K, B, M] (E-step) from pi [K, M] and losses [K, B, M]."""
    return (weights.clamp(min=1e-12).log()[:, None] - values).softmax(-1)


def m_step(task: Task, clients: Cohort, weights: Tensor, table: Tensor) -> Tensor:
    """Return the next pi [K, M]: the mean of q over each client's training images.

    Args:
        weights: pi [K, M].
        table: the models' losses [N, M], as `losses_by_row` returns them.
    """
    own = []
    for k, client in enumerate(clients.ids):
        rows = torch.from_numpy(task.data.train[client]).to(table.device)
        own.append(responsibilities(weights[k : k + 1], table[rows][None]).mean(1))
    return torch.cat(own)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    table = losses_by_row(task, received["params"], clients)  # [N, M]

    def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
        """Compute the sum over models of q_im times the loss [K, B] (M-step); q is constant."""
        q = responsibilities(clients.state["weights"], table[batch.rows])
        return (q * losses(task, params, batch)).sum(-1)  # [K, B]

    models = unstack_models(received["params"])
    trained = fl.train_locally(
        task, loss, received, clients, params=models, clip_apart=tuple(models)
    )
    trained.params = stack_models(trained.params)
    weights = m_step(task, clients, clients.state["weights"], table)
    return fl.make_updates(trained, clients, state={"weights": weights})


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    table = losses_by_row(task, received["params"], clients)
    weights = clients.state["weights"]
    for _ in range(task.options.newcomer_steps):
        weights = m_step(task, clients, weights, table)
    return {"weights": weights}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    chances = logits(task, unstack_models(received["params"]), batch).log_softmax(
        -1
    )  # [K, B, M, C]
    weights = clients.state["weights"].clamp(min=1e-12).log()[:, None, :, None]
    return (weights + chances).logsumexp(2)  # log of the mixture [K, B, C]
