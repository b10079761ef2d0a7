"""study.precision: what is bfloat16 and what stays float32; what a run's spec says of it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from default_config import default_config
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.backbones.vit import FrozenViT
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import leaves
from fedloom.contract import checks
from fedloom.contract.tiny import tiny_backbone, tiny_clip, tiny_vit
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import manifest
from fedloom.machine import device
from fedloom.planning.job_specs import to_json
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.runs import study_runs


@pytest.fixture
def bf16(monkeypatch):
    """Make the contract's backbones compute in bfloat16."""

    def of(make, kind, *tokenizer):
        def build(width=16):
            found = make(width)
            return kind(found.model, *(f(found) for f in tokenizer), precision="bf16")

        return build

    vit = of(tiny_vit, FrozenViT)
    clip = of(tiny_clip, FrozenCLIP, lambda c: c._text._tokenizer, lambda c: "tiny")
    monkeypatch.setattr("fedloom.contract.tiny.tiny_vit", vit)
    monkeypatch.setattr("fedloom.contract.tiny.tiny_clip", clip)
    tiny_backbone.cache_clear()
    yield
    tiny_backbone.cache_clear()


@pytest.mark.parametrize("name", ["fedvpt", "sgpt", "promptfl", "fedotp"])
def test_what_is_trained_stays_float32_and_close(tiny, request, name):
    ends = []
    for half in (False, True):
        if half:
            request.getfixturevalue("bf16")
        task, hooks = tiny(name)
        state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
        ends.append(dict(leaves(state.server["params"])))
        assert all(value.dtype == torch.float32 for value in ends[-1].values())
    plain, half = ends
    for path, value in plain.items():
        assert not torch.equal(half[path], value)
        assert (half[path] - value).norm() < 0.05 * value.norm(), path


@pytest.mark.parametrize("name", ["fedvpt", "pfpt", "promptfl"])
@pytest.mark.parametrize("check", [checks.resumes, checks.stacks])
def test_bf16_keeps_the_contract(bf16, tmp_path, name, check, monkeypatch):
    if check is checks.stacks:  # a product of another shape rounds otherwise
        monkeypatch.setattr("fedloom.contract.tiny_run.CLOSE", 0.05)
    check(manifest.find_method(name), tmp_path)


def test_a_spec_names_the_precision_only_where_it_is_not_float32():
    config = default_config()
    plain = Plan(resolve(config))
    half = Plan(resolve(config | {"study": config["study"] | {"precision": "bf16"}}))
    specs = [plan.run_spec(study_runs(plan.settings)[0]) for plan in (plain, half)]
    assert "precision" not in to_json(specs[0])
    assert [spec.backbone.precision for spec in specs] == ["float32", "bf16"]
    backbone = replace(specs[1].backbone, settings=specs[0].backbone.settings)
    assert replace(specs[1], backbone=backbone) == specs[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_tf32_needs_a_gpu():
    with pytest.raises(FedLoomError, match=r"study.precision: tf32 needs a GPU"):
        device.prepare_torch(1, "tf32")


def test_the_server_computes_in_float32(tiny, monkeypatch):
    task, hooks = tiny("fedvpt")
    seen = []
    aggregate = hooks.aggregate

    def watched(**given):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return aggregate(**given)

    monkeypatch.setattr(hooks, "aggregate", watched)
    device._allow_tf32(True)
    try:
        train_round(task.at(1), hooks, initial_state(task, hooks))
        seen.append(torch.backends.cuda.matmul.allow_tf32)
    finally:
        device._allow_tf32(False)
    assert seen == [False, True]


@pytest.mark.parametrize("name", ["fedvpt", "promptfl"])
def test_training_in_bf16_on_a_cpu_uses_no_fused_attention(tiny, bf16, name, monkeypatch):
    """The backward pass of fused attention takes five times as long as three products do."""

    def fused(query, *rest, **more):
        assert not query.requires_grad
        return attention(query, *rest, **more)

    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    task, hooks = tiny(name)
    train_round(task.at(1), hooks, initial_state(task, hooks))


def test_on_a_cpu_bf16_passes_no_attention_of_open_clip(monkeypatch):
    """open_clip's attention transposes its inputs, which takes ten times as long in bf16."""
    plain = tiny_clip()
    half = FrozenCLIP(plain.model, plain._text._tokenizer, "tiny", precision="bf16")
    context = torch.randn(2, 2, plain.width)
    images = torch.zeros(3, 16, 16, 3).byte()

    def slow(*args, **kwargs):
        raise AssertionError("the attention of open_clip")

    def features(clip):
        final = clip.compute_cache(images, "features")["final"]
        return clip.text_features(context, ("a", "b")), final

    near = features(plain)
    monkeypatch.setattr(torch.nn.MultiheadAttention, "forward", slow)
    for ours, other in zip(features(half), near, strict=True):
        assert F.cosine_similarity(ours.float(), other.float(), dim=-1).min() > 0.99
