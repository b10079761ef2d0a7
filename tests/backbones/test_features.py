"""The feature cache: what a backbone makes of every image, in one file."""

from types import SimpleNamespace

import numpy as np
import safetensors.torch
import torch

from fedloom.backbones import cache


def test_every_image_is_there_in_order_and_nothing_else_is_left(tmp_path):
    class Store:
        """A store of ten images of 2 x 2 pixels, each of which is the image's number."""

        def __len__(self):
            return 10

        def images(self, rows):
            return np.repeat(rows, 4).reshape(len(rows), 2, 2, 1).astype(np.uint8)

    asked = []

    def halves(images, what):
        asked.append((what, len(images)))
        return {"mean": images.float().mean((1, 2)), "half": images[:, 0, :, 0].half() / 2}

    backbone = SimpleNamespace(device=torch.device("cpu"), compute_cache=halves)
    cache.write_cache(backbone, Store(), "patches", tmp_path / "deep" / "x.safetensors", at_once=3)
    assert asked == [("patches", 3), ("patches", 3), ("patches", 2), ("patches", 2)]
    found = safetensors.torch.load_file(tmp_path / "deep" / "x.safetensors")
    assert found.keys() == {"mean", "half"}
    numbers = torch.arange(10.0)
    assert torch.equal(found["mean"], numbers[:, None])
    assert torch.equal(found["half"], torch.stack([numbers, numbers], 1).half() / 2)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x.safetensors"]


def test_a_cache_has_the_format_that_was_asked_for_and_is_read_as_float32(tmp_path, tiny):
    task, _ = tiny("sgpt")
    rows = [task.data.train[0][:3]]
    plain = task.data.batch(rows).features
    cache.write_cache(task.backbone, task.data.store, "features", tmp_path / "x", torch.bfloat16)
    found = safetensors.torch.load_file(tmp_path / "x")
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    task.data.tokens = lambda place: found["final"]
    features = task.data.batch(rows).features
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, plain, atol=0, rtol=2**-8)
