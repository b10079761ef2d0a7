"""What a loss, predict and artefact may return."""

import math
from collections.abc import Sequence

import pyarrow as pa
from torch import Tensor

from fedloom.common.errors import FedLoomError, NotFiniteError
from fedloom.federated.checks.trees import CURE, call_of, kind_of
from fedloom.federated.task import Cohort, Task


def check_loss(
    task: Task, clients: Sequence[int], mask: Tensor, values: object, extras: object
) -> Tensor:
    """Return what a loss gave for the clients still training, once it is checked.

    Args:
        mask: [K, B], the batch's.
        values: the loss per example, [K, B] too.
        extras: the dict that may come with it, of tensors [K, B, ...].

    Raises:
        FedLoomError: says what was expected.
    """
    where, shape = call_of(task, "train_locally", *clients), list(mask.shape)
    if not isinstance(values, Tensor) or values.shape != mask.shape:
        raise FedLoomError(
            f"{where}: its loss must give one number per client and image, a tensor {shape}, not "
            f"{kind_of(values)}"
        )
    if not values.is_floating_point() or not values.requires_grad:
        raise FedLoomError(
            f"{where}: its loss must depend on the parameters that are trained, but has no gradient"
        )
    if not isinstance(extras, dict):
        raise FedLoomError(
            f"{where}: its loss may give a dict of counters as the second of two, not "
            f"{kind_of(extras)}"
        )
    for name, value in extras.items():
        if not isinstance(value, Tensor) or value.shape[:2] != mask.shape:
            raise FedLoomError(
                f"{where}: its loss must give '{name}' per client and image, as a tensor {shape} "
                f"or with more axes behind, not {kind_of(value)}"
            )
    return values


def check_logits(task: Task, clients: Cohort, labels: Tensor, logits: object) -> Tensor:
    """Check and return what predict returns for a batch with these labels [K, B].

    Raises:
        FedLoomError: it is no tensor [K, B, C] of floating-point numbers on the labels' device.
    """
    where, expected = call_of(task, "predict", *clients.ids), [*labels.shape, task.num_classes]
    if logits is None:
        raise FedLoomError(
            f"{where}: it must return logits {expected}, not None; only the server's model "
            "(clients.is_server_model) may be missing"
        )
    if not isinstance(logits, Tensor) or list(logits.shape) != expected:
        raise FedLoomError(
            f"{where}: it must return logits {expected} (clients, images, classes), not "
            f"{kind_of(logits)}"
        )
    if not logits.is_floating_point() or logits.device != labels.device:
        raise FedLoomError(
            f"{where}: it must return floating-point logits on {labels.device}, not {logits.dtype} "
            f"on {logits.device}"
        )
    return logits


def check_scores(
    task: Task, clients: Cohort, bad: Sequence[float], losses: Sequence[float]
) -> None:
    """Check that all logits were finite, and the test losses too, which may still overflow.

    Args:
        bad: number of batches of each client [K] with logits that are not finite.
        losses: summed cross-entropy of each client [K].

    Raises:
        FedLoomError: names the client.
    """
    for client, batches in zip(clients.ids, bad, strict=True):
        if batches:
            where = call_of(task, "predict", client)
            raise NotFiniteError(f"{where}: predictions are not finite (NaN or infinity); {CURE}")
    for client, loss in zip(clients.ids, losses, strict=True):
        if not math.isfinite(loss):
            where = call_of(task, "predict", client)
            raise NotFiniteError(f"{where}: predictions are too large for a finite loss; {CURE}")


def check_artefact(task: Task, name: str, table: object) -> None:
    """Check the table that artefact returns.

    Raises:
        FedLoomError: it is no table, by column.
    """
    where = call_of(task, "artefact")
    if table is None:
        raise FedLoomError(f"{where}: the method gives no '{name}' with these options")
    if not isinstance(table, dict) or not table:
        raise FedLoomError(
            f"{where}: it must return '{name}' as a dict of lists, not {kind_of(table)}"
        )
    for column, values in table.items():
        if not isinstance(column, str) or not isinstance(values, list):
            raise FedLoomError(
                f"{where}: column {column!r} of '{name}' must be a list, not {kind_of(values)}"
            )
    lengths = {column: len(values) for column, values in table.items()}
    if len(set(lengths.values())) > 1:
        raise FedLoomError(f"{where}: the columns of '{name}' differ in length: {lengths}")
    for column, values in table.items():
        try:
            pa.array(values)
        except pa.ArrowException as error:
            raise FedLoomError(
                f"{where}: column '{column}' of '{name}' cannot be written ({error})"
            ) from None
