"""A step in parts: gradients added up over micro-batches are those of the whole batch."""

import math
import weakref

import pytest
import torch
import torch.nn.functional as F

from changed_task import with_training
from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import leaves, stack
from fedloom.federated.augmentation import training_batch
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.hooks import manifest
from fedloom.planning.load_plan import resolve
from fedloom.toolbox import linear, train_locally
from three_blocks import backbone

METHODS = [
    name
    for name, method in manifest.discover_methods().items()
    if method.kind == "method"
    and method.trained
    and method.refused_parts(method.complete_options({}), micro_batch=3, stacked=True) is None
]


def _one_step(tiny, name, **training):
    """Return the state and the loss after a round of one step on all images of a client."""
    options = {
        "fedic": {"server_steps": 2},
        # experts that start equal have gradients near 0 in places, and AdamW's first step
        # magnifies their rounding
        "trip": {"same_start": False},
    }.get(name, {})
    task, hooks = tiny(name, backbone=backbone(name), **options)
    values = {"epochs": 1, "batch_size": 64, **training}
    task = with_training(task, **values)
    sizes = {len(task.data.train[k]) for k in task.data.participating}
    assert len(sizes) > 1, "batches are ragged"
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    return dict(leaves(state.tree())), row.train_loss


@pytest.mark.parametrize("name", METHODS)
def test_a_step_in_parts_is_a_step(tiny, name):
    whole, loss = _one_step(tiny, name)
    parts, loss_of_parts = _one_step(tiny, name, micro_batch=3)
    assert loss_of_parts == pytest.approx(loss, abs=1e-6)
    assert whole.keys() == parts.keys()
    for path, value in whole.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            scale = value.abs().max().clamp(min=1)
            torch.testing.assert_close(parts[path] / scale, value / scale, atol=5e-6, rtol=0)


def _loss(task, params, received, clients, batch):
    """Return losses in float64, with a term that does not depend on images, and a counter."""
    logits = linear(batch.features.double(), params["head"])
    entropy = F.cross_entropy(logits.mT, batch.labels, reduction="none")
    decay = params["head"].square().flatten(1).sum(1)
    one_hot = F.one_hot(batch.labels, task.num_classes)
    counted = params["counters"]["classes"].sum(1)  # the same for all parts of a step
    values = entropy * (1 + 0.01 * counted[:, None]) + 0.1 * decay[:, None]
    return values, {"classes": one_hot, "reported_loss": entropy}


def _train(task, **training):
    task = task.at(1)
    task = with_training(task, **training)
    ids = task.data.participating
    head = torch.randn(4, task.backbone.width, generator=torch.Generator().manual_seed(0)).double()
    received = stack([{"params": {"head": head}} for _ in ids])
    counters = {"classes": torch.zeros(len(ids), 4, dtype=torch.int64)}
    clients = cohort(task, ids, [{} for _ in ids])
    return train_locally(task, _loss, received, clients, counters=counters)


def _rounding_of_loss(steps, size):
    """Return how far the losses of whole batches and of parts may differ, relative to the losses.

    A client's logged loss is a sum in float32, of one number for every step, or for every part of a
    step. No number is negative. So each addition rounds by at most 2^-24 of the final sum. The
    numbers themselves are in float64; their last bits depend on the CPU, and decide how a sum
    rounds.
    """
    of_whole = max(steps)
    of_parts = max(steps) * math.ceil(7 / size)
    return (of_whole + of_parts) * torch.finfo(torch.float32).eps / 2


MOMENTUM = {"optimizer": "sgd", "momentum": 0.9, "clip": 0.5, "weight_decay": 0.01, "lr": 0.3}
ADAM = {"optimizer": "adam", "lr": 0.05, "clip": None}


@pytest.mark.parametrize("options", [MOMENTUM, ADAM], ids=["momentum and clipping", "adam"])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_training_in_parts_is_training(tiny, options, size):
    """Clients train three epochs of ragged batches in float64; some finish before others."""
    task, _ = tiny("head_tuning")
    whole = _train(task, epochs=3, batch_size=7, **options)
    parts = _train(task, epochs=3, batch_size=7, micro_batch=size, **options)
    assert whole.steps == parts.steps
    assert len(set(whole.steps)) > 1
    torch.testing.assert_close(parts.params["head"], whole.params["head"], atol=1e-12, rtol=1e-12)
    assert parts.loss == pytest.approx(whole.loss, rel=_rounding_of_loss(whole.steps, size), abs=0)
    assert torch.equal(parts.counters["classes"], whole.counters["classes"])


