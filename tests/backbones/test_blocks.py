"""The inside of a ViT: clients' own weights and inserts, against plain float64 computations."""

import copy
import math

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, ParallelScalingBlock

import fedloom.backbones.micro_vit  # noqa: F401  registers the small ViT
from fedloom.backbones import block_pass, blocks
from fedloom.backbones.blocks import PLACES
from fedloom.backbones.clip import text_tower
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.backbones.vit import FrozenViT
from fedloom.toolbox import adapter, deep_prompts, lora, parallel_adapter
from first_round import first_cohort, prefix
from refusals import refused

K = 3
B = 2
T = 5
D = 16
HEADS = 2
HIDDEN = 32
P = 2
R = 4
SHAPE = {"img_size": 16, "embed_dim": D, "depth": 3, "num_heads": HEADS, "mlp_ratio": 2}
KINDS = {"plain": {}, "scaled": {"init_values": 0.5}, "normed": {"qk_norm": True}}


def _model(**more):
    torch.manual_seed(0)
    model = timm.create_model("micro_vit", num_classes=0, **(SHAPE | more)).eval()
    for parameter in model.parameters():  # biases and norms start at 0 and 1, hiding mistakes
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.double()


def _vit(model, **more):
    """Return the adapter of a copy of the model in float64, pixels included."""
    vit = FrozenViT(copy.deepcopy(model), **more)
    pixels = vit.pixels
    vit.pixels = lambda images: pixels(images).double()
    return vit


def _random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def _images():
    return torch.randint(0, 256, (K, B, 16, 16, 1), dtype=torch.uint8)


