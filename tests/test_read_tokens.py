"""The last block computes no token that nobody reads, against the library's own block in full."""

import pytest
import timm
import torch
from timm.models.vision_transformer import ParallelScalingBlock

import fedloom.backbones.micro_vit  # noqa: F401  registers the small ViT
from fedloom.backbones.clip import text
from fedloom.backbones.vit import FrozenViT
from fedloom.toolbox import adapter, deep_prompts, prefix
from first_round import first_cohort

K, B, T, D, P = 2, 3, 5, 16, 2
KINDS = {
    "plain": {},
    "scaled": {"init_values": 0.5},
    "normed": {"qk_norm": True},
    "unbiased": {"qkv_bias": False},
    "of another kind": {"block_fn": ParallelScalingBlock},
}
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def _vit(**more):
    torch.manual_seed(0)
    shape = {"img_size": 16, "embed_dim": D, "depth": 3, "num_heads": 2, "mlp_ratio": 2}
    model = timm.create_model("micro_vit", num_classes=0, **(shape | more)).eval().double()
    for parameter in model.parameters():  # biases and norms start at 0 and 1, hiding mistakes
        parameter.data += 0.1 * torch.randn_like(parameter)
    return FrozenViT(model)


def _random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def _gradients(out, *inputs):
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weight).sum(), inputs)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_are_read_equal_those_of_whole_blocks(kind, count):
    vit, tokens = _vit(**KINDS[kind]), _random(K, B, T, D).requires_grad_()
    x = tokens.flatten(0, 1)
    for block in vit.model.blocks:
        x = block(x)
    expected = x.unflatten(0, (K, B))[:, :, :count]
    actual = vit.blocks(tokens, read=count)
    torch.testing.assert_close(actual, expected, **CLOSE)
    assert vit.blocks(tokens, last=2, read=count).shape == (K, B, T, D), "not the last block"
    for ours, theirs in zip(_gradients(actual, tokens), _gradients(expected, tokens), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


INSERTS = {
    "deep prompts": {"input": deep_prompts(_random(K, P, D), first=True)},
    "prefix": {place: prefix(_random(K, P, D)) for place in "kv"},
    "a mean of tokens": {"mlp": lambda x, y: y + y.mean(-2, keepdim=True)},
    "an adapter": {
        "attention": adapter(
            {
                "down": _random(K, 4, D),
                "down_bias": _random(K, 4),
                "up": _random(K, D, 4),
                "up_bias": _random(K, D),
            }
        )
    },
}


@pytest.mark.parametrize("case", [*INSERTS, "weights"])
def test_a_block_with_inserts_or_clients_own_weights_gives_the_same_class_token(case):
    vit, tokens = _vit(), _random(K, B, T, D)
    inserts = {3: INSERTS.get(case, {})}
    own = vit.init_weights(r"blocks\.2\.") if case == "weights" else {}
    weights = {name: value + 0.1 * _random(K, *value.shape) for name, value in own.items()}
    whole = vit.blocks(tokens, weights=weights, inserts=inserts)
    actual = vit.blocks(tokens, weights=weights, inserts=inserts, read=1)
    torch.testing.assert_close(actual, whole[:, :, :1], **CLOSE)


# what a method reads behind its prompts: the class token, of SGPT that and the group prompts
READ = {
    **dict.fromkeys(("fedvpt", "fedvpt_deep", "pep_fedpt", "p_pt", "pfedpg", "pfpt", "fedmix"), 1),
    "sgpt": 2,
    "head_tuning": None,  # reads the cache
}
OPTIONS = {"fedmix": {"train": "prompts"}}


@pytest.mark.parametrize("name", READ)
def test_methods_ask_the_last_block_for_what_they_read(name, tiny):
    task, hooks = tiny(name, **OPTIONS.get(name, {}))
    sizes, last = [], task.backbone.model.blocks[-1]
    last.norm2.register_forward_hook(lambda module, given, out: sizes.append(out.shape[-2]))
    received, clients, batch = first_cohort(task, hooks)
    hooks.predict(task=task, received=received, clients=clients, batch=batch)
    assert set(sizes) == ({READ[name]} if READ[name] else set())


def test_sequences_beyond_the_memory_are_computed_again_to_the_same_bits(tiny, monkeypatch):
    task, _ = tiny("promptfl")
    clip, context = task.backbone, torch.randn(2, 3, task.backbone.width)
    monkeypatch.setattr(text, "TOKENS_AT_ONCE", 4)  # a class is a sequence
    clip._text._groups.clear()
    ends, gradients, kept = [], [], []
    for room in (2**30, 0):
        monkeypatch.setitem(text.KEPT_BYTES, "cpu", room)
        own, sizes = context.clone().requires_grad_(), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            ends.append(clip.text_features(own, task.data.classes))
        gradients += _gradients(ends[-1], own)
        kept.append(sum(sizes))
    assert torch.equal(*ends) and torch.equal(*gradients)
    assert kept[1] < kept[0] / 3
