"""The feature cache: what a backbone makes of every image, in one file."""

from types import SimpleNamespace

import numpy as np
import safetensors.torch
import torch

from fedloom.backbones import cache


def test_every_image_is_there_in_order_and_nothing_else_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "CACHED_AT_ONCE", 3)
    pixels = np.random.default_rng(0).integers(0, 256, (10, 2, 2, 1), np.uint8)

    class Store:
        def __len__(self):
            return 10

        def images(self, rows):
            return pixels[rows]

    def cached(images, what):
        x = images.flatten(1).float()
        return {what: x, "other": x[:, :, None].expand(-1, -1, 5).half() / 3}

    backbone = SimpleNamespace(device=torch.device("cpu"), compute_cache=cached)
    cache.write(backbone, Store(), "patches", tmp_path / "deep" / "x.safetensors")
    found = safetensors.torch.load_file(tmp_path / "deep" / "x.safetensors")
    expected = cached(torch.from_numpy(pixels), "patches")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x.safetensors"]


def test_a_cache_has_the_format_that_was_asked_for_and_is_read_as_float32(tmp_path, tiny):
    task, _ = tiny("sgpt")
    rows = [task.data.train[0][:3]]
    plain = task.data.batch(rows).features
    cache.write(task.backbone, task.data.store, "features", tmp_path / "x", torch.bfloat16)
    found = safetensors.torch.load_file(tmp_path / "x")
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    task.data.tokens = lambda place: found["final"]
    features = task.data.batch(rows).features
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, plain, atol=0, rtol=2**-8)
