"""The CLIP adapter: exactly open_clip's own features, whatever is left out of the computation."""

import json

import open_clip
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from clip_by_hand import features_behind, make_clip
from fedloom.backbones.clip import loading as clip
from fedloom.backbones.clip.model import FrozenCLIP
from refusals import refused

NAMES = ("cat", "great_white shark", "greek small letter alpha with dasia and varia", "x")
VIT = {"layers": 2, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 16}
RESNET = {"layers": (1, 1, 1, 1), "width": 16, "image_size": 64}
TIMM = {"timm_model_name": "micro_vit", "timm_pool": "token", "image_size": 32}
TEXT = {"width": 32, "heads": 4, "layers": 2}
MODELS = {
    "clip": (open_clip.CLIP, VIT, TEXT),
    "resnet": (open_clip.CLIP, RESNET, TEXT | {"proj_bias": True}),
    "custom": (open_clip.CustomTextCLIP, TIMM, TEXT | {"context_length": 40}),
    "eos": (open_clip.CustomTextCLIP, VIT, TEXT | {"pool_type": "eos", "eos_id": 49407}),
    "norms": (open_clip.CustomTextCLIP, VIT, TEXT | {"qk_norm": True, "proj_type": "none"}),
}


def _model(kind, vision=None, text=None):
    chosen, own_vision, own_text = MODELS[kind]
    bias = -3.0 if kind == "custom" else None
    joint = 32 if kind == "norms" else 24
    return make_clip(chosen, joint, vision or own_vision, text or own_text, init_logit_bias=bias)


def _frozen(model, **options):
    tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)
    return FrozenCLIP(model, tokenizer, "tiny", **options)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return _model(request.param)


@pytest.fixture
def images():
    return torch.randint(0, 256, (2, 3, 20, 20, 3), dtype=torch.uint8)  # [K, B, H, W, 3]


def _by_open_clip(model, context, names=NAMES):
    """Return features [C, d_joint] of a context [L, d] by `encode_text`, which computes all places.

    The context stands in for the embeddings of as many placeholders, as in CoOp.
    """
    words = ["x " * len(context) + name.replace("_", " ") + "." for name in names]
    tokens = open_clip.SimpleTokenizer(context_length=model.context_length)(words)

    def stand_in(module, inputs, embedded):
        rest = embedded[:, 1 + len(context) :]
        return torch.cat([embedded[:, :1], context.expand(len(names), -1, -1), rest], 1)

    handle = getattr(model, "text", model).token_embedding.register_forward_hook(stand_in)
    found = model.encode_text(tokens, normalize=True)
    handle.remove()
    return found


def test_zero_shot_logits_are_open_clips_own(model, images):
    backbone = _frozen(model)
    texts = [f"a photo of a {name.replace('_', ' ')}." for name in NAMES]
    tokens = open_clip.SimpleTokenizer(context_length=model.context_length)(texts)
    expected, _ = model.get_logits(backbone.pixels(images.flatten(0, 1)), tokens)
    final, _ = backbone.image_features(images)
    found = backbone.logits(final, backbone.zero_shot(NAMES, ["a photo of a {}."]))
    torch.testing.assert_close(found.flatten(0, 1), expected, atol=1e-4, rtol=1e-5)
    assert not any(p.requires_grad for p in model.parameters())


def test_contexts_of_any_length_equal_all_places_computed(model):
    backbone = _frozen(model)
    contexts = [torch.randn(n, 32, requires_grad=True) for n in (5, 1, 3, 0)]
    padded = torch.stack(
        [F.pad(c.detach(), (0, 0, 0, 5 - len(c)), value=7.0) for c in contexts]
    ).requires_grad_()
    length = torch.tensor([5, 1, 3, 0])
    found = backbone.text_features(padded, NAMES, length)  # [K, C, d_joint]
    weight = torch.randn_like(found)
    (found * weight).sum().backward()
    for k, context in enumerate(contexts):
        expected = _by_open_clip(model, context)
        torch.testing.assert_close(found[k], expected, atol=1e-5, rtol=0)
        alone = backbone.text_features(context.detach(), NAMES)
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)
        if len(context):
            (expected * weight[k]).sum().backward()
            torch.testing.assert_close(padded.grad[k, : len(context)], context.grad)
        assert not padded.grad[k, len(context) :].any(), "padding has no gradient"
    in_three_sequences = _frozen(model, tokens_at_once=6)
    again = in_three_sequences.text_features(padded, NAMES, length)
    torch.testing.assert_close(again, found, atol=1e-5, rtol=0)


