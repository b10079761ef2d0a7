"""On-disk checkpoints: one file per round holding the changes, and a head file that lists them.

The head, `checkpoint.safetensors`, holds the server's state. A part, `checkpoint/0007.safetensors`,
holds the states of the clients that took part in round 7, and the round's rows. A round writes its
part first and then the head: a job that is killed between the two resumes from the round before.
Where all parts would take `fold` times the space of the current states, or would be more than
`most_parts`, the round writes the current states to one part.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fedloom.common import tensor_files
from fedloom.common.trees import count_bytes
from fedloom.federated.rows import Rows
from fedloom.federated.state import State

# approximate bytes of what the server remembers of a client
REMEMBERED = 64


@dataclass(frozen=True)
class Saved:
    """The content of a checkpoint."""

    # the last finished one
    round: int
    # the server's state after it, and those of clients that took part in the job
    changes: State
    # of all rounds since the job began
    rows: Rows
    # the sha256 of every part, by the part's name
    digests: dict[str, str]
    # bytes that the parts hold, as `_size` counts
    size: int


def read_checkpoint(head: Path, fingerprint: str, first: int) -> Saved | str | None:
    """Return a checkpoint's content, on the host, or the reason why no job can resume from it.

    Return None if the file is missing, or if its round is not after `first`.
    """
    if not head.exists():
        return None
    tree, facts = tensor_files.load(head)
    if facts["round"] <= first:
        return None
    if facts["fingerprint"] != fingerprint:
        return "was made by other code, settings, data or packages"

    # join what the parts hold
    digests = facts["parts"]
    changes = State({})
    rows: list[Rows] = []
    size = 0
    for name, digest in digests.items():
        # a user may have deleted a part because it was corrupt
        if not _part(head, name).exists():
            return f"lacks its part {_part(head, name)}"

        # a later part has later states of the same clients
        part, _ = tensor_files.load(_part(head, name), sha256=digest)
        rows.append(Rows.unpack(part.pop("rows")))
        own = State.of(part)
        size += rows[-1].size + sum(_size(own, client) for client in own.clients)
        changes = changes.after(own)

    # the server's state is in the head alone
    changes = replace(changes, server=tree.get("server", {}))
    return Saved(facts["round"], changes, Rows.join(rows), digests, size)


class Checkpoint:
    """The checkpoint of a job, written after every round."""

    def __init__(
        self,
        head: Path,
        fingerprint: str,
        saved: Saved | None = None,
        fold: float = 1.5,
        most_parts: int = 100,
    ):
        """Resume from the saved checkpoint, or begin a new one; `head` names its parts."""
        self._head = head
        self._fold = fold
        self._most_parts = most_parts
        self._fingerprint = fingerprint
        self._rows: list[Rows] = []
        self._digests: dict[str, str] = {}
        # bytes that the parts hold
        self._taken = 0
        # bytes of the current states, by client
        self._sizes: dict[int, int] = {}

        if saved is not None:
            self._rows = [saved.rows]
            self._digests = saved.digests
            self._taken = saved.size
            self._sizes = {k: _size(saved.changes, k) for k in saved.changes.clients}
            # a job that was killed may have left parts that no head names
            self._sweep()

    @property
    def rows(self) -> Rows:
        """Return the rows of all rounds since the job began."""
        return Rows.join(self._rows)

    def write(self, number: int, state: State, clients: Iterable[int], rows: Rows) -> None:
        """Write the state and the rows of round `number`, and the `clients` that it changed."""
        # count what the parts take with the new one, and what the current states take
        changed = {client: _size(state, client) for client in clients}
        self._taken += rows.size + sum(changed.values())
        self._sizes |= changed
        self._rows.append(rows)
        current = sum(each.size for each in self._rows) + sum(self._sizes.values())

        # write all current states to one part where the parts take too much
        fold = self._taken > self._fold * current or len(self._digests) >= self._most_parts
        if fold:
            changed = self._sizes
            rows = self.rows
            self._taken = current
            self._rows = [rows]

        # before the first part: those of another checkpoint may have the same names
        if not self._digests:
            self._head.unlink(missing_ok=True)

        # write the part
        name = f"{number:04}"
        tree = state.of_clients(changed).tree()
        tree["rows"] = rows.pack()
        digest = tensor_files.save(_part(self._head, name), tree)

        # then the head, from which on it counts
        if fold:
            self._digests = {name: digest}
        else:
            self._digests = self._digests | {name: digest}
        facts = {"fingerprint": self._fingerprint, "round": number, "parts": self._digests}
        tensor_files.save(self._head, {"server": state.server}, **facts)
        if len(self._digests) == 1:
            self._sweep()

    def _sweep(self) -> None:
        """Remove parts that the head does not name."""
        for file in _part(self._head, "0000").parent.glob("*.safetensors"):
            if file.stem not in self._digests:
                # it may be gone: another job may sweep too
                file.unlink(missing_ok=True)


def _part(head: Path, name: str) -> Path:
    """Return where a part lies."""
    return head.with_suffix("") / f"{name}{head.suffix}"


def _size(state: State, client: int) -> int:
    """Return about how many bytes a part takes for a client."""
    kept_by_method = count_bytes(state.clients[client])
    kept_by_wrappers = count_bytes(state.wrappers.get(client, {}))
    return REMEMBERED + kept_by_method + kept_by_wrappers
