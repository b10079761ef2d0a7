"""TRIP: every image mixes the contexts of experts, by how many of its patches each expert gets.

Gong et al., "Token-Level Prompt Mixture with Parameter-Free Routing for Federated Domain
Generalization" (IEEE Transactions on Image Processing 2026). Clients share E contexts, one per
expert. The patches of an image are clustered, and fixed keys assign each cluster to one expert
(`routing`). The image's context is the mean of the experts' contexts, weighted by their numbers of
patches. The loss adds the cross-entropy with the class probabilities under hand-written texts. We
could read only the abstract and the released code, and follow the code:

- A cluster takes at most T / E patches in training, and twice as many in tests. Further patches
  count nowhere.
- Keys are orthogonal, are drawn once, and are never trained.
- Contexts are drawn from N(0, 0.02²), and all experts start with the same one. In the code, each
  expert's parameter is made from the same tensor, which is copied only when the model moves to the
  GPU. Experts then part because their gradients differ. With `same_start: false`, each expert draws
  its own context, as the lines of the code seem to say. The abstract does not say which is meant.
  The paper's numbers are those of the code.
- Clients are weighted by their training images. Tests use a mean of the server's contexts over
  rounds. Round t has the density of Beta(0.2, 0.2) at (t + 0.5) / (rounds + 1) as its weight. The
  initial contexts have the weight of round 0.

Choices:

- Patches are those of the joint space and have unit length. The code has the image tower's tokens
  before the projection.
- With `training.augment`, an augmented image keeps the experts' shares of the original image.
- The first centroids are the same E positions in every image. The code draws them once for each
  image, for all rounds. There are no more clusters than patches.
"""

import torch
from scipy.stats import beta
from torch import Tensor, nn

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from . import routing
from .options import Options

Task = fl.CLIPTask[Options]


def expert_keys(task: Task) -> Tensor:
    """Return the experts' fixed keys [E, d'], which are orthonormal if E <= d'."""
    width = task.backbone.encode(["a"]).shape[1]
    drawn = torch.empty(task.options.experts, width)
    return nn.init.orthogonal_(drawn, generator=task.at(0).generator("keys")).to(
        task.backbone.device
    )


@fl.hookimpl
def init_server(task: Task) -> Tree:
    clip = task.backbone
    options = task.options
    generator = task.generator("context")
    fl.check_lengths(task, [options.length], "")
    count = 1 if options.same_start else options.experts
    drawn = [clip.init_context(options.length, generator) for _ in range(count)]
    experts = torch.stack(drawn).expand(options.experts, -1, -1).clone()  # [E, L, d]
    return {"params": {"experts": experts}, "averaged": experts}


def round_weight(task: Task, number: int) -> float:
    """Return the weight of a round's contexts in the mean over rounds.

    It is the density of Beta(b, b) at (t + 0.5) / (rounds + 1), for the option `beta` b and round t
    = `number`, from 0.
    """
    both = task.options.beta
    return float(beta.pdf((number + 0.5) / (task.training.rounds + 1), both, both))


@fl.hookimpl
def download(task: Task, server: Tree, client: int) -> Tree:
    testing = bool(task.round and not task.selected)
    return {"params": {"experts": server["averaged"] if testing else server["params"]["experts"]}}


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    """Average the clients' contexts, and update the weighted mean over the rounds so far."""
    params = fl.mean(updates, weighted=True)

    # the weight of this round, divided by the weights of the initial contexts and earlier rounds
    now = task.round - 1
    before = round_weight(task, 0) + sum(round_weight(task, number) for number in range(now))
    share = round_weight(task, now) / before
    averaged = (server["averaged"] + share * params["experts"]) / (1 + share)
    return {"params": params, "averaged": averaged}


def expert_shares(task: Task, batch: Batch, factor: float) -> Tensor:
    """Return the experts' shares [K, B, E] in each image (see `routing.expert_shares`)."""
    patches = batch.patches.flatten(0, 1)  # [K B, T, d']
    generator = task.at(0).generator("first centroids")  # the same in all rounds
    first = torch.randperm(patches.shape[1], generator=generator)[: task.options.experts]
    shares = routing.expert_shares(patches, expert_keys(task), first.to(patches.device), factor)
    return shares.unflatten(0, batch.patches.shape[:2])


def logits(task: Task, params: Tree, batch: Batch, shares: Tensor) -> Tensor:
    """Compute logits [K, B, C]; the context of an image is the sum of share_e times context_e.

    Args:
        params: the experts' contexts [K, E, L, d].
        shares: the experts' shares in each image [K, B, E].
    """
    experts = params["experts"]  # [K, E, L, d]
    contexts = torch.einsum("kbe,keld->kbld", shares.to(experts), experts)
    return fl.contextual_logits(task, batch.features, fl.split_images(task, contexts))


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy plus alpha times the guided term [K, B]; report the cross-entropy.

    The guided term is the cross-entropy with the class probabilities under hand-written texts.
    """
    scores = logits(task, params, batch, received["shares"][0][batch.rows])
    written = task.backbone.logits(batch.features, received["written"])
    guided = -(written.softmax(-1) * scores.log_softmax(-1)).sum(-1)
    entropy = fl.cross_entropy(scores, batch.labels)
    return entropy + task.options.weight * guided, {"reported_loss": entropy}


def training_shares(task: Task, clients: Cohort) -> Tensor:
    """Return the experts' shares [N, E] in all N images of the data.

    They are zero for images that these clients do not train on. They are computed before training,
    because the matching runs on the CPU, and a step on a GPU would have to wait for it.
    """
    known = torch.zeros(len(task.data.labels), task.options.experts, device=task.backbone.device)
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        known[batch.rows] = expert_shares(task, batch, task.options.capacity_train)
    return known


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    written = task.backbone.zero_shot(task.data.classes, task.options.templates)  # [C, d']
    fixed = {"written": written, "shares": training_shares(task, clients)}
    known = {**received, **{k: v.expand(len(clients), -1, -1) for k, v in fixed.items()}}
    return fl.make_updates(fl.train_locally(task, loss, known, clients), clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    shares = expert_shares(task, batch, task.options.capacity_test)
    return logits(task, received["params"], batch, shares)