@pytest.mark.parametrize("longest", [7, 60])
def test_behind_the_eot_stand_token_0_and_then_zeros_as_in_fedphas_code(longest):
    """Zeros fill the last `longest - L` of the 77 places; they are read if `longest` is large."""
    model = _model("clip")
    contexts = [torch.randn(n, 32, requires_grad=True) for n in (5, 1, 3)]
    padded = torch.stack([F.pad(c.detach(), (0, 0, 0, 5 - len(c))) for c in contexts])
    padded.requires_grad_()
    length = torch.tensor([5, 1, 3])
    found = _frozen(model).text_features(padded, NAMES, length, longest - length)
    weight = torch.randn_like(found)
    (found * weight).sum().backward()
    for k, context in enumerate(contexts):
        expected = features_behind(model, context, NAMES, longest)
        torch.testing.assert_close(found[k], expected, atol=1e-5, rtol=0)
        (expected * weight[k]).sum().backward()
        torch.testing.assert_close(padded.grad[k, : len(context)], context.grad)
        at_eot = _by_open_clip(model, context.detach())
        assert not torch.allclose(found[k], at_eot, atol=1e-3)


def test_a_feature_cannot_be_read_behind_the_tower():
    backbone = _frozen(_model("clip"))
    room = backbone.max_context_length(NAMES)
    one = torch.zeros(1, 3, 32)
    backbone.text_features(one, NAMES, None, torch.tensor([room - 3]))
    with refused(room + 1, 77):
        backbone.text_features(one, NAMES, None, torch.tensor([room - 2]))


def test_nothing_behind_the_longest_eot_is_computed(monkeypatch):
    model = _model("clip")
    backbone = _frozen(model)
    seen = []
    first, last = model.transformer.resblocks
    for module in (first, last.ln_1, last.ln_2):
        module.register_forward_hook(lambda m, x, y: seen.append(y.shape))
    backbone.text_features(torch.randn(3, 4, 32), NAMES)
    names = [name.replace("_", " ") for name in NAMES]
    own = sum(len(open_clip.SimpleTokenizer().encode(f"{name}.")) + 1 for name in names)
    everything = (3, 1 + 4 + own, 32)
    read = (1, 3, len(NAMES), 32)
    assert seen == [everything, (1, *everything), read], "the last block at the EOTs alone"


@pytest.mark.parametrize("kind", ["clip", "resnet", "custom"])
def test_patches_are_projected_as_the_class_token_is(kind, images):
    model = _model(kind)
    backbone = _frozen(model)
    final, patches = backbone.image_features(images)
    x = backbone.pixels(images.flatten(0, 1))
    if kind == "clip":
        tokens = model.visual._embeds(x)
        for block in model.visual.transformer.resblocks:
            tokens = block(tokens)
        expected = model.visual.ln_post(tokens) @ model.visual.proj
    elif kind == "custom":
        expected = model.visual.head(model.visual.trunk.forward_features(x))
    else:
        model.visual.attnpool.register_forward_hook(lambda m, x, y: inputs.append(x[0]))
        inputs = []
        model.encode_image(x)
        expected = _attention_pool(model.visual.attnpool, inputs[0])
    expected = F.normalize(expected, dim=-1).unflatten(0, (2, 3))
    torch.testing.assert_close(patches, expected[..., 1:, :], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(final, expected[..., 0, :], atol=1e-5, rtol=1e-4)
    kept = {
        what: backbone.compute_cache(images.flatten(0, 1), what) for what in ("features", "patches")
    }
    assert {what: list(found) for what, found in kept.items()} == {
        "features": ["final"],
        "patches": ["patches"],
    }
    assert torch.equal(kept["features"]["final"], final.flatten(0, 1))
    halves = kept["patches"]["patches"]
    assert halves.dtype == torch.float16
    torch.testing.assert_close(halves.float(), patches.flatten(0, 1), atol=1e-3, rtol=0)


def _attention_pool(pool, x):
    """Compute attention pooling with every token as a query."""
    x = x.flatten(2).transpose(1, 2)  # [N, T, d]
    x = torch.cat([x.mean(1, keepdim=True), x], 1) + pool.positional_embedding
    heads = [p(x).unflatten(-1, (pool.num_heads, -1)) for p in (pool.q_proj, pool.k_proj)]
    q, k = (h.transpose(1, 2) for h in heads)
    v = pool.v_proj(x).unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)
    weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
    return pool.c_proj((weights @ v).transpose(1, 2).flatten(2))


def test_templates_are_averaged_and_words_make_a_context():
    model = _model("clip")
    backbone = _frozen(model)
    templates = ["a photo of a {}.", "{} on black"]
    each = torch.stack(
        [backbone.encode([t.format(n.replace("_", " ")) for n in NAMES]) for t in templates]
    )
    torch.testing.assert_close(
        backbone.zero_shot(NAMES, templates), F.normalize(each.sum(0), dim=-1)
    )
    assert backbone.encode(["a cat"]) is backbone.encode(("a cat",)), "computed once"
    words = backbone.embed_text("a photo of a")
    ids = open_clip.tokenize("a photo of a")[0, 1:5]
    assert torch.equal(words, model.token_embedding.weight[ids])
    first = backbone.zero_shot(NAMES, templates[:1])
    torch.testing.assert_close(backbone.text_features(words, NAMES), first, atol=1e-6, rtol=0)


