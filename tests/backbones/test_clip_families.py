"""CLIPs of other families than OpenAI's compute exactly what open_clip computes for them."""

import copy

import open_clip
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from clip_families import (
    FAMILIES,
    JOINT,
    WIDTH,
    folder_of_families,
    frozen,
    model_of,
    tokenize,
    tokenizer_of,
)
from fedloom.backbones.backbone import weights_digest
from fedloom.backbones.clip import loading
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.toolbox import adapter, deep_prompts, lora
from first_round import prefix
from hub_tokenizers import PLACES
from refusals import refused

NAMES = ("cat", "great_white shark", "x")
# what follows a context, as texts that are clean for every tokenizer
CLEAN = ("cat", "great white shark", "x")
# families whose texts have no mask, by where the text is read
WITHOUT_MASK = ("mobileclip", "siglip", "siglip2")
SIGLIPS = ("siglip", "siglip2")
K = 2
B = 3


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


def _images(clip):
    return torch.randint(0, 256, (K, B, 20, 20, 3), dtype=torch.uint8)


def _full_stop(family):
    """Return what stands behind a name; SigLIP's cleaning removes it."""
    return "" if family in SIGLIPS else "."


def _texts(family, length, names=CLEAN):
    """Return the tokens [C, places] of `length` placeholders in front of each name."""
    return tokenize(family, ["x " * length + name + _full_stop(family) for name in names])


def _replace_context(model, family, context, deep=()):
    """Return features [C, d_joint] of one context [L, d] by open_clip's own modules.

    The context takes the places of as many placeholders in the embeddings of whole texts.

    Args:
        deep: contexts [L, d] that replace it at the input of blocks 2, 3, ...
    """
    tower = getattr(model, "text", model)
    tokens = _texts(family, len(context))
    start = 0 if family in SIGLIPS else 1
    end = start + len(context)

    def stand_in(x, learned):
        learned = learned.expand(len(x), -1, -1)
        return torch.cat([x[:, :start], learned, x[:, end:]], 1)

    handles = [tower.token_embedding.register_forward_hook(lambda m, i, x: stand_in(x, context))]
    for number, learned in enumerate(deep, start=1):
        block = tower.transformer.resblocks[number]
        hook = lambda m, i, learned=learned: (stand_in(i[0], learned), *i[1:])  # noqa: E731
        handles.append(block.register_forward_pre_hook(hook))
    features = model.encode_text(tokens, normalize=True)
    for handle in handles:
        handle.remove()
    return features


def _doubled(family, model=None):
    """Return the backbone of a family in float64, pixels included."""
    clip = frozen(family, copy.deepcopy(model or model_of(family)).double())
    pixels = clip.pixels
    clip.pixels = lambda images: pixels(images).double()
    return clip


def test_zero_shot_logits_are_open_clips_own(family):
    model = model_of(family)
    clip = frozen(family, copy.deepcopy(model))
    images = _images(clip)
    tokens = tokenize(family, [f"a photo of a {name}{_full_stop(family)}" for name in CLEAN])
    expected, _ = model.get_logits(clip.pixels(images.flatten(0, 1)), tokens)
    final, patches = clip.image_features(images)
    found = clip.logits(final, clip.zero_shot(NAMES, ["a photo of a {}."]))
    torch.testing.assert_close(found.flatten(0, 1), expected, atol=1e-5, rtol=1e-5)
    assert patches.shape == (K, B, 0, JOINT)
    assert clip.logit_bias == (-10 if family in SIGLIPS else 0)


def test_words_in_front_of_a_name_are_the_whole_text(family):
    clip = frozen(family)
    learned = clip.text_features(clip.embed_text("a photo of a"), NAMES)
    written = clip.zero_shot(NAMES, ["a photo of a {}."])
    torch.testing.assert_close(learned, written, atol=1e-6, rtol=0)


def test_contexts_of_any_length_equal_whole_texts(family):
    model = model_of(family)
    clip = frozen(family, copy.deepcopy(model))
    contexts = [torch.randn(n, WIDTH, requires_grad=True) for n in (5, 1, 3)]
    padded = torch.stack(
        [F.pad(c.detach(), (0, 0, 0, 5 - len(c)), value=7.0) for c in contexts]
    ).requires_grad_()
    length = torch.tensor([5, 1, 3])
    found = clip.text_features(padded, NAMES, length)
    weight = torch.randn_like(found)
    (found * weight).sum().backward()
    for k, context in enumerate(contexts):
        expected = _replace_context(model, family, context)
        torch.testing.assert_close(found[k], expected, atol=1e-5, rtol=0)
        alone = clip.text_features(context.detach(), NAMES)
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)
        (expected * weight[k]).sum().backward()
        torch.testing.assert_close(padded.grad[k, : len(context)], context.grad)
        assert not padded.grad[k, len(context) :].any(), "padding has no gradient"


