"""PEP-FedPT: class prompts are mixed for every image, by prototypes and the client's class priors.

Yashwanth et al., "Prompt Estimation from Prototypes for Federated Prompt Tuning of Vision
Transformers". Equation numbers are the paper's. Choices where the paper leaves one open:

- A class without a prototype (mu = 0) has a cosine of 0. A class that the client does not hold has
  a weight of 0.
- At later blocks, the new mixed prompt replaces the earlier one (Eq. 7 carries one m).
- The warm start divides by |S_0|. A class that a client does not hold counts as zeros (Eq. 19).
- Before training, a client computes prototypes over its whole training set, with the global
  parameters of the round (Algorithm 1, line 32). They are constants in training. Gradients do flow
  through the class token into the shared prompts.
- Prototypes are updated at the *end* of each window of R rounds, as the text of Section 4.2 says.
  Algorithm 1 tests t mod R = 0.
- The head has no bias and starts at zero. The paper does not report the decay of the learning rate,
  the batch size, the weight decay, rho and R (see method.toml).
- A held-out client uses the global state and its own class priors, without training. For the
  server's model, all classes have the same prior.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from . import artefacts
from .forward import forward
from .options import Options
from .prototypes import class_means

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    vit = task.backbone
    options = task.options
    if max(options.blocks) > vit.depth:
        raise fl.FedLoomError(
            f"pep_fedpt: option blocks must name blocks up to {vit.depth}, the ViT's last, got "
            f"{options.blocks}; remove the others"
        )

    # shared prompts and the head
    shared = vit.init_prompts(options.shared_prompts, task.generator("shared prompts"))  # [P, d]
    params = {"head": vit.init_head(task.num_classes), "shared_prompts": shared}
    if not options.ccmp:
        return {"params": params}

    # class prompts, and the prototypes that mix them
    params["class_prompts"] = vit.init_prompts(task.num_classes, task.generator("class prompts"))
    rows = [j - 1 for j in sorted(options.blocks)]
    warm = task.prototypes
    prototypes = warm.mean[rows]  # [S, C, d], of cls_{j-1}, the input of the S chosen blocks j
    return {
        "params": params,
        "constants": {"prototypes": prototypes},
        "window": empty_window(prototypes),
        "side_channel": {"prototypes": {"spread": warm.spread[rows], "count": warm.count}},
    }


def empty_window(prototypes: Tensor) -> Tree:
    """Return a window without uploads: zeros.

    A window has the `sum` [S, C, d] of the prototypes that were uploaded since the last update, and
    their number, `count` D_c [S, C, 1].
    """
    return {"sum": torch.zeros_like(prototypes), "count": torch.zeros_like(prototypes[..., :1])}


def logits(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] from what the ViT pools, its final class token (Eq. 8)."""
    passed = forward(task, params, received, clients, batch, task.backbone.depth + 1)
    return task.backbone.logits(passed.tokens, params["head"])  # Eq. 8


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, received, clients, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    blocks = sorted(task.options.blocks)

    def class_tokens(clients: Cohort, batch: Batch) -> Tensor:
        """Return the class tokens [K, B, S, d] at the inputs of the S chosen blocks."""
        passed = forward(task, received["params"], received, clients, batch, blocks[-1])
        return torch.stack([passed.class_tokens[j - 1] for j in blocks], -2)

    if not task.options.ccmp:
        return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)
    prototypes, statistics = class_means(task, clients, class_tokens)  # Eq. 10: [K, S, C, d]
    trained = fl.train_locally(task, loss, received, clients)
    updates = fl.make_updates(trained, clients, prototypes=prototypes)
    for k, update in enumerate(updates):
        update.side_channel["prototypes"] = fl.unstack(statistics, k)
    return updates


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    params = fl.mean(updates)
    if not task.options.ccmp:
        return {"params": params}

    # add the round's prototypes to the window; zeros stand for a class that a client does not hold
    uploads = torch.stack([u.payload["prototypes"] for u in updates])  # [K, S, C, d]
    present = (uploads != 0).any(-1, keepdim=True)  # [K, S, C, 1]
    total = server["window"]["sum"] + uploads.sum(0)
    count = server["window"]["count"] + present.sum(0)  # D_c
    prototypes = server["constants"]["prototypes"]
    window = {"sum": total, "count": count}

    # at the end of a window, update the prototypes of the classes that were uploaded
    if task.round % task.options.period == 0:
        rho = torch.where(count > 0, task.options.momentum, 1.0)
        prototypes = rho * prototypes + (1 - rho) * total / count.clamp(min=1)  # Eq. 11-12
        window = empty_window(prototypes)
    return {"params": params, "constants": {"prototypes": prototypes}, "window": window}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return logits(task, received["params"], received, clients, batch)


@fl.hookimpl
def artefact(
    task: Task, server: Tree, cohorts: Iterator[tuple[Tree, Cohort, Batch]], name: str
) -> dict[str, list]:
    if name == "class_prompts":
        return artefacts.class_prompts(server)
    return {"soft_weights": artefacts.soft_weights, "class_tokens": artefacts.class_tokens}[name](
        task, cohorts
    )
