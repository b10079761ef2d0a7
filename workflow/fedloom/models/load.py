"""`fedloom.load`: the model that a run has trained."""

from os import PathLike
from pathlib import Path

import torch

from fedloom.backbones.backbone import load_backbone
from fedloom.common.errors import FedLoomError
from fedloom.config.settings import local_weights
from fedloom.models.classifier import Classifier
from fedloom.models.content import ModelContent, build_classifier, content_of
from fedloom.models.from_run import read_round
from fedloom.models.hub import fetch_model
from fedloom.models.model import Model
from fedloom.models.prepared import prepare_model
from fedloom.models.published import ANEW, read_content
from fedloom.models.run_folder import CONFIG, is_published, match_hub_name
from fedloom.models.weights import (
    check_weights,
    with_files_below,
    with_precision,
    with_weights_among,
)

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
            "styles/four_classes/micro_vit/fedvpt/seed0"; the study's name may stand before the
            labels. Or a folder that `fedloom publish` wrote, or the name of one on Hugging Face's
            hub, as "owner/name" or "owner/name@revision", which is downloaded.
        client: the id of a client, for its personalised model; default: the server's model.
        round: the round after which the model is read, one with which a job of the run ended;
            default: the last.
        device: the device on which it computes, such as "cuda".
        precision: the number format of the backbone: float32, tf32 or bf16; default: that of the
            study (study.precision).

    Raises:
        FedLoomError: there is no such run or round, the method has no such model, the client never
            trained, a file is missing or was changed, or the hub does not give the model.
    """
    if precision is not None and precision not in PRECISIONS:
        raise FedLoomError(f"precision: must be one of {', '.join(PRECISIONS)}, got '{precision}'")
    place = _device(device)
    if is_published(Path(run)):
        return _load_published(Path(run), client, round, place, precision)
    name = match_hub_name(run)
    if name is not None:
        folder, advice = fetch_model(name)
        return _load_published(folder, client, round, place, precision, advice)

    found = read_round(run, round, place, precision)
    received, clients = prepare_model(found.task, found.hooks, found.state, client)
    module = Classifier(
        found.task,
        found.hooks,
        received,
        clients,
        found.preparation.shape,
        found.spec.backbone.settings.get("cache_format", "float32"),
    )
    return _checked_model(content_of(module, found.spec, found.preparation, found.weights), module)


def _load_published(
    folder: Path,
    client: int | None,
    round_number: int | None,
    device: torch.device,
    precision: str | None,
    advice: str = ANEW,
) -> Model:
    """Return the model in a folder that `fedloom publish` wrote.

    An error about its files ends with the advice.

    Raises:
        FedLoomError: a file is missing or was changed, the backbone has other weights, or the
            folder holds the model of another client or round.
    """
    content = read_content(folder, advice)
    facts = content.facts
    if client not in (None, facts.client):
        raise FedLoomError(
            f"{folder}: holds {facts.whose}, not that of client {client}; leave out client"
        )
    if round_number not in (None, facts.round):
        raise FedLoomError(
            f"{folder}: holds the model after round {facts.round}, not after {round_number}; leave "
            "out round"
        )

    # a file of weights, and the folder of a tokenizer, may lie beside the model
    named = facts.spec.backbone
    beside = folder / Path(named.settings["weights"]).name
    used = with_weights_among(with_precision(named, precision), [beside])
    file = local_weights(used)
    if file is not None and not file.is_file():
        raise FedLoomError(
            f"{folder / CONFIG}: the file of the backbone's weights is not here (sha256 "
            f"{facts.weights}); put it at {beside} or {file}"
        )
    used = with_files_below(used, folder)
    backbone = load_backbone(used.library, used.settings, device)
    check_weights(folder / CONFIG, used, backbone, facts.weights)
    return _checked_model(content, build_classifier(content, backbone))


def _checked_model(content: ModelContent, module: Classifier) -> Model:
    """Return a model that can answer images; raise a FedLoomError if it cannot."""
    module.check()
    return Model(content, content.facts.preparation, module)


def _device(device: str | torch.device) -> torch.device:
    """Return a device; raise a FedLoomError if torch cannot compute on it."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FedLoomError(f"device: torch cannot use '{device}' ({reason}); use cpu") from None
    return found
