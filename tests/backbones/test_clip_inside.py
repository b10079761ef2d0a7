"""The inside of both towers of a CLIP, and FedMaPLe, against open_clip run step by step."""

import copy
import sys
from dataclasses import replace

import open_clip
import pytest
import torch
import torch.nn.functional as F

from clip_by_hand import make_clip
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.common.errors import FedLoomError
from fedloom.toolbox import adapter, deep_prompts, lora
from first_round import first_cohort, prefix

NAMES = ("cat", "great_white shark", "x")
# clients, images, context, widths of text and image tower
K = 2
B = 3
L = 2
D = 32
V = 48
VIT = {"layers": 3, "width": V, "head_width": 16, "patch_size": 8, "image_size": 16}
TIMM = {"timm_model_name": "micro_vit", "timm_pool": "token", "image_size": 32}
TEXT = {"width": D, "heads": 4, "layers": 3}
COUPLING = ("coupling", "coupling_bias")
MODELS = {
    "clip": (open_clip.CLIP, VIT, TEXT | {"proj_bias": False}),
    "custom": (open_clip.CustomTextCLIP, TIMM, TEXT | {"proj_bias": True, "context_length": 40}),
}


def _model(kind):
    chosen, vision, text = MODELS[kind]
    return make_clip(chosen, 24, vision, text).double()


def _frozen(model):
    """Return the adapter of a copy of the model in float64, pixels included."""
    length = model.context_length
    clip = FrozenCLIP(
        copy.deepcopy(model), open_clip.SimpleTokenizer(context_length=length), "tiny"
    )
    pixels = clip.pixels
    clip.pixels = lambda images: pixels(images).double()
    return clip


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return _model(request.param)


def _random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def _images(clip):
    size = clip.pixels(torch.zeros(1, 8, 8, 3, dtype=torch.uint8)).shape[-1]
    channels = 3
    return torch.randint(0, 256, (K, B, size, size, channels), dtype=torch.uint8)


def _texts(model, context, deep=(), names=NAMES):
    """Return features [C, d_joint] of one client: whole texts, block by block, all places.

    Args:
        context: [L, d], in front of the class names.
        deep: contexts [L, d] that replace it at the input of blocks 2, 3, ...
    """
    tower = getattr(model, "text", model)
    texts = ["x " * L + name.replace("_", " ") + "." for name in names]
    tokens = open_clip.SimpleTokenizer(context_length=model.context_length)(texts)
    x = tower.token_embedding(tokens)
    x = torch.cat([x[:, :1], context.expand(len(names), -1, -1), x[:, 1 + L :]], 1)
    x = x + tower.positional_embedding
    for number, block in enumerate(tower.transformer.resblocks):
        if 0 < number <= len(deep):
            own = deep[number - 1].expand(len(names), -1, -1)
            x = torch.cat([x[:, :1], own, x[:, 1 + L :]], 1)
        x = block(x, attn_mask=tower.attn_mask)
    x = tower.ln_final(x)[torch.arange(len(names)), tokens.argmax(-1)]
    projection = tower.text_projection
    x = projection(x) if isinstance(projection, torch.nn.Linear) else x @ projection
    return F.normalize(x, dim=-1)


def _pictures(model, clip, images, prompts, norm_prompts=False):
    """Return features [B, d_joint] of one client, with prompts [J, P, d'] at the first J blocks.

    Args:
        norm_prompts: the first prompts pass `ln_pre` with the patches, as in MaPLe's code.
    """
    tower = copy.deepcopy(model.visual)
    x = clip.pixels(images)
    norm = torch.nn.Identity()
    if norm_prompts:
        norm, tower.ln_pre = tower.ln_pre, norm
    if hasattr(tower, "trunk"):
        trunk = tower.trunk
        x = trunk._pos_embed(trunk.patch_embed(x))
        blocks = trunk.blocks
    else:
        x = tower._embeds(x)
        blocks = tower.transformer.resblocks
    patches = x.shape[1] - 1
    for number, block in enumerate(blocks):
        if number < len(prompts):  # put last, as in MaPLe; order does not matter
            x = torch.cat([x[:, : 1 + patches], prompts[number].expand(len(images), -1, -1)], 1)
        x = block(norm(x) if number == 0 else x)
    if hasattr(tower, "trunk"):
        return F.normalize(tower.head(trunk.norm(x)[:, 0]), dim=-1)
    return F.normalize(tower.ln_post(x)[:, 0] @ tower.proj, dim=-1)


