"""How many clients train, or are evaluated, as one batch: as many models as fit into memory."""

from fedloom.common.tensors import Tree, count_bytes
from fedloom.federated.task import Task

# What is trained is there about five times: as received, as trained, its gradient, one or two
# moments of the optimiser. A ViT-B/16 of 343 MB is thus a group of its own, prompts never are.
BYTES_AT_ONCE = 256 * 2**20


def clients_at_once(task: Task, *states: Tree) -> int:
    """Return how many clients may be stacked, at least one.

    It follows from sizes alone, so that a run is divided alike on every machine.

    Args:
        states: what one client receives and keeps.
    """
    if not task.stacked:
        return 1
    size = sum(count_bytes(state) for state in states)
    return max(1, BYTES_AT_ONCE // max(1, size))


def groups(count: int, width: int) -> list[range]:
    """Divide `count` clients in order into groups of at most `width`."""
    return [range(start, min(start + width, count)) for start in range(0, count, width)]