def _own_weights(vit, pattern=""):
    return {
        name: (value + 0.1 * _random(K, *value.shape)).requires_grad_()
        for name, value in vit.init_weights(pattern).items()
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", ["", "bias$", r"^blocks\.[02]\.(attn|ls)", "pos_embed|norm"])
def test_clients_with_weights_of_their_own_equal_timms_models_one_by_one(kind, pattern):
    model = _model(**KINDS[kind])
    vit = _vit(model)
    images = _images()
    head = _random(K, 7, D)
    weights = _own_weights(vit, pattern)
    logits = vit.forward(images, head, weights=weights)
    answer = _random(*logits.shape)
    (logits * answer).sum().backward()
    for k in range(K):
        alone = copy.deepcopy(model)
        alone.load_state_dict({n: v[k].detach() for n, v in weights.items()}, strict=False)
        x = (images[k].movedim(-1, 1).double() / 255 - 0.5) / 0.5
        expected = alone(x) @ head[k].T
        torch.testing.assert_close(logits[k], expected, atol=1e-6, rtol=1e-6)  # pixels are float32
        (expected * answer[k]).sum().backward()
        gradients = dict(alone.named_parameters())
        for name, value in weights.items():
            torch.testing.assert_close(value.grad[k], gradients[name].grad, atol=1e-4, rtol=1e-5)


def _by_hand(model, j, x, put):
    """Run block `j` (from 0) on one image's tokens [T, d]; `put` applies the insert of a place."""
    block = model.blocks[j]
    x = put("input", x, x)
    z = block.norm1(x)
    w = block.attn.qkv.weight
    b = block.attn.qkv.bias
    parts = [z @ w[i * D : (i + 1) * D].T + b[i * D : (i + 1) * D] for i in range(3)]
    q, k, v = (put(name, z, part) for name, part in zip("qkv", parts, strict=True))
    mixed = []
    side = D // HEADS
    for h in range(HEADS):
        one = slice(h * side, (h + 1) * side)
        mixed.append(torch.softmax(q[:, one] @ k[:, one].T / math.sqrt(side), -1) @ v[:, one])
    m = torch.cat(mixed, -1)
    y = put("proj", m, m @ block.attn.proj.weight.T + block.attn.proj.bias)
    x = x + put("attention", z, y)
    z = block.norm2(x)
    h = put("fc1", z, z @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
    h = F.gelu(h)
    y = put("fc2", h, h @ block.mlp.fc2.weight.T + block.mlp.fc2.bias)
    return x + put("mlp", z, y)


def _adapters():
    shapes = {"down": (R, D), "down_bias": (R,), "up": (D, R), "up_bias": (D,)}
    return {name: _random(K, *shape) for name, shape in shapes.items()}


def _lora_case(place):
    into = {"fc1": (HIDDEN, D), "fc2": (D, HIDDEN)}.get(place, (D, D))
    a = _random(K, R, into[1])
    b = _random(K, into[0], R)
    return lora(a, b, 0.7), lambda k, x, y: y + 0.7 * x @ (b[k] @ a[k]).T


def _case(name, place):
    """Return an insert of K clients, and a function that does the same to one client's tokens."""
    if name == "lora":
        return _lora_case(place)
    own = _adapters()
    tokens = _random(K, P, D)

    def bottleneck(k, x):
        hidden = (x @ own["down"][k].T + own["down_bias"][k]).clamp(min=0)
        return hidden @ own["up"][k].T + own["up_bias"][k]

    return {
        "adapter": (adapter(own), lambda k, x, y: y + bottleneck(k, y)),
        "parallel": (parallel_adapter(own), lambda k, x, y: y + 0.1 * bottleneck(k, x)),
        "prefix": (prefix(tokens), lambda k, x, y: torch.cat([tokens[k], y])),
        "deep": (
            deep_prompts(tokens, first=True),
            lambda k, x, y: torch.cat([y[:1], tokens[k], y[1:]]),
        ),
        "replaced": (
            deep_prompts(tokens, first=False),
            lambda k, x, y: torch.cat([y[:1], tokens[k], y[1 + P :]]),
        ),
    }[name]


CASES = [
    *((("lora", place),) for place in ("q", "k", "v", "proj", "fc1", "fc2")),
    (("adapter", "attention"), ("adapter", "mlp")),
    (("parallel", "attention"), ("parallel", "mlp")),
    (("prefix", "k"), ("prefix", "v")),
    (("deep", "input"), ("lora", "q"), ("adapter", "mlp")),
    (("replaced", "input"),),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "+".join("_".join(one) for one in case))
def test_inserts_equal_one_client_and_image_at_a_time(case):
    model = _model()
    vit = _vit(model)
    tokens = _random(K, B, T, D)
    made = {place: _case(name, place) for name, place in case}
    inserts = {2: {place: insert for place, (insert, _) in made.items()}}
    actual = vit.blocks(tokens, inserts=inserts)
    for k in range(K):

        def put(place, x, y, k=k):
            return made[place][1](k, x, y) if place in made else y

        for i in range(B):
            x = _by_hand(model, 0, tokens[k, i], lambda place, x, y: y)
            x = _by_hand(model, 1, x, put)
            x = _by_hand(model, 2, x, lambda place, x, y: y)
            torch.testing.assert_close(actual[k, i], x, atol=1e-12, rtol=1e-12)


def test_every_place_is_reached_and_inserts_that_do_nothing_change_nothing():
    vit = _vit(_model(**KINDS["scaled"]))
    tokens = _random(K, B, T, D)
    reached = []

    def watch(place):
        def insert(given, out):
            assert given.shape[:2] == out.shape[:2] == (K, B)
            reached.append(place)
            return out

        return insert

    inserts = {j: {place: watch(place) for place in PLACES} for j in (1, 2, 3)}
    actual = vit.blocks(tokens, inserts=inserts)
    torch.testing.assert_close(actual, vit.blocks(tokens), atol=1e-12, rtol=1e-12)
    assert reached == [*PLACES] * 3


def test_gradient_checkpointing_gives_the_same_bits_and_keeps_less():
    images = _images()
    head = _random(K, 7, D)
    own = _adapters()
    gradients = []
    kept = []
    for checkpointing in (False, True):
        vit = _vit(_model(), gradient_checkpointing=checkpointing)
        torch.manual_seed(1)
        weights = _own_weights(vit)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            logits = vit.forward(images, head, weights, {2: {"mlp": adapter(own)}})
        logits.square().sum().backward()
        gradients.append({name: value.grad for name, value in weights.items()})
        kept.append(sum(sizes))
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    assert kept[1] < kept[0] / 2


def test_frozen_weights_get_no_gradient_and_pretrained_ones_change_nothing():
    model = _model()
    vit = _vit(model)
    images = _images()
    head = _random(K, 7, D)
    pretrained = {n: v.expand(K, *v.shape) for n, v in vit.init_weights().items()}
    torch.testing.assert_close(
        vit.forward(images, head, weights=pretrained),
        vit.forward(images, head),
        atol=1e-10,
        rtol=1e-10,
    )
    assert not any(value.requires_grad for value in vit.init_weights().values())
    assert set(vit.init_weights()) == {name for name, _ in model.named_parameters()}
    assert set(vit.init_weights("fc1.bias")) == {f"blocks.{j}.mlp.fc1.bias" for j in range(3)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inserts": {4: {}}}, ["inserts", "4", "1 to 3"]),
        ({"inserts": {0: {}}}, ["inserts", "0"]),
        ({"inserts": {1: {"queries": None}}}, ["block 1 with queries", "input, q"]),
        ({"weights": {"blocks.9.norm1.bias": torch.zeros(K, D)}}, ["'blocks.9.norm1.bias'"]),
        ({"weights": {"norm.bias": torch.zeros(D)}}, ["'norm.bias'", "[clients, 16]", "[16]"]),
    ],
)
def test_what_there_is_not_is_named(given, words):
    vit = _vit(_model())
    with refused(*words):
        vit.forward(_images(), _random(K, 7, D), **given)


def test_a_block_of_another_kind_is_refused_only_where_its_inside_is_wanted():
    from timm.models.vision_transformer import ParallelScalingBlock

    vit = _vit(_model(block_fn=ParallelScalingBlock))
    vit.forward(_images(), _random(K, 7, D))
    with refused("ParallelScalingBlock"):
        vit.forward(_images(), _random(K, 7, D), inserts={1: {"mlp": lambda x, y: y}})


# ---- the last block computes only the tokens that are read --------------------------------------


WHOLE = KINDS | {"unbiased": {"qkv_bias": False}, "another": {"block_fn": ParallelScalingBlock}}
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def _gradients(out, *inputs):
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weight).sum(), inputs)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", WHOLE)
def test_tokens_that_are_read_equal_those_of_whole_blocks(kind, count):
    vit = _vit(_model(**WHOLE[kind]))
    tokens = _random(K, B, T, D).requires_grad_()
    x = tokens.flatten(0, 1)
    for block in vit.model.blocks:
        x = block(x)
    expected = x.unflatten(0, (K, B))[:, :, :count]
    actual = vit.blocks(tokens, read=count)
    torch.testing.assert_close(actual, expected, **CLOSE)
    assert vit.block(2, tokens, read=count).shape == (K, B, T, D), "not the last block"
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
    vit = _vit(_model())
    tokens = _random(K, B, T, D)
    inserts = {3: INSERTS.get(case, {})}
    own = vit.init_weights(r"blocks\.2\.") if case == "weights" else {}
    weights = {name: value + 0.1 * _random(K, *value.shape) for name, value in own.items()}
    whole = vit.blocks(tokens, weights=weights, inserts=inserts)
    actual = vit.blocks(tokens, weights=weights, inserts=inserts, read=1)
    torch.testing.assert_close(actual, whole[:, :, :1], **CLOSE)


