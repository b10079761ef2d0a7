"""DP-FPL: a shared and a personal context, whose gradients are clipped and get Gaussian noise.

Tran et al., "Privacy-Preserving Personalized Federated Prompt Learning for Multimodal Large
Language Models" (ICLR 2025). The context of a client is the sum of a shared one, p_G, and its own,
p_L. At each step, p_L is decomposed into u v + residual, where u and v have low rank. There are two
kinds of privacy:

1. Local privacy: the gradients of u and v are each clipped and get noise. The gradient of p_L is
   computed from them.
2. Global privacy: each client's gradient of p_G is clipped, and the mean over clients gets noise.

We could read only the abstract and the released code, and follow the code:

- u [L, r] is an orthonormal basis of p_L V for a random V from N(0, 1), and v^T is one of p_L^T u.
  Both are computed by Gram-Schmidt. du and dv are the noisy gradients divided by 10. The gradient
  of p_L is du v + u dv + u u^T du v.
- The noise has the standard deviation sigma S / b. Here S is the norm to which gradients are
  clipped, and b is the number of images in a batch. For T rounds and delta = 1e-5, sigma is sqrt(T
  log(1 / delta)) / epsilon. So `epsilon` counts each round once. A privacy accountant would not
  confirm this bound: what is clipped is the mean gradient of a batch, which one image may change by
  more than S / b.
- Mean and noise of the server's step come together. Each of the N clients of a round adds noise to
  its clipped gradient of p_G, with a standard deviation that is sqrt(N) times smaller. The noise of
  the mean then has that of the paper, sigma S / (b N).
- The released code averages the gradients of p_G in each step. Here a client makes all steps of a
  round alone, as in FedAvg, and starts a round with a fresh optimiser. With one step a round
  (`training: {local_steps: 1}`), the gradients are those of the released code, but the steps are
  still different. The code has one SGD optimiser with momentum, which goes on through all clients
  and rounds. It moves every client's p_L by the last client's gradient. The paper's numbers come
  from such steps. `variant: released` has them, one a round (see released.py).
- All clients have equal weights in the mean. Both contexts start from N(0, 0.02²), with the same
  values on all clients.
- A client that never trained has the first p_L. The server's model has only p_G.
"""

import math

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from . import released
from .options import Options

Task = fl.CLIPTask[Options]

DELTA = 1e-5
DIVISOR = 10  # the gradients of u and v are divided by it


def fresh_context(task: Task, which: str) -> Tensor:
    """Draw a context [L, d]; `which` names its random stream."""
    return fl.init_context(task, task.options.length, task.options.words, task.generator(which))


@fl.hookimpl
def init_server(task: Task) -> Tree:
    options = task.options
    if options.rank > options.length:
        raise fl.FedLoomError(
            f"dp_fpl: options.rank must be at most options.length, {options.length}, got "
            f"{options.rank}; lower it"
        )
    shared = fresh_context(task, "shared")
    if options.variant == "released":
        return released.init_server(task, shared, fresh_context(task, "personal"))
    return {"params": {"shared": shared}}


@fl.hookimpl
def download(task: Task, server: Tree, client: int) -> Tree:
    if task.options.variant == "released":
        return released.download(task, server, client)
    return {"params": server["params"]}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    if task.options.variant == "released":
        return {}  # the server keeps the personal contexts
    return {"personal": fresh_context(task, "personal")}  # the same on all clients


def orthonormal_basis(x: Tensor) -> Tensor:
    """Return an orthonormal basis [K, n, r] of the space that the columns of x [K, n, r] span.

    The columns are orthogonalised in turn, by Gram-Schmidt.
    """
    columns: list[Tensor] = []
    for column in x.unbind(-1):
        for known in columns:
            column = column - (known * column).sum(-1, keepdim=True) * known
        columns.append(column / column.norm(dim=-1, keepdim=True))
    return torch.stack(columns, -1)


