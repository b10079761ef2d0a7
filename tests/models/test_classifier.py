"""The module: caches in half precision, and images in several batches."""

from dataclasses import replace

import numpy as np
import torch

from fedloom.backbones.cache import write_cache
from fedloom.common import tensor_files
from fedloom.contract import tiny
from fedloom.contract.tiny_run import TinyRun
from fedloom.hooks.manifest import find_method
from fedloom.machine.memory import USUAL_BATCH_LIMITS
from fedloom.models.classifier import Classifier
from fedloom.models.prepared import prepare_model

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
