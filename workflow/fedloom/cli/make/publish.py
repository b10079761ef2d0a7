"""`fedloom publish`: write a run's model into a folder that needs no study."""

import logging
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

import torch

from fedloom.cli.make.model_card import model_card
from fedloom.common.errors import FedLoomError
from fedloom.common.files import temporary_folder, write_text
from fedloom.config.kind_plugins import path_keys
from fedloom.config.settings import local_weights
from fedloom.models.content import build_classifier
from fedloom.models.load import load
from fedloom.models.model import Model
from fedloom.models.published import CARD, read_content, read_facts, write_content
from fedloom.models.run_folder import CONFIG, TENSORS, find_run
from fedloom.models.weights import is_shipped, without_folders

log = logging.getLogger(__name__)
# the number of random images on which a published model is compared with that of the run
COMPARED = 8


def publish(
    run: str | PathLike,
    folder: str | PathLike,
    *,
    client: int | None = None,
    round: int | None = None,
) -> str:
    """Write a run's model into a folder: tensors, config.json and a model card.

    Return a line for each file that was written, with its size.

    Args:
        run, client, round: as in `fedloom.load`. The model of a client reveals its class shares
            and its personal state, as a warning says.
        folder: the folder, which is made if it does not exist.

    Raises:
        FedLoomError: the folder holds other files, which stay as they are, or the model needs a
            client's data to answer.
    """
    folder = Path(folder)
    _check_replaceable(folder)
    root, labels = find_run(fspath(run))
    model = _without_folders(load(run, client=client, round=round))
    if client is not None:
        log.warning(
            "note: the model of client %d is published, with its class shares and its personal "
            "state, from which others may learn about its data",
            client,
        )

    # write the files under temporary names, and keep them only if the model answers from them
    with temporary_folder(folder) as temporary:
        write_content(model.content, temporary)
        _check_answers(model, temporary)
        write_text(temporary / CARD, model_card(root, labels, model, folder.resolve().name))
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for name in (TENSORS, CONFIG, CARD):
            (temporary / name).replace(folder / name)
            lines.append(f"{folder / name}  {(folder / name).stat().st_size:,} bytes")
    return "\n".join(lines)


def _without_folders(model: Model) -> Model:
    """Return a model whose facts name no folder of the publisher, which may have a user's name.

    Notes say which files of the backbone people need beside the published ones.
    """
    facts = model.content.facts
    backbone = without_folders(facts.spec.backbone)
    needed = {}
    if local_weights(backbone) is not None and not is_shipped(backbone):
        needed["weights"] = backbone.settings["weights"]
    for key in path_keys(backbone.library):
        if backbone.settings.get(key):
            needed[key] = backbone.settings[key]
    for key, name in needed.items():
        log.warning(
            "note: the backbone's %s are not among the files; the model is loaded where '%s' lies "
            "beside them",
            key,
            name,
        )
    facts = replace(facts, spec=replace(facts.spec, backbone=backbone))
    return replace(model, content=replace(model.content, facts=facts))


def _check_replaceable(folder: Path) -> None:
    """Check that a folder is missing or empty, or holds a model that FedLoom published.

    Models of other libraries have files of the same names.

    Raises:
        FedLoomError: it holds something else, or is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise FedLoomError(f"{folder}: must be a folder, got a file; name another")
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        read_facts(folder / CONFIG)
    except FedLoomError:
        raise FedLoomError(
            f"{folder}: must be empty, or hold a model that `fedloom publish` wrote; name another"
        ) from None


def _check_answers(model: Model, folder: Path) -> None:
    """Check that the files in a folder answer images as the model of the run does.

    Raises:
        FedLoomError: they do not. Some methods read a client's training images when they predict.
    """
    prepare = model.transform
    shape = (COMPARED, prepare.channels, prepare.height, prepare.width)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    method = model.module.task.method
    whose = model.content.facts.whose
    try:
        # with the weights of the run, which need not lie beside the files
        published = build_classifier(read_content(folder), model.module.task.backbone)
        answers = published(pixels)
    except FedLoomError as error:
        raise FedLoomError(f"{method}: {whose} cannot be published: {error}") from None
    if not torch.allclose(answers, model.module(pixels), rtol=1e-5, atol=1e-5):
        raise FedLoomError(
            f"{method}: {whose} cannot be published, since it answers otherwise without the data "
            "of clients; load it from the run"
        )
