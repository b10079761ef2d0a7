"""Whether all clients were evaluated as one and the same model, whose answers can be used again.

Where clients keep nothing of their own and all receive the same, the global test asks the server's
model for what its clients have answered already. Whether that is so is seen from what `predict` was
given, and from what it read of it; no method is known by name.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.common.tensors import Tree, leaves, tensor_map
from fedloom.federated.task import Cohort


class WatchedCohort(Cohort):
    """A cohort that notes which of its fields a hook reads; only their number is not noted."""

    noticed: set[str]

    @classmethod
    def of(cls, clients: Cohort) -> "WatchedCohort":
        """Return these clients, watched."""
        values = vars(clients)
        watched = cls(**{entry.name: values[entry.name] for entry in fields(Cohort)})
        object.__setattr__(watched, "noticed", set())  # a cohort is frozen
        return watched

    def __getattribute__(self, name: str) -> Any:
        if name in WATCHED:
            object.__getattribute__(self, "noticed").add(name)
        return object.__getattribute__(self, name)

    def __len__(self) -> int:
        return len(object.__getattribute__(self, "ids"))


WATCHED = {entry.name for entry in fields(Cohort)} | {"__dict__"}


@dataclass
class SharedModel:
    """The answers of clients that are one model as far as their predictions go.

    Attributes:
        same_model: False from the first client on that is another model.
        model: what the first client received, and its state if `predict` reads that, without a
            client axis; None before it.
        images: rows of the image store [n_k] of each client that was evaluated.
        correct, loss: number of correct answers and sum of the losses, of all of them.
        answers: predicted classes [n_k] of each client's images.
    """

    same_model: bool = True
    model: Tree | None = None
    images: list[np.ndarray] = field(default_factory=list)
    correct: int = 0
    loss: float = 0.0
    answers: list[np.ndarray] = field(default_factory=list)

    def add(
        self,
        received: Tree,
        clients: Cohort,
        noticed: set[str],
        images: list[np.ndarray],
        correct: list[int],
        loss: list[float],
        answers: list[np.ndarray],
    ) -> None:
        """Add the answers of a cohort.

        Args:
            received: what its clients received [K, ...].
            noticed: the fields of the cohort that `predict` read.
        """
        given = {"received": received}
        if "state" in noticed:  # which `personalize` may write to
            given["state"] = tensor_map(torch.clone, clients.state)
        if self.model is None:
            self.model = tensor_map(lambda value: value[0], given)
        self.same_model = self.same_model and noticed <= {"state"} and _equal(given, self.model)
        self.images += images
        self.correct += sum(correct)
        self.loss += sum(loss)
        self.answers += answers

    def answered(self, received: Tree, clients: Cohort, images: np.ndarray) -> bool:
        """Return True if these are the answers of a model, on just these images.

        Args:
            received, clients: of a cohort of one client.
            images: rows of the image store [n], ascending.
        """
        if self.model is None or not self.same_model:
            return False
        given = {"received": received, "state": clients.state}
        if not _equal({key: given[key] for key in self.model}, self.model):
            return False
        return np.array_equal(np.sort(np.concatenate(self.images)), images)


def _equal(given: Tree, model: Tree) -> bool:
    """Return True if all K clients of a stacked tree have the model's tensors and numbers."""
    ours, theirs = list(leaves(given)), list(leaves(model))
    return [path for path, _ in ours] == [path for path, _ in theirs] and all(
        _same(value, other) for (_, value), (_, other) in zip(ours, theirs, strict=True)
    )


def _same(value: Any, other: Any) -> bool:
    """Return True if all K clients' values [K, ...] are equal to the other [...]."""
    if not isinstance(value, Tensor):
        return value == other
    if value.shape[1:] != other.shape:
        return False
    shared = value.data_ptr() == other.data_ptr() and value.stride(0) == 0  # expanded, not copied
    return shared or torch.equal(value, other.expand_as(value))