@pytest.mark.parametrize("kind", WITHOUT_MASK)
def test_many_classes_equal_a_few_at_once(kind):
    clip = frozen(kind)
    context = torch.randn(2, 3, WIDTH)
    many = tuple(f"cat {number}" for number in range(40))
    found = clip.text_features(context, many)
    assert found.shape == (2, 40, JOINT)
    few = clip.text_features(context, many[-3:])
    torch.testing.assert_close(found[:, -3:], few, atol=1e-6, rtol=0)
    assert clip.text_floats(many) == 40 * clip.text_places * WIDTH * clip.text_depth


@pytest.mark.parametrize("kind", WITHOUT_MASK)
def test_places_behind_the_eot_are_those_of_a_longer_context(kind):
    """FedPHA's code tokenises for a longer context and leaves zeros at the last places."""
    model = model_of(kind)
    clip = frozen(kind, copy.deepcopy(model))
    contexts = [torch.randn(n, WIDTH) for n in (5, 2)]
    padded = torch.stack([F.pad(c, (0, 0, 0, 5 - len(c))) for c in contexts])
    length = torch.tensor([5, 2])
    longest = 9
    found = clip.text_features(padded, NAMES, length, longest - length)
    for k, context in enumerate(contexts):
        tokens = _texts(kind, longest)
        start = 0 if kind in SIGLIPS else 1

        def shorten(module, inputs, x, context=context, start=start):
            learned = context.expand(len(x), -1, -1)
            kept = torch.cat([x[:, :start], learned, x[:, start + longest :]], 1)
            return F.pad(kept, (0, 0, 0, x.shape[1] - kept.shape[1]))

        handle = model.text.token_embedding.register_forward_hook(shorten)
        expected = model.encode_text(tokens, normalize=True)
        handle.remove()
        torch.testing.assert_close(found[k], expected, atol=1e-5, rtol=0)
    alike = clip.text_features(padded[:1], NAMES, None, torch.tensor([4]))
    torch.testing.assert_close(alike[0], found[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", SIGLIPS)
def test_the_longest_context_ends_right_before_the_name(kind):
    model = model_of(kind)
    clip = frozen(kind, copy.deepcopy(model))
    room = clip.max_context_length(NAMES)
    assert room == PLACES - len(clip._text.ids(" great white shark")) - 1
    context = torch.randn(room, WIDTH)
    found = clip.text_features(context, NAMES)
    torch.testing.assert_close(found, _replace_context(model, kind, context), atol=1e-5, rtol=0)
    with refused(room + 1, PLACES):
        clip.text_features(torch.zeros(room + 1, WIDTH), NAMES)


# ---- the inside of the towers -----------------------------------------------------------------


def test_deep_prompts_of_the_text_tower_equal_whole_texts(family):
    model = model_of(family).double()
    clip = _doubled(family, model)
    context = torch.randn(K, 2, WIDTH, dtype=torch.float64)
    deep = torch.randn(K, 2, WIDTH, dtype=torch.float64)
    inserts = {2: {"input": deep_prompts(deep, first=False)}}
    found = clip.text_features(context, NAMES, inserts=inserts)
    for k in range(K):
        expected = _replace_context(model, family, context[k], [deep[k]])
        torch.testing.assert_close(found[k], expected, atol=1e-12, rtol=1e-12)


def test_text_inserts_of_several_contexts_equal_one_at_a_time(family):
    clip = _doubled(family)
    contexts = torch.randn(K, 2, 4, WIDTH, dtype=torch.float64)
    lengths = torch.tensor([[4, 2], [3, 4]])
    shapes = {"down": (5, WIDTH), "down_bias": (5,), "up": (WIDTH, 5), "up_bias": (WIDTH,)}
    own = {n: torch.randn(K, *shape, dtype=torch.float64) for n, shape in shapes.items()}
    a, b, keys = (
        torch.randn(K, *s, dtype=torch.float64) for s in ((4, WIDTH), (WIDTH, 4), (3, WIDTH))
    )

    def inserts(of):
        places = {
            "q": lora(a[of], b[of], 0.5),
            "k": prefix(keys[of]),
            "v": prefix(keys[of]),
            "mlp": adapter({name: value[of] for name, value in own.items()}),
        }
        return {2: places}

    found = clip.text_features(contexts, NAMES, lengths, inserts=inserts(slice(None)))
    for k in range(K):
        for n in range(2):
            context = contexts[k, n, : lengths[k, n]][None]
            alone = clip.text_features(context, NAMES, inserts=inserts(slice(k, k + 1)))
            torch.testing.assert_close(found[k, n], alone[0], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", SIGLIPS)
def test_siglips_pooling_reads_prompts_as_a_class_token_would(kind):
    model = model_of(kind).double()
    clip = _doubled(kind, model)
    images = _images(clip)
    prompts = torch.randn(K, 2, 4, JOINT, dtype=torch.float64)
    inserts = {j: {"input": deep_prompts(prompts[:, j - 1], first=j == 1)} for j in (1, 2)}
    found, _ = clip.image_features(images, inserts=inserts)
    trunk = model.visual.trunk
    for k in range(K):
        x = trunk._pos_embed(trunk.patch_embed(clip.pixels(images[k])))
        patches = x.shape[1]
        for number, block in enumerate(trunk.blocks):
            # the reference puts prompts last, since the order of tokens changes nothing
            if number < 2:
                x = torch.cat([x[:, :patches], prompts[k, number].expand(B, -1, -1)], 1)
            x = block(x)
        expected = F.normalize(trunk.forward_head(trunk.norm(x)), dim=-1)
        torch.testing.assert_close(found[k], expected, atol=1e-12, rtol=1e-12)
    embedded = clip.patch_embeddings(images)
    assert embedded.shape == (K, B, 4, JOINT)


@pytest.mark.parametrize("kind", SIGLIPS)
def test_clients_with_weights_of_their_own_equal_models_one_by_one(kind):
    clip = _doubled(kind)
    images = _images(clip)
    context = torch.randn(K, 2, WIDTH, dtype=torch.float64)
    weights = {
        name: value + 0.1 * torch.randn(K, *value.shape, dtype=torch.float64)
        for name, value in clip.init_weights().items()
    }
    assert "visual.trunk.attn_pool.kv.weight" in weights
    final, _ = clip.image_features(images, weights=weights)
    text = clip.text_features(context, NAMES, weights=weights)
    for k in range(K):
        alone = model_of(kind).double()
        alone.load_state_dict({name: v[k] for name, v in weights.items()}, strict=False)
        picture = alone.encode_image(clip.pixels(images[k]), normalize=True)
        torch.testing.assert_close(final[k], picture, atol=1e-12, rtol=1e-12)
        expected = _replace_context(alone, kind, context[k])
        torch.testing.assert_close(text[k], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("kind", "tower"), [("mobileclip", "FastVit"), ("convnext", "ConvNeXt")])
def test_an_image_tower_without_blocks_is_read_alone(kind, tower):
    clip = frozen(kind)
    images = _images(clip)
    assert clip.image_depth == 0
    cached = clip.compute_cache(images.flatten(0, 1), "features")["final"]
    torch.testing.assert_close(cached, clip.image_features(images)[0].flatten(0, 1))
    for use in (
        lambda: clip.image_features(images, inserts={1: {"mlp": lambda x, y: y}}),
        lambda: clip.first_norm(torch.zeros(1, 4)),
        lambda: clip.patch_embeddings(images),
    ):
        with refused("transformer blocks", tower):
            use()


@pytest.mark.parametrize("kind", FAMILIES)
def test_patches_that_are_none_are_not_cached(kind):
    clip = frozen(kind)
    assert not clip.has_patches
    with refused(f"tiny-{kind}", "patches"):
        clip.compute_cache(_images(clip).flatten(0, 1), "patches")


# ---- loading ----------------------------------------------------------------------------------


def _spec(family, weights, **more):
    spec = {"library": "open_clip", "name": f"tiny-{family}", "weights": str(weights)}
    if family in SIGLIPS:
        spec["tokenizer"] = str(folder_of_families() / family)
    return spec | more


@pytest.mark.parametrize("before", ["", "module."])
def test_a_file_of_weights_in_open_clips_names_is_read(family, before, tmp_path):
    model = model_of(family)
    path = tmp_path / "weights.safetensors"
    state = {f"{before}{name}": value for name, value in model.state_dict().items()}
    safetensors.torch.save_file(state, path)
    loaded = loading.load(_spec(family, path))
    images = _images(loaded)
    expected = model.encode_image(loaded.pixels(images[0]), normalize=True)
    torch.testing.assert_close(loaded.image_features(images)[0][0], expected, atol=1e-6, rtol=0)
    texts = tokenize(family, list(CLEAN))
    expected = model.encode_text(texts, normalize=True)
    torch.testing.assert_close(loaded.encode(CLEAN), expected, atol=1e-5, rtol=0)
    again = loading.load(_spec(family, path))
    assert weights_digest(loaded) == weights_digest(again)


def test_a_digest_of_weights_covers_the_tokenizer():
    folder = folder_of_families()
    one = loading.load(_spec("siglip", "none"))
    other = loading.load(_spec("siglip", "none", tokenizer=str(folder / "siglip2")))
    assert weights_digest(one) != weights_digest(other)
    assert one.model.state_dict().keys() == other.model.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "mean", "std", "interpolation"),
    [
        ("ViT-B-16-SigLIP2", 0.5, 0.5, "bicubic"),
        ("MobileCLIP-S1", 0.0, 1.0, "bilinear"),
        ("convnext_base_w", 0.48145466, 0.26862954, "bicubic"),
        ("ViT-L-14", 0.48145466, 0.26862954, "bicubic"),  # its weights do not agree
    ],
)
def test_images_are_normalised_as_all_weights_of_a_name_need(name, mean, std, interpolation):
    class Model:
        visual = torch.nn.Module()

    model = Model()
    numbers = {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD}
    open_clip.set_model_preprocess_cfg(model, {"size": 8, "interpolation": "bicubic"} | numbers)
    loading._set_usual_preprocessing(model, name)
    found = model.visual.preprocess_cfg
    assert (found["mean"][0], found["std"][0]) == pytest.approx((mean, std))
    assert (found["interpolation"], found["size"]) == (interpolation, 8)


def test_a_file_gets_the_preprocessing_of_the_names_tags(tmp_path, monkeypatch):
    """A model of the hub keeps what its own tag says; a file says nothing."""
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(model_of("mobileclip").state_dict(), path)
    way = {"mean": (0.25,) * 3, "std": (0.75,) * 3, "interpolation": "bilinear"}
    monkeypatch.setattr(open_clip, "list_pretrained_tags_by_model", lambda name: ["a", "b"])
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda name, tag: way | {"url": tag})
    white = torch.full((1, 64, 64, 3), 255, dtype=torch.uint8)
    for weights in (path, "none"):
        clip = loading.load(_spec("mobileclip", weights))
        torch.testing.assert_close(clip.pixels(white), torch.ones(1, 3, 64, 64))
    own = loading.load(_spec("mobileclip", path, mean=[0.5], std=[0.25]))
    torch.testing.assert_close(own.pixels(white), torch.full((1, 3, 64, 64), 2.0))


