"""Augmentation of training images: random, but the same whatever trains beside it."""

import pytest
import torch
import torch.nn.functional as F

from changed_task import with_training
from fedloom.common.errors import FedLoomError
from fedloom.contract import checks
from fedloom.federated.augmentation import training_batch
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import manifest
from fedloom.hooks.training_options import DEFAULTS


@pytest.fixture
def task(tiny):
    """Return task(name, **training), which makes an augmented task of a method, and its hooks."""

    def make(name="promptfl", **training):
        task, hooks = tiny(name)
        return with_training(task, **{"augment": True, **training}), hooks

    return make


def _batch(task, clients, block=0, step=0, number=1):
    rows = [task.data.train[k][: 3 + k] for k in clients]
    return training_batch(task.at(number), clients, task.data.batch(rows), block, step)


@pytest.mark.parametrize("name", ["fedotp", "sgpt"])
def test_a_client_gets_the_same_bytes_in_any_company(task, name):
    one, _ = task(name)
    together = _batch(one, [0, 2])  # clients with 3 and 5 images
    for k, client in enumerate((0, 2)):
        alone = _batch(one, [client])
        count = 3 + client
        assert torch.equal(alone.images[0], together.images[k, :count])
        assert torch.equal(alone.features[0], together.features[k, :count])
        if name == "fedotp":
            assert torch.equal(alone.patches[0], together.patches[k, :count])
        else:
            assert torch.equal(alone.class_tokens(3)[0], together.class_tokens(3)[k, :count])


def test_every_step_draws_anew_and_always_the_same(task):
    one, _ = task()
    drawn = [_batch(one, [2], *where).images for where in ((), (1,), (0, 1), (0, 0, 2))]
    plain = _batch(task(augment=False)[0], [2]).images
    for i, images in enumerate(drawn):
        assert images.dtype == torch.uint8
        assert all(not torch.equal(images, other) for other in [plain, *drawn[:i]])
    torch.rand(3)  # the global stream must not matter, nor be moved
    before = torch.get_rng_state()
    assert torch.equal(_batch(one, [2]).images, drawn[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_images_are_cropped_and_flipped(task, monkeypatch):
    """Pixels rise from left to right, and do so in the half of the crops that is not flipped."""
    one, _ = task()
    ramp = torch.arange(0, 256, 16, dtype=torch.uint8).expand(16, 16).unsqueeze(-1).numpy()
    monkeypatch.setattr(one.data.store, "images", lambda rows: ramp[None].repeat(len(rows), 0))
    rows = torch.zeros(400, dtype=torch.int64).numpy()
    images = training_batch(one.at(1), [0], one.data.batch([rows]), 0, 0).images[0, ..., 0].float()
    slope = (images[:, :, -1] - images[:, :, 0]).mean(1)
    assert 150 < (slope > 0).sum() < 250
    share = slope.abs() / 240  # the share of the width that a crop keeps
    assert share.max() <= 1 and share.min() < 0.45 and 0.55 < share.mean() < 0.85


def test_images_are_shifted_by_an_eighth_and_flipped(task):
    """torchvision's RandomCrop(32, padding=4) shifts CIFAR likewise; new pixels are black."""
    one, _ = task(augment="shift")
    side = one.backbone.pixels.size[0]
    border = one.backbone.pixels.size[0] // 8
    rows = one.data.train[2][:5]
    found = set()
    for step in range(4):
        shifted = training_batch(one.at(1), [2], one.data.batch([rows]), 0, step).images[0]
        for image, drawn in zip(one.data.batch([rows]).images[0], shifted, strict=True):
            padded = F.pad(image.movedim(-1, 0), (border,) * 4)
            views = {
                (y, x, flip): padded[:, y : y + side, x : x + side].movedim(0, -1)
                for y in range(2 * border + 1)
                for x in range(2 * border + 1)
                for flip in (False, True)
            }
            found |= {
                (y, x, flip)
                for (y, x, flip), view in views.items()
                if torch.equal(view.flip(1) if flip else view, drawn)
            }
    assert len(found) > 8 and {flip for *_, flip in found} == {False, True}


def test_features_are_those_of_the_images_and_the_cache_is_not_read(task):
    one, hooks = task()
    batch = _batch(one, [0, 1])
    final, patches = one.backbone.image_features(batch.images)
    torch.testing.assert_close(batch.features[batch.mask], final[batch.mask], atol=1e-6, rtol=0)
    real = batch.mask[..., None, None]
    torch.testing.assert_close(batch.patches * real, patches * real, atol=1e-3, rtol=0)

    def asked(place):
        raise AssertionError("the cache was read")

    state_before = initial_state(one, hooks)
    one.data.tokens = asked
    train_round(one.at(1), hooks, state_before)
    with pytest.raises(FedLoomError, match="cache was read"):  # evaluation is not augmented
        evaluate(one.at(1), hooks, state_before)


@pytest.mark.parametrize("name", ["promptfl", "fedotp", "fedvpt"])
def test_resumed_stacked_and_alone_are_alike(name, tmp_path, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "augment", True)
    method = manifest.find_method(name)
    for number, check in enumerate((checks.resumes, checks.stacks)):
        (tmp_path / str(number)).mkdir()
        check(method, tmp_path / str(number))
