"""`fedloom.load`: the model that a run has trained."""

from os import PathLike

import torch

from fedloom.common.errors import FedLoomError
from fedloom.models.classifier import Classifier
from fedloom.models.from_run import read_round
from fedloom.models.model import Model
from fedloom.models.prepared import prepare_model

PRECISIONS = ("float32", "tf32", "bf16")


def load(
    run: str | PathLike,
    *,
    client: int | None = None,
    round: int | None = None,
    device: str | torch.device = "cpu",
    precision: str | None = None,
) -> Model:
    """Return the model that a run has trained: its server's, or that of a client.

    Args:
        run: the run's folder below results/runs, or its labels, as
            "styles/domains/micro_vit/fedvpt/seed0"; the study's name may stand before the labels.
        client: the id of a client, for its personalised model; default: the server's model.
        round: the round after which the model is read, one with which a job of the run ended;
            default: the last.
        device: the device on which it computes, such as "cuda".
        precision: the number format of the backbone: float32, tf32 or bf16; default: that of the
            study (study.precision).

    Raises:
        FedLoomError: there is no such run or round, the method has no such model, the client never
            trained, or a file is missing or was changed.
    """
    if precision is not None and precision not in PRECISIONS:
        raise FedLoomError(f"precision: must be one of {', '.join(PRECISIONS)}, got '{precision}'")
    place = _device(device)
    found = read_round(run, round, place, precision)
    received, clients = prepare_model(found.task, found.hooks, found.state, client)
    prepare = found.preparation
    module = Classifier(
        found.task,
        found.hooks,
        received,
        clients,
        (prepare.height, prepare.width, prepare.channels),
        found.spec.backbone.settings.get("cache_format", "float32"),
    )

    # a method may have no server's model, and a backbone may refuse the size of the images
    module(torch.zeros(1, prepare.channels, prepare.height, prepare.width, dtype=torch.uint8))

    name = f"{found.spec.run.path} after round {found.task.round}"
    if client is not None:
        name = f"{name}, client {client}"
    return Model(name, found.task.data.classes, prepare, module)


def _device(device: str | torch.device) -> torch.device:
    """Return a device; raise a FedLoomError if torch cannot compute on it."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FedLoomError(f"device: torch cannot use '{device}' ({reason}); use cpu") from None
    return found