def test_bf16_and_checkpointing_compute_the_same_texts(family):
    """bfloat16 has 8 bits; what is computed again in the backward pass is equal to the bit."""
    context = torch.randn(2, 4, WIDTH, requires_grad=True)
    length = torch.tensor([4, 2])
    usual = frozen(family).text_features(context, NAMES, length)
    for more, near in (({"precision": "bf16"}, 0.05), ({"gradient_checkpointing": True}, 0)):
        clip = FrozenCLIP(model_of(family), tokenizer_of(family), "tiny", **more)
        found = clip.text_features(context, NAMES, length)
        torch.testing.assert_close(found, usual, atol=near, rtol=0)
        (gradient,) = torch.autograd.grad(found.sum(), context)
        assert gradient.isfinite().all()


# ---- the real architectures -------------------------------------------------------------------

SMALLEST = (
    "MobileCLIP2-S0",
    "MobileCLIP-B",
    "convnext_tiny",
    "PE-Core-T-16-384",
    "ViT-B-32-SigLIP2-256",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_logits_of_whole_architectures_are_open_clips_own(name, monkeypatch, tmp_path):
    """Weights are random; the vocabulary of SigLIP is cut to that of a tiny tokenizer."""
    config = copy.deepcopy(open_clip.get_model_config(name))
    kind = "siglip2" if "SigLIP" in name else "mobileclip"
    if "SigLIP" in name:
        config["text_cfg"]["vocab_size"] = 128
    torch.manual_seed(0)
    custom = config.pop("custom_text", False)
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config).eval()
    cfg = {"size": model.visual.image_size, "mean": (0.5,), "std": (0.5,)}
    open_clip.set_model_preprocess_cfg(model, cfg | {"interpolation": "bicubic"})
    clip = frozen(kind, model)
    images = torch.randint(0, 256, (1, 40, 40, 3), dtype=torch.uint8)
    places = config["text_cfg"].get("context_length", 77)
    tokens = tokenize(kind, [f"a photo of a {name}{_full_stop(kind)}" for name in CLEAN])
    with torch.no_grad():
        expected, _ = model.get_logits(clip.pixels(images), tokens[:, :places])
        final, _ = clip.image_features(images)
        found = clip.logits(final, clip.zero_shot(NAMES, ["a photo of a {}."]))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