def factors(context: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors u [K, L, r] and v [K, r, d] of contexts p_L [K, L, d].

    u is an orthonormal basis of p_L V for the random matrix V = `start` [K, d, r], and v^T is an
    orthonormal basis of p_L^T u.
    """
    u = orthonormal_basis(context @ start)
    return u, orthonormal_basis(context.mT @ u).mT


def clip_gradients(gradient: Tensor, limit: float) -> Tensor:
    """Return gradients [K, n, m], each client's scaled down to norm `limit` if it is longer."""
    norms = gradient.flatten(1).norm(dim=1)
    return gradient * fl.clip_factors(norms, limit)[:, None, None]


def noise_scale(task: Task) -> float:
    """Return the standard deviation sigma S / b of the noise on a client's gradient.

    sigma is sqrt(T log(1 / delta)) / epsilon, over T rounds. Without privacy (`epsilon: 0`) the
    noise is 0.
    """
    options = task.options
    training = task.training
    if options.epsilon == 0:
        return 0.0
    sigma = math.sqrt(training.rounds * math.log(1 / DELTA)) / options.epsilon
    return sigma * options.limit / training.batch_size


def random_number_counts(task: Task) -> list[int]:
    """Return how many random numbers a step needs: for V, and for the noise on u, v and p_G."""
    length = task.options.length
    rank = task.options.rank
    width = task.backbone.width
    return [width * rank, length * rank, rank * width, length * width]


def draw_random_numbers(task: Task, clients: Cohort) -> Tensor:
    """Draw the random numbers [K, S, D] of all S steps of a round from N(0, 1).

    A step needs D numbers, the sum of `random_number_counts`. Rows of zeros fill up clients with
    fewer steps.
    """
    training = task.training
    rows = []
    for client, images in zip(clients.ids, clients.num_examples, strict=True):
        epoch = math.ceil(images / training.batch_size)
        steps = training.local_steps or training.epochs * epoch
        generator = task.generator("noise", client)
        rows.append(torch.randn(steps, sum(random_number_counts(task)), generator=generator))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(task.backbone.device)


def noisy_context(task: Task, params: Tree, numbers: Tensor) -> Tensor:
    """Return the contexts p_G + p_L [K, L, d], and make their gradients private.

    Hooks replace the gradients before these reach the parameters. The gradient of p_G is clipped
    and gets noise. The gradient of p_L is du v + u dv + u u^T du v, where du and dv are the clipped
    and noisy gradients of u and v, divided by 10.

    Args:
        params: `shared`, p_G [K, L, d], and `personal`, p_L [K, L, d].
        numbers: the random numbers of this step [K, D] (see `random_number_counts`).
    """
    rank = task.options.rank
    limit = task.options.limit
    noise = noise_scale(task)
    start, noise_u, noise_v, noise_shared = numbers.split(random_number_counts(task), 1)
    # copies, because a hook on a parameter itself would stay there for all later steps
    shared = params["shared"] * 1
    personal = params["personal"] * 1
    with torch.no_grad():
        u, v = factors(personal, start.unflatten(1, (-1, rank)))

    def make_private(gradient: Tensor, normal: Tensor, noise: float) -> Tensor:
        """Return the clipped gradient [K, n, m] plus noise; the gradient itself without privacy.

        `normal` has draws from N(0, 1), and `noise` is the standard deviation of the noise.
        """
        if not noise:
            return gradient
        return clip_gradients(gradient, limit) + noise * normal.view_as(gradient)

    def private_personal_gradient(gradient: Tensor) -> Tensor:
        """Return the gradient of p_L [K, L, d], from the exact one [K, L, d]."""
        du = make_private(gradient @ v.mT, noise_u, noise) / DIVISOR
        dv = make_private(u.mT @ gradient, noise_v, noise) / DIVISOR
        return du @ v + u @ dv + u @ (u.mT @ (du @ v))

    # each of the round's N clients adds its part of the noise to the mean of p_G
    share = noise / max(1, len(task.selected)) ** 0.5
    shared.register_hook(lambda gradient: make_private(gradient, noise_shared, share))
    personal.register_hook(private_personal_gradient)
    return shared + personal


def logits(task: Task, context: Tensor, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] of contexts [K, L, d]."""
    texts = task.backbone.text_features(context, task.data.classes)
    return task.backbone.logits(batch.features, texts)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy [K, B] of private contexts.

    The counter `step` [K] says which row of `received["numbers"]` this step uses. Each image adds 1
    divided by the number of images, so a batch adds 1.
    """
    step = params["counters"]["step"].round().long()  # [K]
    numbers = received["numbers"].take_along_dim(step[:, None, None], 1)[:, 0]  # [K, D]
    entropy = fl.cross_entropy(
        logits(task, noisy_context(task, params, numbers), batch), batch.labels
    )
    images = batch.mask.sum(1, keepdim=True)
    return entropy, {"step": (1 / images).expand_as(entropy)}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    known = {"numbers": draw_random_numbers(task, clients)}
    start = received["params"] | clients.state
    counters = {"step": torch.zeros(len(clients), device=task.backbone.device)}
    if task.options.variant == "released":
        return released.upload(task, loss, received | known, clients, counters)
    trained = fl.train_locally(task, loss, known, clients, params=start, counters=counters)
    return fl.make_updates(trained, clients, kept=["personal"])


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    if task.options.variant == "released":
        return released.aggregate(task, server, updates)
    return {"params": fl.mean(updates)}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    context = received["params"]["shared"]
    if not clients.is_server_model:
        context = context + (received["params"] | clients.state)["personal"]
    return logits(task, context, batch)
