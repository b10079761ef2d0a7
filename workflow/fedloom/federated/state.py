"""The state that a run carries from one round to the next.

The states of clients lie on the host, because all of them together may be larger than a GPU. A
client's state is moved to the device when the client trains or is evaluated.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch

from fedloom.common.trees import Tree, aligned, build_tree, leaves, on_device, tensor_map

Entry = TypeVar("Entry")
HOST = torch.device("cpu")


@dataclass(frozen=True)
class Participation:
    """What the server remembers about a client: its rounds and its last training loss."""

    # the number of rounds that the client was selected in, and the last of these rounds
    rounds: int = 0
    last_round: int = 0
    # the training loss of the client's last update that reached `aggregate`
    train_loss: float | None = None


class PersonalStates(Mapping[int, Tree]):
    """Personal states of the clients that trained, by client id, ascending."""

    def __init__(self, states: Mapping[int, Tree], device: torch.device = HOST):
        """Store the states. A state, or a mean, is moved to the device when it is read."""
        self._states = states
        self._device = device
        self._means: Tree = {}

    def __getitem__(self, client: int) -> Tree:
        return on_device(self._states[client], self._device)

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def mean(self, key: str) -> Any:
        """Return the mean over these clients of the tensor, or the tree of tensors, at a key.

        It is computed on first use and then kept.

        Raises:
            KeyError: no client has trained.
        """
        if key not in self._means:
            if not self:
                raise KeyError(f"{key}: no client has trained")
            states = [{key: state[key]} for state in self._states.values()]
            mean = tensor_map(lambda *values: torch.stack(values).mean(0), *states)
            self._means |= on_device(mean, self._device)
        return self._means[key]


@dataclass
class State:
    """The server's state, and the states of the clients that took part so far, by client id."""

    # the result of `init_server` or `aggregate`, without the side channel
    server: Tree
    # the personal states, on the host
    clients: dict[int, Tree] = field(default_factory=dict)
    participation: dict[int, Participation] = field(default_factory=dict)
    # what wrappers keep on a client; clients on which they keep nothing are left out
    wrappers: dict[int, Tree] = field(default_factory=dict)
    # the device of the server's state
    device: torch.device = HOST

    @cached_property
    def personal(self) -> PersonalStates:
        """Return the personal states, which move to the device when they are read."""
        return PersonalStates(self.clients, self.device)

    def tree(self) -> Tree:
        """Return the whole state as one tree, which files hold."""
        return {
            "server": self.server,
            "clients": {str(k): state for k, state in sorted(self.clients.items())},
            "seen": torch.tensor(sorted(self.clients), dtype=torch.int64),
            "participation": {
                str(k): asdict(entry) for k, entry in sorted(self.participation.items())
            },
            "wrappers": {str(k): kept for k, kept in sorted(self.wrappers.items())},
        }

    def for_clients(self, ids: Iterable[int]) -> "State":
        """Return the part of the state that belongs to these clients.

        The server's state is empty in the result.
        """
        wanted = set(ids)

        def select(entries: dict[int, Entry]) -> dict[int, Entry]:
            return {client: entries[client] for client in wanted & entries.keys()}

        return State(
            server={},
            clients=select(self.clients),
            participation=select(self.participation),
            wrappers=select(self.wrappers),
        )

    def after(self, changes: "State") -> "State":
        """Return the state after `changes` (the states of the server and of some clients).

        The result is in canonical form (see `from_tree`).
        """
        new = State.from_tree(changes.tree(), self.device)
        return State(
            server=new.server,
            clients=_updated(self.clients, new.clients),
            participation=_updated(self.participation, new.participation),
            wrappers=_updated(self.wrappers, new.wrappers),
            device=self.device,
        )

    @classmethod
    def from_tree(cls, tree: Tree, device: torch.device = HOST) -> "State":
        """Return the state that `tree` describes, in canonical form.

        In this form, keys are sorted, tensors are aligned in memory, and the server's tensors are
        on `device`. Otherwise a resumed job could sum numbers in another order than an
        uninterrupted one, and its results would differ in the last bits.
        """
        tree = build_tree(leaves(tree))

        # a file has no entry for an empty part
        def part(name: str, device: torch.device) -> Tree:
            return tensor_map(aligned, on_device(tree.get(name, {}), device))

        # a file has texts as keys; turn those of clients into numbers
        clients = part("clients", HOST)
        wrappers = {int(k): kept for k, kept in part("wrappers", HOST).items()}
        entries = {int(k): Participation(**v) for k, v in tree.get("participation", {}).items()}

        # sort by number, not by text; `seen` also lists the clients that keep nothing
        return cls(
            server=part("server", device),
            clients={k: clients.get(str(k), {}) for k in tree["seen"].tolist()},
            participation={k: entries[k] for k in sorted(entries)},
            wrappers={k: wrappers[k] for k in sorted(wrappers)},
            device=device,
        )


def _updated(entries: dict[int, Entry], new: dict[int, Entry]) -> dict[int, Entry]:
    """Return the entries with the `new` ones added or replaced, by ascending client id."""
    return dict(sorted((entries | new).items()))