def test_a_fresh_context_is_coops():
    drawn = _frozen(_model("clip")).init_context(4000, torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 32)
    assert abs(drawn.std() - 0.02) < 2e-4 and abs(drawn.mean()) < 2e-4


def test_a_template_may_hold_any_braces_and_one_that_does_not_fit_is_named():
    backbone = _frozen(_model("clip"))
    twice = backbone.zero_shot(["cat"], ["a {} in {x} of {}."])
    expected = backbone.encode(["a cat in {x} of cat."])
    torch.testing.assert_close(twice, expected, atol=1e-6, rtol=0)
    with refused("longest text", "77"):
        backbone.zero_shot(["cat"], ["very " * 100 + "{}"])


def test_what_does_not_fit_is_named():
    backbone = _frozen(_model("custom"))
    room = backbone.max_context_length(NAMES)
    backbone.text_features(torch.zeros(1, room, 32), NAMES)
    with refused(room + 1, "40 places"):
        backbone.text_features(torch.zeros(1, room + 1, 32), NAMES)
    with refused("class 1 of 3"):
        backbone.text_features(torch.zeros(1, 2, 32), ("cat", "_ ", "dog"))


@pytest.mark.parametrize(
    ("kind", "vision", "text", "word"),
    [
        ("clip", None, TEXT | {"no_causal_mask": True, "pool_type": "first"}, "causal"),
        ("custom", None, TEXT | {"pool_type": "last"}, "EOT"),
        ("eos", None, TEXT | {"pool_type": "eos", "eos_id": 2}, "EOT"),
        ("custom", None, TEXT | {"embed_cls": True}, "EOT"),
        ("clip", VIT | {"attentional_pool": True}, None, "one feature of an image"),
    ],
)
def test_other_towers_are_refused(kind, vision, text, word):
    with refused("backbone tiny", word):
        _frozen(_model(kind, vision, text))


# ---- loading ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a small model that is registered with open_clip, and a file of its weights."""
    folder = tmp_path_factory.mktemp("models")
    config = {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT, "custom_text": True}
    (folder / "tiny-clip.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / "tiny-clip.json")
    torch.manual_seed(3)
    model = open_clip.create_model("tiny-clip").eval()
    safetensors.torch.save_file(model.state_dict(), folder / "tiny.safetensors")
    return model, folder / "tiny.safetensors"


def _spec(path, **more):
    return {"library": "open_clip", "name": "tiny-clip", "weights": str(path)} | more


def test_a_local_file(tiny, images):
    model, path = tiny
    loaded = clip.load(_spec(path))
    tokens = open_clip.tokenize(["a cat", "a dog"])
    torch.testing.assert_close(
        loaded.encode(["a cat", "a dog"]), model.encode_text(tokens, True), atol=1e-6, rtol=0
    )
    mean = torch.tensor(open_clip.OPENAI_DATASET_MEAN).view(3, 1, 1)
    grey = torch.full((1, 16, 16, 1), 255, dtype=torch.uint8)
    std = torch.tensor(open_clip.OPENAI_DATASET_STD).view(3, 1, 1)
    torch.testing.assert_close(loaded.pixels(grey)[0, :, :1, :1], (1 - mean) / std)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "ViT-B-61"}, ["ViT-B-61", "ViT-B-16"]),
        ({"weights": "openai"}, ["tiny-clip", "'openai'", "none"]),
        ({"name": "ViT-B-32", "weights": "opnai"}, ["ViT-B-32", "'opnai'", "'openai'"]),
        ({"name": "ViT-B-16", "weights": "openai"}, ["ViT-B-16-quickgelu"]),
        ({"weights": "nowhere.safetensors"}, ["tiny-clip", "nowhere.safetensors"]),
        ({"weights": "model.pt"}, ["tiny-clip", "model.pt", ".safetensors"]),
    ],
)
def test_bad_backbones_are_named(spec, words, tiny):
    with refused(*words):
        clip.load(_spec(tiny[1]) | spec)


def test_a_truncated_or_foreign_file_is_refused(tiny, tmp_path, caplog):
    path = tmp_path / "x.safetensors"
    whole = tiny[1].read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with refused(path):
        clip.load(_spec(path))
    state = {k: v for k, v in tiny[0].state_dict().items() if "resblocks.1" not in k}
    safetensors.torch.save_file(state, path)
    with refused(path, "resblocks.1"):
        clip.load(_spec(path))
    assert not caplog.records


def test_an_unreachable_hub_is_one_line(monkeypatch, caplog):
    def offline(*arguments, **keywords):
        raise OSError("We couldn't connect to the hub\nand more lines")

    monkeypatch.setattr("open_clip.pretrained.hf_hub_download", offline)
    spec = _spec("openai", name="ViT-B-32-quickgelu")
    with refused("'openai'", "connect"):
        clip.load(spec)
    assert not caplog.records
