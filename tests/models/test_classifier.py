"""The module: caches in half precision, and images in several batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.backbones.cache import write_cache
from fedloom.common import tensor_files
from fedloom.contract import tiny
from fedloom.contract.tiny_run import TinyRun
from fedloom.federated.round import initial_state
from fedloom.hooks import loader
from fedloom.hooks.manifest import find_method
from fedloom.machine.memory import USUAL_BATCH_LIMITS
from fedloom.models.classifier import Classifier
from fedloom.models.prepared import prepare_model
from on_device import on_device
from pretended_gpu import CUDA, OnGPU, pretended_gpu

SIDE = tiny.TINY_SIDE


def model(method: str, folder) -> tuple[TinyRun, Classifier]:
    """Return a tiny run of a round, and its server's model."""
    run = TinyRun(find_method(method), folder, backbone=tiny.tiny_vit())
    received, clients = prepare_model(run.task.at(1), run.hooks, run.first, None)
    return run, Classifier(run.task.at(1), run.hooks, received, clients, (SIDE, SIDE, 1))


def test_features_are_rounded_as_the_file_of_the_cache_rounds_them(tmp_path):
    """A study may keep features in bf16; its evaluation then reads rounded ones."""
    run, exact = model("head_tuning", tmp_path)
    store = run.task.data.store
    rows = np.arange(7)
    pixels = torch.from_numpy(store.images(rows)).movedim(-1, 1)
    head = exact.received["params"]["head"][0]

    # the file, as the job of the cache writes it
    half = tiny.tiny_vit()
    half.precision = "bf16"
    file = tmp_path / "cache.safetensors"
    write_cache(half, store, "features", file, torch.bfloat16)
    expected = tensor_files.tensor(file, "final")[:7].float() @ head.T

    rounded = Classifier(
        exact.task, exact.hooks, exact.received, exact.clients, exact.shape, "bf16"
    )
    torch.testing.assert_close(rounded(pixels), expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(exact(pixels), expected, rtol=1e-6, atol=1e-6)


def test_many_images_are_answered_in_batches(tmp_path):
    run, module = model("fedvpt", tmp_path)
    images = torch.from_numpy(run.task.data.store.images(np.arange(23))).movedim(-1, 1)
    whole = module(images)
    seen = []
    predict = module.hooks.predict

    def remember(**given):
        seen.append(given["batch"].index.shape)
        return predict(**given)

    module.hooks.predict = remember
    module.task = replace(module.task, limits=replace(USUAL_BATCH_LIMITS, floats=0))
    torch.testing.assert_close(module(images), whole, rtol=1e-6, atol=1e-6)
    assert [shape[1] for shape in seen] == [12, 11]


@pytest.mark.parametrize(
    ("method", "client"), [("head_tuning", None), ("fedvpt", None), ("fedotp", 1), ("pep_fedpt", 1)]
)
def test_a_module_computes_on_the_gpu_alone(tmp_path, monkeypatch, method, client):
    """The methods read features, pixels, patches or prototypes. The pixels come from the host."""
    plugin = find_method(method)
    pixels = torch.zeros(3, 1, SIDE, SIDE, dtype=torch.uint8)
    # a pretended tensor cannot be one of inference
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    with pretended_gpu():
        task = on_device(tiny.tiny_task(plugin, tmp_path), CUDA).at(1)
        hooks = loader.load_hooks(plugin)
        state = initial_state(task, hooks)
        state.clients[1] = hooks.init_client(task=task.at(0), client=1)
        received, clients = prepare_model(task, hooks, state, client)
        logits = Classifier(task, hooks, received, clients, (SIDE, SIDE, 1))(pixels)
    assert isinstance(logits, OnGPU) and logits.shape == (3, task.num_classes)
