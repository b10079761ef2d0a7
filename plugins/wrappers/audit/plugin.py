"""An audit: what the model tells of its training images, and uploads of a client's classes.

Every client withholds a share of its training images, drawn by the seed. Nobody trains on them. Two
attacks are measured:

1. Membership inference. An attacker sees the loss of an image, and says whether it was trained on
   (Yeom et al., "Privacy Risk in Machine Learning", CSF 2018). Members and non-members come from
   the same images of the same client, so that only membership distinguishes them. The artefact
   `membership` has the loss of each image, and the logit-scaled confidence of LiRA (Carlini et al.,
   IEEE S&P 2022).
2. Label inference. A curious server infers the shares of a client's classes from the change of its
   head (Wainakh et al., PoPETs 2022). `class_distance` is the total variation distance between this
   guess and the truth.

Choices:

- Wainakh et al. sum the last layer's gradient over features, which are never negative there. The
  features of a ViT may be negative. So here the change of a class's row is projected onto the mean
  feature of public images, which are test images. The class with the lowest projection is guessed
  to be absent. The guessed shares are proportional to what the other classes have above it. So
  scaling an upload changes nothing.
- If an upload has no head with the shape of the server's head, the guess is equal shares. The
  distance of this guess is always `class_distance_blind`.
- A client's model answers before `personalize`, which would train on withheld images. Prototypes
  that a study computes before round 1 are computed from all images, including withheld ones.
- If it is listed last, it reads the uploads as they are sent. dp_gaussian adds its noise later, on
  the server.
"""

from collections.abc import Generator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Answers, Cohort, Federation, Task, Tree, Update

from .options import Options

NAMES = ("class_distance", "class_distance_blind")


def training_members(task: Task, client: int) -> np.ndarray:
    """Return the rows of the images that a client trains on, ascending; at least one.

    In a stream, the images of each part are drawn separately. So an image that is withheld stays
    withheld when other parts arrive.
    """
    # draw by the run's seed even if the study fixes the seed of round 0, because the attack needs
    # runs of other seeds that withhold other images
    own = replace(task, round=0, fixed_seeds=type(task.fixed_seeds)())
    members = [np.array([], np.int64)]
    options: Options = task.wrappers["audit"]
    for rows in task.data.parts_of(client):
        generator = own.generator("audit: members", client)
        order = torch.randperm(len(rows), generator=generator).numpy()
        count = max(1, round((1 - options.withheld) * len(rows)))
        members.append(rows[order[:count]])
    return np.sort(np.concatenate(members))


@fl.hookimpl(wrapper=True)
def training_data(task: Task) -> Generator[None, Federation, Federation]:
    data = yield
    members = {k: training_members(task, k) for k in task.data.participating}

    def without_withheld(clients_rows: list[np.ndarray]) -> list[np.ndarray]:
        """Return each client's rows without those that it withholds."""
        everyone = enumerate(clients_rows)
        return [np.intersect1d(rows, members[k]) if k in members else rows for k, rows in everyone]

    earlier = None if data.earlier is None else without_withheld(data.earlier)
    data = replace(data, train=without_withheld(data.train), earlier=earlier)
    return fl.relabelled(data, np.array([], np.int64), 0)  # recomputes the priors


def scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses -log p_y and confidences log(p_y / (1 - p_y)), float64 [n] each.

    p_y is the probability of the label under the logits [n, C]. `labels` are [n].
    """
    logits = logits.double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return logits.logsumexp(1) - own, own - others


@fl.hookimpl(wrapper=True)
def audit_table(
    task: Task, answers: Answers, name: str
) -> Generator[None, dict | None, dict | None]:
    table = yield
    if name != "membership":
        return table

    # a row per image and client
    members = {k: {*training_members(task, k).tolist()} for k in task.data.participating}
    found = []
    for clients, batch, logits in answers(task.data.train):
        for k, client in enumerate(clients.ids):
            if client not in members:
                continue
            mask = batch.mask[k]
            losses, confidences = scores(logits[k][mask], batch.labels[k][mask])
            rows = batch.rows[k][mask].tolist()
            trained = [row in members[client] for row in rows]
            clients_of_rows = [client] * len(rows)
            found += zip(
                clients_of_rows, rows, trained, losses.tolist(), confidences.tolist(), strict=True
            )

    # columns instead of rows
    columns = zip(*sorted(found), strict=True)
    names = ("client_id", "image", "member", "loss", "confidence")
    return {name: list(values) for name, values in zip(names, columns, strict=True)}


def guessed_shares(change: Tensor, direction: Tensor) -> Tensor:
    """Return the class shares [C] that a server guesses from the change of a head, float64.

    The change of a class's row is projected onto the direction. The share of the class is its
    projection minus the lowest one, divided by the sum over classes. If all projections are equal,
    so are the shares.

    Args:
        change: the head that a client uploads minus the head that it received [C, d].
        direction: the mean feature of public images [d].
    """
    sums = change.double() @ direction.double()
    above = sums - sums.min()
    equal = torch.full_like(above, 1 / len(above))
    return above / above.sum() if above.sum() > 0 else equal


def distance(one: Tensor, other: Tensor) -> float:
    """Return the total variation distance, half of the sum of |p - q|, of two distributions [C]."""
    return float((one.double() - other.double()).abs().sum() / 2)


def public_feature(task: Task) -> Tensor:
    """Return the mean feature [d] of public images from the frozen backbone.

    The public images are test images, drawn once for all rounds.
    """
    rows = np.unique(np.concatenate(task.data.test))
    generator = task.at(0).generator("audit: public images")
    order = torch.randperm(len(rows), generator=generator).numpy()
    options: Options = task.wrappers["audit"]
    public = np.sort(rows[order[: options.public]])
    with torch.no_grad():
        return task.backbone.features(task.data.batch([public]).images)[0].mean(0)


def find_head(tree: Tree) -> Tensor | None:
    """Return the head [C, d] of an upload or a download, or None if there is no single head."""
    head = tree.get("params", {}).get("head")
    return head if isinstance(head, Tensor) and head.ndim == 2 else None


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    updates = [*(yield)]
    direction = None

    # the true class shares in this round; the priors of a stream also count images that have left
    rows = [task.data.train[client] for client in clients.ids]
    labels = task.data.labels
    shares = fl.class_priors(labels.cpu().numpy(), rows, task.num_classes).to(labels.device)

    for k, update in enumerate(updates):
        truth = shares[k]
        equal = torch.full_like(truth, 1 / len(truth))
        before = find_head(fl.unstack(received, k))
        after = find_head(update.payload)
        guess = equal
        if before is not None and after is not None and before.shape == after.shape:
            direction = public_feature(task) if direction is None else direction
            guess = guessed_shares(after - before, direction)
        numbers = dict(zip(NAMES, (distance(guess, truth), distance(equal, truth)), strict=True))
        updates[k] = replace(update, metrics=update.metrics | numbers)
    return updates


@fl.hookimpl(wrapper=True)
def init_server() -> Generator[None, Tree, Tree]:
    server = yield
    return {**server, "metrics": {**server.get("metrics", {}), **dict.fromkeys(NAMES, 0.0)}}


@fl.hookimpl(wrapper=True)
def aggregate(updates: list[Update]) -> Generator[None, Tree, Tree]:
    server = yield
    means = {name: float(np.mean([u.metrics[name] for u in updates])) for name in NAMES}
    return {**server, "metrics": {**server.get("metrics", {}), **means}}
