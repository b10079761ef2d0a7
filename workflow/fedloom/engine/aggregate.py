"""What methods share around aggregation: plain uploads, and means of them."""

from torch import Tensor

from fedloom.engine.local import Trained
from fedloom.engine.task import Cohort, Update
from fedloom.engine.tree import Tree, tensor_map, unstack


def uploads(trained: Trained, clients: Cohort, **more: Tensor) -> list[Update]:
    """One update per client that sends its parameters and `more` [K, ...], and keeps nothing."""
    sent = {"params": trained.params, **more}
    return [
        Update(unstack(sent, k), {}, n, {"train_loss": trained.loss[k]})
        for k, n in enumerate(clients.num_examples)
    ]


def mean(updates: list[Update], weighted: bool = False) -> Tree:
    """Mean of the payloads' `params`; `weighted` by training images, as McMahan et al. do."""
    weights = [update.num_examples if weighted else 1 for update in updates]
    total = sum(weights)

    def average(*values):
        return sum(w / total * value for w, value in zip(weights, values, strict=True))

    return tensor_map(average, *(update.payload["params"] for update in updates))