def test_deep_prompts_of_the_text_tower_equal_whole_texts(model):
    clip = _frozen(model)
    context = _random(K, L, D)
    deep = _random(K, 2, L, D)
    inserts = {j: {"input": deep_prompts(deep[:, j - 2], first=False)} for j in (2, 3)}
    actual = clip.text_features(context, NAMES, inserts=inserts)
    for k in range(K):
        expected = _texts(model, context[k], deep[k])
        torch.testing.assert_close(actual[k], expected, atol=1e-12, rtol=1e-12)


def test_deep_prompts_of_the_image_tower_equal_one_client_at_a_time(model):
    clip = _frozen(model)
    images = _images(clip)
    prompts = _random(K, 2, L, clip.image_width)
    inserts = {j: {"input": deep_prompts(prompts[:, j - 1], first=j == 1)} for j in (1, 2)}
    actual, patches = clip.image_features(images, inserts=inserts)
    for k in range(K):
        expected = _pictures(model, clip, images[k], prompts[k])
        torch.testing.assert_close(actual[k], expected, atol=1e-12, rtol=1e-12)
    _, without = clip.image_features(images)
    assert patches.shape == without.shape, "prompts are not patches"
    norm = getattr(model.visual, "ln_pre", torch.nn.Identity())  # a tower of timm has none
    assert torch.equal(clip.first_norm(prompts), norm(prompts))


