"""The state that a run carries from one round to the next."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch

from fedloom.common.tensors import Tree, aligned, build, leaves, tensor_map

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Participation:
    """What the server remembers of a client: rounds that it was selected in, and the last of them.

    `train_loss` is that of its last update that `aggregate` got; None if there was none.
    """

    rounds: int = 0
    last_round: int = 0
    train_loss: float | None = None


class PersonalStates(dict[int, Tree]):
    """Personal states of the clients that trained, by client id, ascending."""

    def __init__(self, states: dict[int, Tree]):
        """Take the states, of which means are computed when they are first read."""
        super().__init__(states)
        self._means: dict[str, Any] = {}

    def mean(self, key: str) -> Any:
        """Return the mean over clients of the tensor, or of the tree of tensors, at a key.

        It is computed once for all clients that never trained.
        """
        if key not in self._means:
            if not self:
                raise KeyError(f"{key}: no client has trained")
            states = [{key: state[key]} for state in self.values()]
            self._means |= tensor_map(lambda *values: torch.stack(values).mean(0), *states)
        return self._means[key]


@dataclass
class State:
    """The server's state and the personal states of the clients.

    Attributes:
        server: what `init_server` and `aggregate` return, without the side channel.
        clients: personal states of the clients that took part so far, by client id.
        participation: what the server remembers of them, by client id.
        wrappers: what wrappers keep on clients, by client id and wrapper, where it is something.
    """

    server: Tree
    clients: dict[int, Tree] = field(default_factory=dict)
    participation: dict[int, Participation] = field(default_factory=dict)
    wrappers: dict[int, Tree] = field(default_factory=dict)

    @cached_property
    def personal(self) -> PersonalStates:
        """Return the personal states with their means."""
        return PersonalStates(self.clients)

    def tree(self) -> Tree:
        """Return all as one tree, which is what a checkpoint file holds."""
        clients = {str(k): state for k, state in sorted(self.clients.items())}
        seen = torch.tensor(sorted(self.clients), dtype=torch.int64)
        entries = {str(k): asdict(entry) for k, entry in sorted(self.participation.items())}
        tree = {"server": self.server, "clients": clients, "seen": seen, "participation": entries}
        wrappers = {str(k): kept for k, kept in sorted(self.wrappers.items())}
        return tree | ({"wrappers": wrappers} if wrappers else {})

    def of_clients(self, ids: Iterable[int]) -> "State":
        """Return the part of the state that belongs to these clients, without the server's."""
        ids = set(ids)

        def some(entries: dict[int, Entry]) -> dict[int, Entry]:
            return {k: entries[k] for k in ids & entries.keys()}

        return State({}, some(self.clients), some(self.participation), some(self.wrappers))

    def after(self, changes: "State") -> "State":
        """Return the state, in canonical form (see `of`), with a round's `changes`.

        They are the server's new state, and those of the clients that took part.
        """
        new = State.of(changes.tree())
        return State(
            new.server,
            _merged(self.clients, new.clients),
            _merged(self.participation, new.participation),
            _merged(self.wrappers, new.wrappers),
        )

    @classmethod
    def of(cls, tree: Tree) -> "State":
        """Rebuild a State in canonical form (sorted keys, aligned tensors).

        Without it, the order of summation could differ between a resumed and an uninterrupted job,
        and with it the last bits.
        """
        tree = tensor_map(aligned, build(leaves(tree)))
        server, clients = tree.get("server", {}), tree.get("clients", {})  # empty: not in a file
        wrappers = {int(k): kept for k, kept in tree.get("wrappers", {}).items()}
        entries = {int(k): Participation(**v) for k, v in tree.get("participation", {}).items()}
        return cls(
            server,
            {k: clients.get(str(k), {}) for k in tree["seen"].tolist()},
            {k: entries[k] for k in sorted(entries)},
            {k: wrappers[k] for k in sorted(wrappers)},
        )


def _merged(old: dict[int, Entry], new: dict[int, Entry]) -> dict[int, Entry]:
    """Return entries by client id, ascending; the new ones replace the old."""
    merged = old | new
    # sorting thousands of ids every round is left out
    return merged if new.keys() <= old.keys() else dict(sorted(merged.items()))
