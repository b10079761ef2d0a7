"""Compute what the authors' code of SGPT does differently from their paper (`variant: released`).

- Shared prompts start at zero. Inserted tokens are kept, so the sequence grows from block to block,
  and the tokens of all group prompts enter the mean that is classified.
- The query passes a ReLU, and on domain data the code stops after six blocks and applies the final
  norm and the ReLU there: `query_block: 7`.
- In training, an image selects the group with the smallest (1 - cos)(q + 5e-4), where q is the
  frequency of selections in earlier rounds and by clients that trained earlier in this round. q is
  constant while a client trains. Clients therefore train one after another. Here they train by
  ascending id; in the code, in random order.
- If a group has at most 50 selections in a round, its key is the mean over clients with equal
  weights. The keys of groups that no image selected are averaged too.
- Momentum applies from round 1 on, where it mixes in the initial keys and group prompts.
- On domain data, the code gives all images of a training batch the group that most of them
  selected: option `majority`. The code does not do this at inference, where an image's prediction
  would depend on the other images of the batch; neither do we.

Block positions are options (s = 10: shared in 1-4, group in 5-7; s = 50: 1-5 and 6-7), and so are
its training values: SGD with lr 0.01, momentum 0.9 and weight decay 1e-5, batches of 40, 60 rounds.
Not reproduced: its head has a bias and starts as torch's linear layers do, and its first key is not
of unit length.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]

FEW = 50  # the key of a group with at most so many selections is the plain mean over clients


def one_after_another(options: Options) -> bool:
    """Return True if a client's selections depend on the clients that trained before it."""
    return options.variant == "released" and options.group and options.frequency


def in_turn(
    train: Callable[[Task, Tree, Cohort], list[Update]],
    task: Task,
    received: Tree,
    clients: Cohort,
) -> list[Update]:
    """Train the clients one after another, and return their updates.

    Each client starts with the counts of selections [G] of earlier rounds and of the clients that
    trained before it in this round. All clients of the round must be in one cohort, as the runtime
    hands them over.

    Args:
        train: the hook `client_update`, which trains one client here.
    """
    updates: list[Update] = []
    chosen = torch.zeros_like(received["constants"]["selected"][:1])  # this round [1, G]
    for k in range(len(clients)):
        own = fl.tensor_map(lambda value, k=k: value[k : k + 1], received)
        own["constants"] = {"selected": own["constants"]["selected"] + chosen}
        updates += train(task, own, clients.subset([k]))
        chosen = chosen + updates[-1].payload["selected"]
    return updates


def key_shares(selected: Tensor) -> Tensor:
    """Return the weight [K, G] of each client in the average of each key.

    The weight is the client's share of the group's selections in this round, or 1 / K for a group
    with at most FEW selections.

    Args:
        selected: the clients' numbers of selections of each group in this round [K, G].
    """
    total = selected.sum(0)
    return (selected / total.clamp(min=1)).where(total > FEW, 1 / len(selected))
