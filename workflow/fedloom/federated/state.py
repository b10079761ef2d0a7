"""The state that a run carries from one round to the next.

What stays on clients lies on the host: of all clients together it can be larger than a GPU. A
client's part goes to the device when the client trains or is evaluated.
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
    """The rounds of a client, and its last loss, as the server remembers them."""

    # number of rounds that it was selected in, and the last of them
    rounds: int = 0
    last_round: int = 0
    # that of its last update that `aggregate` got
    train_loss: float | None = None


class PersonalStates(Mapping[int, Tree]):
    """Personal states of the clients that trained, by client id, ascending."""

    def __init__(self, states: Mapping[int, Tree], device: torch.device = HOST):
        """Store the states. They, and their means, are moved to the device on first access."""
        self._states = states
        self._device = device
        self._means: dict[str, Any] = {}

    def __getitem__(self, client: int) -> Tree:
        return on_device(self._states[client], self._device)

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def mean(self, key: str) -> Any:
        """Return the mean over clients of the tensor, or of the tree of tensors, at a key.

        It is computed once for all clients that never trained.
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
    """The server's state and, by client id, what belongs to the clients that took part so far."""

    # what `init_server` and `aggregate` return, without the side channel
    server: Tree
    # personal states, on the host
    clients: dict[int, Tree] = field(default_factory=dict)
    participation: dict[int, Participation] = field(default_factory=dict)
    # what wrappers keep on clients, where it is something
    wrappers: dict[int, Tree] = field(default_factory=dict)
    # that of the server's state
    device: torch.device = HOST

    @cached_property
    def personal(self) -> PersonalStates:
        """Return the personal states with their means, on the device."""
        return PersonalStates(self.clients, self.device)

    def tree(self) -> Tree:
        """Return all as one tree, which is what a checkpoint file holds."""
        return {
            "server": self.server,
            "clients": {str(k): state for k, state in sorted(self.clients.items())},
            "seen": torch.tensor(sorted(self.clients), dtype=torch.int64),
            "participation": {
                str(k): asdict(entry) for k, entry in sorted(self.participation.items())
            },
            "wrappers": {str(k): kept for k, kept in sorted(self.wrappers.items())},
        }

    def of_clients(self, ids: Iterable[int]) -> "State":
        """Return the part of the state that belongs to these clients, without the server's."""
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
        """Return the state, in canonical form (see `of`), with a round's `changes`."""
        new = State.of(changes.tree(), self.device)
        return State(
            server=new.server,
            clients=_updated(self.clients, new.clients),
            participation=_updated(self.participation, new.participation),
            wrappers=_updated(self.wrappers, new.wrappers),
            device=self.device,
        )

    @classmethod
    def of(cls, tree: Tree, device: torch.device = HOST) -> "State":
        """Rebuild a State in canonical form: sorted keys, aligned tensors, server's on `device`.

        Without it, the order of summation could differ between a resumed and an uninterrupted job,
        and with it the last bits.
        """
        tree = build_tree(leaves(tree))

        # a part that is empty is not in a file
        def part(name: str, device: torch.device) -> Tree:
            return tensor_map(aligned, on_device(tree.get(name, {}), device))

        # by client id, since a file has text for keys
        clients = part("clients", HOST)
        wrappers = {int(k): kept for k, kept in part("wrappers", HOST).items()}
        entries = {int(k): Participation(**v) for k, v in tree.get("participation", {}).items()}

        # sorted by number, not by text; `seen` also knows the clients that keep nothing
        return cls(
            server=part("server", device),
            clients={k: clients.get(str(k), {}) for k in tree["seen"].tolist()},
            participation={k: entries[k] for k in sorted(entries)},
            wrappers={k: wrappers[k] for k in sorted(wrappers)},
            device=device,
        )


def _updated(entries: dict[int, Entry], new: dict[int, Entry]) -> dict[int, Entry]:
    """Return the entries with the new ones, by ascending client id."""
    return dict(sorted((entries | new).items()))