def test_clients_with_weights_of_their_own_equal_open_clips_models_one_by_one(model):
    clip = _frozen(model)
    images = _images(clip)
    context = _random(K, L, D)
    weights = {n: v + 0.1 * _random(K, *v.shape) for n, v in clip.init_weights().items()}
    final, _ = clip.image_features(images, weights=weights)
    text = clip.text_features(context, NAMES, weights=weights)
    for k in range(K):
        alone = copy.deepcopy(model)
        alone.load_state_dict({name: v[k] for name, v in weights.items()}, strict=False)
        picture = alone.encode_image(clip.pixels(images[k]), normalize=True)
        torch.testing.assert_close(final[k], picture, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(text[k], _texts(alone, context[k]), atol=1e-12, rtol=1e-12)
    tower = "text." if hasattr(model, "text") else ""
    frozen = {name for name, _ in model.named_parameters()} - set(weights)
    places = {f"{tower}token_embedding.weight", f"{tower}positional_embedding", "logit_scale"}
    assert frozen == places


def test_adapters_lora_and_prefixes_of_several_contexts_equal_one_at_a_time(model):
    """Each client has two contexts of different lengths; padding must not change the features."""
    clip = _frozen(model)
    contexts = _random(K, 2, 4, D)
    lengths = torch.tensor([[4, 2], [3, 4]])
    own = {"down": _random(K, 5, D), "down_bias": _random(K, 5), "up": _random(K, D, 5)}
    own["up_bias"] = _random(K, D)
    a = _random(K, 4, D)
    b = _random(K, D, 4)
    keys = _random(K, 3, D)

    def inserts(of):
        places = {
            "q": lora(a[of], b[of], 0.5),
            "k": prefix(keys[of]),
            "v": prefix(keys[of]),
            "mlp": adapter({name: value[of] for name, value in own.items()}),
        }
        return {2: places}

    actual = clip.text_features(contexts, NAMES, lengths, inserts=inserts(slice(None)))
    plain = clip.text_features(contexts, NAMES, lengths)
    assert (actual - plain).abs().max() > 1e-3
    for k in range(K):
        for n in range(2):
            context = contexts[k, n, : lengths[k, n]][None]
            alone = clip.text_features(context, NAMES, inserts=inserts(slice(k, k + 1)))
            torch.testing.assert_close(actual[k, n], alone[0], atol=1e-12, rtol=1e-12)


def test_a_tower_without_blocks_is_refused():
    vision = {"layers": (1, 1, 1, 1), "width": 16, "image_size": 64}
    model = make_clip(open_clip.CLIP, 24, vision, TEXT)
    clip = FrozenCLIP(model, open_clip.SimpleTokenizer(), "tiny")
    images = torch.zeros(1, 1, 64, 64, 3, dtype=torch.uint8)
    with pytest.raises(FedLoomError, match=r"must have transformer blocks, got a ResNet"):
        clip.image_features(images, inserts={1: {"mlp": lambda x, y: y}})
    with pytest.raises(FedLoomError, match=r"must have transformer blocks, got a ResNet"):
        clip.first_norm(torch.zeros(1, 16))
    with pytest.raises(FedLoomError, match=r"no parameter 'visual\.conv9"):
        clip.image_features(images, weights={"visual.conv9.weight": torch.zeros(1, 3)})


@pytest.mark.parametrize(("variant", "left_over"), [("paper", ""), ("released", "of a ")])
@pytest.mark.parametrize("depth", [1, 2, 9])
def test_fedmaple_equals_both_towers_run_with_coupled_prompts(tiny, depth, variant, left_over):
    task, hooks = tiny("fedmaple", depth=depth, length=2, variant=variant)
    model = _model("clip")
    clip = task.backbone.__class__(model, open_clip.SimpleTokenizer(), "tiny")
    task = replace(task, backbone=clip)
    received, _, batch = first_cohort(task, hooks)
    params = {key: value.double() for key, value in received["params"].items()}
    blocks = min(depth, 3)
    assert params["text"].shape == (3, blocks, 2, D)
    assert params["coupling"].shape == (3, blocks, V, D)
    params = {key: value + 0.3 * torch.randn_like(value) for key, value in params.items()}
    pixels = clip.pixels
    clip.pixels = lambda images: pixels(images).double()
    plugin = sys.modules["fedloom_plugins.fedmaple.plugin"]
    actual = plugin.logits(task, params, batch)
    for k in range(3):
        text = params["text"][k]
        image = [
            p @ w.T + b for p, w, b in zip(text, *(params[n][k] for n in COUPLING), strict=True)
        ]
        released = variant == "released"
        pictures = _pictures(model, clip, batch.images[k], torch.stack(image), released)
        names = [left_over + name for name in task.data.classes]
        texts = _texts(model, text[0], text[1:], names)
        expected = model.logit_scale.exp() * pictures @ texts.T
        torch.testing.assert_close(actual[k], expected, atol=1e-10, rtol=1e-10)


def test_fedmaple_starts_from_the_words_and_sends_prompts_and_couplings(tiny):
    task, hooks = tiny("fedmaple", depth=1, length=2)
    clip = task.backbone
    params = hooks.init_server(task=task)["params"]
    assert torch.equal(params["text"][0], clip.embed_text("a photo of a")[:2])
    sizes = {name: list(value.shape) for name, value in params.items()}
    width = clip.width
    other = clip.image_width
    coupling = {"coupling": [1, other, width], "coupling_bias": [1, other]}
    assert sizes == {"text": [1, 2, width], **coupling}


def test_fedmaple_released_starts_all_but_the_first_coupling_alike(tiny):
    task, hooks = tiny("fedmaple", variant="released", depth=9)
    task = replace(task, backbone=_frozen(_model("clip")))
    params = hooks.init_server(task=task)["params"]
    for name in COUPLING:
        first, second, third = params[name]
        assert torch.equal(second, third) and not torch.equal(first, second)


def test_fedmaple_released_refuses_a_context_that_ends_within_a_word(tiny):
    task, hooks = tiny("fedmaple", variant="released", words="antidisestablishment a")
    received, clients, batch = first_cohort(task, hooks)
    with pytest.raises(FedLoomError, match=r"fedmaple: .*options\.length"):
        hooks.predict(task=task, received=received, clients=clients, batch=batch)
    for length in (8, 9):  # all words are learned
        task, hooks = tiny("fedmaple", variant="released", length=length)
        assert (
            sys.modules["fedloom_plugins.fedmaple.plugin"].texts_after_context(task)
            == task.data.classes
        )
