"""Draw the rounds in which images arrive and leave, for a partition that is a stream."""

import numpy as np
import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import NEVER, UNASSIGNED
from fedloom.common.seeds import numpy_generator


def draw_arrivals(table: pa.Table, spec: dict, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the rounds in which each image arrives, [N], and leaves, [N].

    Clients train on an image from the round in which it arrives. From the round in which it leaves,
    they no longer train on it; NEVER means that it stays. Raises a FedLoomError if there are fewer
    classes, domains or clients than parts of the stream.
    """
    # the first round of each part
    keys = spec["arrivals"]
    starts = np.array([1, *keys["at"]])

    # what arrives: classes, domains or clients
    columns = {"classes": "label", "domains": "domain"}
    column = table[columns.get(keys["of"], "client_id")].to_numpy(zero_copy_only=False)
    rows = table.to_pandas()
    assigned = rows["client_id"].to_numpy() != UNASSIGNED
    trains = assigned & rows["participating"].to_numpy() & ~rows["test"].to_numpy()

    # they arrive in a random order
    rng = numpy_generator(spec.get("seed", seed), "arrivals")
    order = rng.permutation(np.unique(column[assigned]))
    trained = np.isin(order, column[trains])
    if trained.sum() < len(starts):
        raise FedLoomError(
            f"arrivals: must have {keys['of']} to train on for {len(starts)} parts, got "
            f"{trained.sum()}; name fewer rounds under at"
        )

    # members with training images are divided over the parts first, so that every part has some;
    # the others follow
    part = np.zeros(len(table), int)
    for found in (order[trained], order[~trained]):
        for part_index, members in enumerate(np.array_split(found, len(starts))):
            part[np.isin(column, members)] = part_index

    # a part leaves when the next one arrives, or never
    ends = np.array([*starts[1:], NEVER])
    if keys["keep"]:
        ends = np.full(len(starts), NEVER)
    return starts[part], ends[part]
