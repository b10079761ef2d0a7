"""Checkpoints on disk: one file per round with the changes, and a head file that lists them.

1. The head, `checkpoint.safetensors`, holds the server's state and the names of the parts.
2. A part, such as `checkpoint/0007.safetensors`, holds what round 7 changed: the states of the
   clients that took part, and the rows of the round.

Each round writes its part first and the head second. A job that is killed between the two resumes
from the round before.

Old parts hold states that are no longer current. The parts are replaced by one part with all
current states if there are `most_parts` of them, or if they would take more than `fold` times the
space of the current states.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fedloom.common import tensor_files
from fedloom.common.trees import count_bytes
from fedloom.federated.rows import Rows
from fedloom.federated.state import State

# bytes, approximately, of what the server remembers about a client
REMEMBERED = 64


@dataclass(frozen=True)
class Saved:
    """The content of a checkpoint."""

    # the last finished round
    round: int
    # after that round: the server's state, and the states of the clients that took part in the job
    changes: State
    # the rows of all rounds since the job began
    rows: Rows
    # the sha256 of each part, by name
    digests: dict[str, str]
    # the bytes of all parts (see `_size`)
    size: int


def read_checkpoint(head: Path, fingerprint: str, first: int) -> Saved | str | None:
    """Return a checkpoint's content on the host, or the reason why no job can resume from it.

    Return None if the file is missing, or if its round is not after round `first`.
    """
    if not head.exists():
        return None
    tree, facts = tensor_files.load(head)
    if facts["round"] <= first:
        return None
    if facts["fingerprint"] != fingerprint:
        return "was made by other code, settings, data or packages"

    # join the contents of the parts
    digests = facts["parts"]
    changes = State({})
    rows: list[Rows] = []
    size = 0
    for name, digest in digests.items():
        # a part may be missing, because a user deleted it when it was corrupt
        if not _part(head, name).exists():
            return f"lacks its part {_part(head, name)}"

        # the states in a later part replace those of the same clients in an earlier one
        part, _ = tensor_files.load(_part(head, name), sha256=digest)
        rows.append(Rows.unpack(part.pop("rows")))
        own = State.from_tree(part)
        size += rows[-1].size + sum(_size(own, client) for client in own.clients)
        changes = changes.after(own)

    # the server's state is only in the head
    changes = replace(changes, server=tree.get("server", {}))
    return Saved(facts["round"], changes, Rows.join(rows), digests, size)


class Checkpoint:
    """The checkpoint of a job, which is written after every round."""

    def __init__(
        self,
        head: Path,
        fingerprint: str,
        saved: Saved | None = None,
        fold: float = 1.5,
        most_parts: int = 100,
    ):
        """Continue the checkpoint `saved`, or begin a new one.

        Args:
            head: the path of the head file, which also decides where the parts lie.
            fingerprint: the digest of everything that the job's numbers depend on.
            saved: the content of the checkpoint that the job resumes from; None: begin a new one.
            fold, most_parts: when all parts are replaced by one, see the module's docstring.
        """
        self._head = head
        self._fold = fold
        self._most_parts = most_parts
        self._fingerprint = fingerprint
        self._rows: list[Rows] = []
        self._digests: dict[str, str] = {}
        # the bytes of all parts
        self._taken = 0
        # the bytes of each client's current state
        self._sizes: dict[int, int] = {}

        if saved is not None:
            self._rows = [saved.rows]
            self._digests = saved.digests
            self._taken = saved.size
            self._sizes = {k: _size(saved.changes, k) for k in saved.changes.clients}
            # a job that was killed may have left parts that the head does not name
            self._sweep()

    @property
    def rows(self) -> Rows:
        """Return the rows of all rounds since the job began."""
        return Rows.join(self._rows)

    def write(self, round_number: int, state: State, clients: Iterable[int], rows: Rows) -> None:
        """Write the state after round `round_number`, and the rows of that round.

        Args:
            clients: ids of the clients whose state the round changed.
        """
        # count the bytes of all parts with the new one, and the bytes of the current states
        changed = {client: _size(state, client) for client in clients}
        self._taken += rows.size + sum(changed.values())
        self._sizes |= changed
        self._rows.append(rows)
        current = sum(each.size for each in self._rows) + sum(self._sizes.values())

        # write all current states to one part if the parts take too much space
        fold = self._taken > self._fold * current or len(self._digests) >= self._most_parts
        if fold:
            changed = self._sizes
            rows = self.rows
            self._taken = current
            self._rows = [rows]

        # before the first part is written: parts of another checkpoint may have the same names
        if not self._digests:
            self._head.unlink(missing_ok=True)

        # write the part
        name = f"{round_number:04}"
        tree = state.for_clients(changed).tree()
        tree["rows"] = rows.pack()
        digest = tensor_files.save(_part(self._head, name), tree)

        # then write the head; from now on the new part counts
        if fold:
            self._digests = {name: digest}
        else:
            self._digests = self._digests | {name: digest}
        facts = {"fingerprint": self._fingerprint, "round": round_number, "parts": self._digests}
        tensor_files.save(self._head, {"server": state.server}, **facts)
        if len(self._digests) == 1:
            self._sweep()

    def _sweep(self) -> None:
        """Remove the parts that the head does not name."""
        for file in _part(self._head, "0000").parent.glob("*.safetensors"):
            if file.stem not in self._digests:
                # the file may be gone already, since another job may sweep too
                file.unlink(missing_ok=True)


def _part(head: Path, name: str) -> Path:
    """Return the path of a part."""
    return head.with_suffix("") / f"{name}{head.suffix}"


def _size(state: State, client: int) -> int:
    """Return about how many bytes of a part a client takes."""
    kept_by_method = count_bytes(state.clients[client])
    kept_by_wrappers = count_bytes(state.wrappers.get(client, {}))
    return REMEMBERED + kept_by_method + kept_by_wrappers
