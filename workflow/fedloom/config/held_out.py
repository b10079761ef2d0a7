"""How many clients are held out: what the config checks is what the partition does."""

from fedloom.common.errors import FedLoomError


def held_out_count(clients: int, partition: dict) -> int:
    """Return how many of a partition's clients never train.

    Raises:
        FedLoomError: some should, but their share of so few clients is none.
    """
    count = round(clients * partition["held_out"])
    if partition["held_out"] and not count:
        raise FedLoomError(
            f"held_out: {partition['held_out']} of {clients} clients is none; raise it, or set 0"
        )
    return count
