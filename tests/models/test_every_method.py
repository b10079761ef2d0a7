"""The module of every method answers images of files as the study's evaluation answers its own."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.config.settings import Wrapper
from fedloom.contract import tiny
from fedloom.contract.tiny_run import TinyRun
from fedloom.federated.evaluate import evaluate, evaluate_globally
from fedloom.hooks.manifest import discover_methods, find_method
from fedloom.models.classifier import Classifier
from fedloom.models.content import build_classifier, content_of
from fedloom.models.images import Preparation
from fedloom.models.prepared import prepare_model
from fedloom.models.published import read_content, write_content

pytestmark = pytest.mark.slow

METHODS = [name for name, plugin in discover_methods().items() if plugin.kind == "method"]
# methods whose clients pick prompts by their training images when they predict
PICK_BY_IMAGES = {"pfpt"}
SIDE = tiny.TINY_SIDE
# rounding of float32: an evaluation answers for several clients at once
CLOSE = 1e-6


def trained(method: str, folder, *wrappers: str, partition: dict = tiny.DIFFERENT) -> TinyRun:
    """Return a run on a backbone of its own: inference marks a backbone's tensors."""
    plugin = find_method(method)
    make = {"vit": tiny.tiny_vit, "clip": tiny.tiny_clip}[plugin.family]
    run = TinyRun(plugin, folder, *map(find_method, wrappers), partition=partition, backbone=make())

    # the file of a cache holds patches in half precision
    data = run.task.data
    if data.patches is not None:
        patches = data.patches().half()
        run.task = replace(run.task, data=replace(data, patches=lambda: patches))
    return run


def logits_of_evaluation(run: TinyRun, state, monkeypatch) -> dict[int, torch.Tensor]:
    """Return the logits [B, C] of each client's last answers to its own test images, by its id.

    At -1 are those of the server's model to all test images, if the method has one. They are the
    results of `predict` in an evaluation, plus the offsets that it adds.
    """
    seen: dict[int, torch.Tensor] = {}
    predict = run.hooks.predict

    def remember(*, task, received, clients, batch):
        logits = predict(task=task, received=received, clients=clients, batch=batch)
        for k, client in enumerate(clients.ids):
            if logits is not None:
                seen[client] = logits[k, : batch.counts[k]]
                if clients.logit_offsets is not None:
                    seen[client] = seen[client] + clients.logit_offsets[k]
        return logits

    monkeypatch.setattr(run.hooks, "predict", remember)
    task = run.task.at(2)
    evaluate(task, run.hooks, state)
    of_clients = dict(seen)
    evaluate_globally(task, run.hooks, state)
    monkeypatch.undo()
    if SERVER_MODEL in seen:
        of_clients[SERVER_MODEL] = seen[SERVER_MODEL]
    return of_clients


def pixels_of(run: TinyRun, rows: np.ndarray, folder) -> torch.Tensor:
    """Return images of the store as they come back from PNG files, uint8 [N, 1, H, W]."""
    prepare = Preparation(SIDE, SIDE, 1)
    pixels = []
    for row in rows:
        file = folder / f"{row}.png"
        Image.fromarray(run.task.data.store.images(np.array([row]))[0, ..., 0]).save(file)
        pixels.append(prepare(Image.open(file)))
    return torch.stack(pixels)


def module_of(run: TinyRun, state, client: int | None) -> Classifier:
    """Return the module of a client, or of the server."""
    task = run.task.at(2)
    received, clients = prepare_model(task, run.hooks, state, client)
    return Classifier(task, run.hooks, received, clients, (SIDE, SIDE, 1))


def published(run: TinyRun, module: Classifier, folder) -> Classifier:
    """Return the module that a reader of a published folder gets."""
    spec = tiny.tiny_job(run.method).spec
    wrappers = tuple(Wrapper(each.name, each.complete_options({})) for each in run.wrappers)
    spec = replace(spec, method=replace(spec.method, wrappers=wrappers))
    write_content(content_of(module, spec, Preparation(SIDE, SIDE, 1), None), folder)
    return build_classifier(read_content(folder), run.task.backbone)


@pytest.mark.parametrize("method", METHODS)
def test_a_module_gives_the_logits_of_the_evaluation(method, tmp_path, monkeypatch):
    """The server's model is compared, and that of each client that has one, also published."""
    check(trained(method, tmp_path), tmp_path, monkeypatch)


@pytest.mark.parametrize("wrapper", ["class_priors", "quantize"])
def test_wrappers_take_part_in_the_answers(wrapper, tmp_path, monkeypatch):
    """One adds to the clients' logits; the other packs what clients send."""
    check(trained("fedvpt", tmp_path, wrapper), tmp_path, monkeypatch)


def test_a_model_of_a_stream_knows_the_classes_that_had_arrived(tmp_path, monkeypatch):
    """The second half of the classes arrives in round 3, after the round of the model."""
    stream = tiny.ALIKE | {"arrivals": {"of": "classes", "at": [3], "keep": False}}
    run = trained("fppl", tmp_path, partition=stream)
    check(run, tmp_path, monkeypatch)
    logits = module_of(run, run.after(2), None)(torch.zeros(1, 1, SIDE, SIDE, dtype=torch.uint8))
    coming = (~run.task.at(2).arrived.seen).nonzero().flatten().tolist()
    assert sorted(logits[0].argsort()[: len(coming)].tolist()) == coming != []


def check(run: TinyRun, folder, monkeypatch) -> None:
    """Compare all models of a run with the study's evaluation."""
    state = run.after(2)
    expected = logits_of_evaluation(run, state, monkeypatch)
    data = run.task.at(2).data
    compared = 0

    # each client on its own test images, and the same without the data of any client
    for client in data.tested:
        try:
            module = module_of(run, state, client)
        except FedLoomError as error:
            assert re.search("leave out client|never trained", str(error))
            continue
        images = pixels_of(run, data.test[client], folder)
        answers = module(images)
        torch.testing.assert_close(answers, expected[client], rtol=CLOSE, atol=CLOSE)
        again = published(run, module, folder / f"published {client}")
        if run.method.name in PICK_BY_IMAGES:
            with pytest.raises(FedLoomError, match="reads a client's training images when it pred"):
                again(images)
        else:
            assert torch.equal(again(images), answers)
        compared += 1

    # the server's model on all test images, and the same without the data of any client
    images = pixels_of(run, np.sort(np.concatenate(data.test)), folder)
    server = module_of(run, state, None)
    if SERVER_MODEL in expected:
        answers = server(images)
        torch.testing.assert_close(answers, expected[SERVER_MODEL], rtol=CLOSE, atol=CLOSE)
        assert torch.equal(published(run, server, folder / "published")(images), answers)
        return

    # without such a model, every client that trained has one
    with pytest.raises(FedLoomError, match="the server has no model of its own"):
        server(images)
    assert compared >= len(state.clients) > 0