# how many tokens a method reads after the last block: the class token, and SGPT one more
READ = {
    **dict.fromkeys(("fedvpt", "fedvpt_deep", "pep_fedpt", "p_pt", "pfedpg", "pfpt", "fedmix"), 1),
    "sgpt": 2,
    "head_tuning": None,  # it reads the cache
}
OPTIONS = {"fedmix": {"train": "prompts"}}


@pytest.mark.parametrize("name", READ)
def test_methods_ask_the_last_block_for_what_they_read(name, tiny):
    task, hooks = tiny(name, **OPTIONS.get(name, {}))
    sizes = []
    last = task.backbone.model.blocks[-1]
    last.norm2.register_forward_hook(lambda module, given, out: sizes.append(out.shape[-2]))
    received, clients, batch = first_cohort(task, hooks)
    hooks.predict(task=task, received=received, clients=clients, batch=batch)
    assert set(sizes) == ({READ[name]} if READ[name] else set())


def test_sequences_beyond_the_memory_are_computed_again_to_the_same_bits(tiny, monkeypatch):
    task, _ = tiny("promptfl")
    tokenizer = task.backbone._text._tokenizer
    context = torch.randn(2, 3, task.backbone.width)
    # with at most 4 tokens in a sequence, every class is a sequence
    clip = FrozenCLIP(task.backbone.model, tokenizer, "tiny", tokens_at_once=4)
    ends = []
    gradients = []
    kept = []
    for room in (2**30, 0):
        monkeypatch.setitem(text_tower.KEPT_BYTES, "cpu", room)
        own = context.clone().requires_grad_()
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            ends.append(clip.text_features(own, task.data.classes))
        gradients += _gradients(ends[-1], own)
        kept.append(sum(sizes))
    assert torch.equal(*ends) and torch.equal(*gradients)
    assert kept[1] < kept[0] / 3


def test_attention_in_products_equals_the_fused_one(monkeypatch):
    """Training in bf16 on a CPU computes attention in products; this test does so in float64."""
    block = _model().blocks[0]
    tokens = _random(K, B, T, D).requires_grad_()
    mask = torch.full((T, T), -math.inf, dtype=torch.float64).triu(1)
    both = []
    for products in (False, True):
        monkeypatch.setattr(block_pass, "is_bf16_on_cpu", lambda x, on=products: on)
        out = blocks.run_block(block, tokens, {}, {}, mask)
        both.append((out, *torch.autograd.grad(out.square().sum(), tokens)))
    for fused, product in zip(*both, strict=True):
        torch.testing.assert_close(product, fused, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("number_format", [torch.bfloat16, torch.float16])
def test_matrices_that_are_cast_once_give_the_numbers_of_autocast(number_format):
    block = Block(dim=16, num_heads=2, init_values=0.5).requires_grad_(False)
    tokens = torch.randn(2, 3, 5, 16)
    with torch.autocast("cpu", number_format, cache_enabled=False):
        cast = blocks.run_block(block, tokens, {}, {})
        in_every_call = blocks._run_block(block, tokens, {}, {})
    assert torch.equal(cast, in_every_call)
    assert block.attn.qkv.weight.dtype == torch.float32
    assert torch.equal(
        blocks.run_block(block, tokens, {}, {}), blocks._run_block(block, tokens, {}, {})
    )


def test_a_frozen_block_in_float32_gives_timms_bits():
    """GPUs compute frozen blocks by `run_block`; in float32, a CPU calls the faster library."""
    block = Block(dim=16, num_heads=2, init_values=0.5).requires_grad_(False)
    tokens = torch.randn(3, 5, 16, requires_grad=True)
    outputs = (block(tokens), blocks.run_block(block, tokens[None], {}, {})[0])
    gradients = [torch.autograd.grad(out.square().sum(), tokens)[0] for out in outputs]
    assert torch.equal(*outputs)
    assert torch.equal(*gradients)