def test_augmented_images_are_those_of_the_whole_batch(tiny):
    """Augmentation draws from a client's stream in order, so parts must not begin it anew."""
    task, _ = tiny("head_tuning")
    task = with_training(task, augment=True)
    rows = [task.data.train[k][:n] for k, n in ((1, 7), (2, 3))]
    batch = training_batch(task.at(1), [1, 2], task.data.batch(rows), phase=0, step=0)
    batch.seen = (10, 20)
    parts = list(batch.parts(4))
    assert [part.counts for part in parts] == [(4, 3), (3, 0)]
    assert [part.seen for part in parts] == [(10, 20), (14, 23)]
    assert torch.equal(torch.cat([part.mask for part in parts], 1), batch.mask)
    for name in ("images", "features", "labels", "index"):
        joined = torch.cat([torch.as_tensor(getattr(part, name)) for part in parts], 1)
        assert torch.equal(joined, torch.as_tensor(getattr(batch, name)))
    plain = task.data.batch(rows)
    assert not torch.equal(plain.images, batch.images), "they are augmented"


class _Holder:
    """An object that autograd keeps in place of a tensor, and frees with the graph."""

    def __init__(self, value):
        self.value = value


class _Saved:
    """Counts the bytes that autograd keeps for the backward pass, storage by storage."""

    def __init__(self):
        self.now = 0
        self.peak = 0
        self.users = {}

    def pack(self, value):
        storage = value.untyped_storage()
        key = storage.data_ptr()
        size = storage.nbytes()
        self.users[key] = self.users.get(key, 0) + 1
        if self.users[key] == 1:
            self.now += size
            self.peak = max(self.peak, self.now)
        holder = _Holder(value)
        weakref.finalize(holder, self._drop, key, size)
        return holder

    def _drop(self, key, size):
        self.users[key] -= 1
        if not self.users[key]:
            self.now -= size

    @staticmethod
    def unpack(holder):
        return holder.value


def test_memory_follows_the_part_and_not_the_batch(tiny):
    peaks = {}
    for size in (None, 2, 1):
        task, hooks = tiny("fedvpt")
        task = with_training(task, epochs=1, batch_size=16, micro_batch=size)
        state = initial_state(task, hooks)
        saved = _Saved()
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            train_round(task.at(1), hooks, state)
        assert saved.now == 0
        peaks[size] = saved.peak
    assert peaks[2] < peaks[None] / 4
    assert peaks[1] < 0.7 * peaks[2]


def _study(methods, **study):
    config = default_config()
    config["study"] |= study
    config["methods"] |= methods
    config["select"] |= {"methods": list(methods), "figures": []}
    return resolve(config)


SGPT = {"plugin": "sgpt", "options": {"majority": True}}
MICRO = {"training": {"micro_batch": 2}}


def test_a_loss_that_is_of_a_batch_as_a_whole_refuses_parts():
    for entry in (SGPT, {"plugin": "pfpt", "options": {"variant": "released"}}):
        with pytest.raises(FedLoomError, match=r"methods.m: .* set training.micro_batch: null"):
            _study({"m": entry | MICRO})
        _study({"m": entry})
    assert _study({"m": {"plugin": "sgpt"} | MICRO}).methods["m"].training["micro_batch"] == 2
    assert manifest.find_method("fedotp").couples_images is True
    with pytest.raises(FedLoomError, match=r"training\.micro_batch: must be"):
        _study({"m": {"plugin": "fedvpt", "training": {"micro_batch": 0}}})


def test_clients_that_train_one_after_another_refuse_cohorts_of_one():
    released = {"plugin": "pfpt", "options": {"variant": "released"}}
    with pytest.raises(FedLoomError, match=r"methods.m: .* set study.stacked: true"):
        _study({"m": released}, stacked=False)
    apart = {"plugin": "pfpt", "options": {"variant": "released", "shared_pool": False}}
    assert _study({"m": apart}, stacked=False).study.stacked is False
