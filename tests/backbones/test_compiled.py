"""study.compile: which steps are compiled, by the compiler for CPU cores, and what they give."""

import logging
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from changed_task import with_training
from fedloom.backbones import compiled
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.backbones.compiled import are_compiled, can_compile, compile_blocks
from fedloom.backbones.vit import FrozenViT
from fedloom.common.trees import leaves
from fedloom.contract.tiny_run import differences_of_trees
from fedloom.federated.round import initial_state, train_round

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(bool(compiled._why_not(CPU)), reason="there is no C++ compiler")


@pytest.fixture
def compiling(tiny):
    """Return compiling(name): a tiny task whose backbone compiles, and the method's hooks."""

    def make(name):
        task, hooks = tiny(name)
        old = task.backbone
        if isinstance(old, FrozenViT):
            backbone = FrozenViT(old.model, compile_setting=True)
        else:
            tokenizer = old._text._tokenizer
            backbone = FrozenCLIP(old.model, tokenizer, "tiny", compile_setting=True)
        return replace(task, backbone=backbone), hooks

    return make


def train(task, hooks, rounds, state=None):
    """Train the rounds of these numbers, from a state or from the beginning."""
    state = state or initial_state(task, hooks)
    for round_number in rounds:
        state, _ = train_round(task.at(round_number), hooks, state)
    return state


def largest_difference(a, b):
    """Return the largest difference of two states' tensors."""
    differences = differences_of_trees(a.tree(), b.tree())
    return max(value for path, value in differences.items() if "seconds" not in path)


def test_by_default_only_a_gpu_compiles():
    assert not can_compile("auto", CPU)
    assert not can_compile(False, CPU)


def test_a_machine_that_cannot_compile_says_why(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "_why_not", lambda device: "there is no C++ compiler")
    with caplog.at_level(logging.WARNING):
        assert not can_compile(True, CPU)
    assert "study.compile: there is no C++ compiler" in caplog.text


def test_only_full_batches_of_all_clients_are_compiled(compiling, monkeypatch):
    task, hooks = compiling("fedvpt")
    task = with_training(task, batch_size=4)
    seen = []
    forward = FrozenViT.forward_prompted

    def watched(self, images, prompts, head):
        clients, size = images.shape[:2]
        seen.append((clients, size, are_compiled()))
        with compile_blocks(False):
            return forward(self, images, prompts, head)

    monkeypatch.setattr(FrozenViT, "forward_prompted", watched)
    train(task, hooks, [1])
    everyone = max(clients for clients, _, _ in seen)
    assert {are for _, _, are in seen} == {True, False}
    for clients, size, are in seen:
        assert are == (clients == everyone and size == 4)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedvpt", "promptfl"])
def test_a_resumed_run_that_compiles_ends_with_the_same_bytes(compiling, tiny, name):
    task, hooks = compiling(name)
    task = with_training(task, batch_size=4)
    counters.clear()
    whole = train(task, hooks, [1, 2])
    assert counters["stats"]["unique_graphs"] > 0

    # in another process, torch has not met the first round's shapes
    first = train(task, hooks, [1])
    torch._dynamo.reset()
    resumed = train(task, hooks, [2], first)
    for (_, a), (_, b) in zip(leaves(whole.server), leaves(resumed.server), strict=True):
        assert torch.equal(a, b)

    # compiled blocks differ from others by rounding alone
    plain = with_training(tiny(name)[0], batch_size=4)
    assert largest_difference(whole, train(plain, hooks, [1, 2])) < 1e-4
