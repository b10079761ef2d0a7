"""On a GPU: the same bytes twice, whatever the precision, and no step that waits for it."""

from dataclasses import replace

import pytest
import torch

from changed_task import with_training
from fedloom.common import tensor_files
from fedloom.common.trees import leaves
from fedloom.contract.tiny_run import differences_of_trees
from fedloom.data.federation import Federation
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.hooks import manifest
from fedloom.machine.device import prepare_torch
from first_round import module
from on_device import on_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
METHODS = sorted(name for name, m in manifest.discover_methods().items() if m.kind == "method")


@pytest.fixture
def on_gpu(tiny):
    """Yield on_gpu(name, precision), which makes a method's tiny task on the GPU, and its hooks."""

    def make(name: str, precision: str = "float32", compiles: bool = False):
        gpu = prepare_torch(1, precision)
        task, hooks = tiny(name)
        return on_device(task, gpu, precision, compiles), hooks

    yield make
    prepare_torch(1)


def _rounds(task, hooks, count, state=None, first=1):
    state = initial_state(task, hooks) if state is None else state
    for number in range(first, first + count):
        state, _ = train_round(task.at(number), hooks, state)
    return state


def _assert_same(one: State, other: State) -> None:
    for (path, a), (_, b) in zip(leaves(one.tree()), leaves(other.tree()), strict=True):
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert same, path


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", METHODS)
def test_two_runs_and_a_resumed_one_give_the_same_bytes(on_gpu, tmp_path, name, precision):
    task, hooks = on_gpu(name, precision)
    whole = _rounds(task, hooks, 2)
    _assert_same(whole, _rounds(task, hooks, 2))
    tensor_files.save(tmp_path / "1", _rounds(task, hooks, 1).tree())
    half = State.from_tree(tensor_files.load(tmp_path / "1")[0], task.data.device)
    _assert_same(whole, _rounds(task, hooks, 1, half, 2))
    at = task.at(2)
    assert evaluate(at, hooks, whole) == evaluate(at, hooks, whole)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["fedvpt", "pep_fedpt", "sgpt", "promptfl", "fedpha"])
def test_compiled_blocks_give_the_same_bytes_and_nearly_the_plain_ones(on_gpu, name, precision):
    task, hooks = on_gpu(name, precision, compiles=True)
    assert task.backbone.compiles
    task = with_training(task, batch_size=4)
    whole = _rounds(task, hooks, 2)
    half = _rounds(task, hooks, 1)

    # another process has not met the shapes of the first round
    torch._dynamo.reset()
    _assert_same(whole, _rounds(task, hooks, 1, half, 2))

    plain = with_training(on_gpu(name, precision)[0], batch_size=4)
    plain_leaves = dict(leaves(_rounds(plain, hooks, 2).server["params"]))
    for path, value in leaves(whole.server["params"]):
        assert (value - plain_leaves[path]).norm() <= 0.05 * plain_leaves[path].norm() + 1e-6, path


@pytest.mark.parametrize("name", ["fedvpt", "pep_fedpt", "sgpt", "promptfl", "fedotp"])
def test_float32_is_that_of_a_cpu(on_gpu, tiny, name):
    there = _rounds(*on_gpu(name), 1).server["params"]
    here = _rounds(*tiny(name), 1).server["params"]
    there = dict((path, value.cpu()) for path, value in leaves(there))
    for path, difference in differences_of_trees(dict(leaves(here)), there).items():
        assert difference < 1e-3, path


def test_images_that_are_read_ahead_are_those_on_the_gpu(on_gpu, monkeypatch):
    task, hooks = on_gpu("fedvpt")
    assert task.data.resident is not None
    resident = _rounds(task, hooks, 1)
    task = replace(task, data=replace(task.data))
    monkeypatch.setattr(Federation, "resident", None)
    assert task.data.batch([torch.arange(2).numpy()]).is_read_ahead
    _assert_same(resident, _rounds(task, hooks, 1))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "zero_shot_clip"])
def test_no_step_waits(on_gpu, monkeypatch, name, precision):
    """torch raises an error if a step waits; here, FedOTP never asks if its plan has settled."""
    task, hooks = on_gpu(name, precision)
    state = _rounds(task, hooks, 1)  # fills caches
    original = Federation.batches
    trained = []

    def batches(self, steps, fill=None):
        torch.cuda.set_sync_debug_mode("default")
        for batch in original(self, steps, fill):
            trained.append(len(steps))
            torch.cuda.set_sync_debug_mode("error" if len(steps) > 1 else "default")
            yield batch
        torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Federation, "batches", batches)
    if name == "fedotp":
        monkeypatch.setitem(module(name, "transport").ASKED_EVERY, "cuda", 1000)
    try:
        train_round(task.at(2), hooks, state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert max(trained) > 1
