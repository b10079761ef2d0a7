"""Weights from files: how images are normalised for them, and how training scripts save them."""

import json
import logging

import open_clip
import pytest
import safetensors.torch
import timm
import torch
import torchvision

from default_config import default_config
from fedloom.backbones.backbone import load_backbone
from fedloom.config.resolve import resolve_with
from fedloom.config.settings import LIBRARIES
from refusals import refused

DEFAULT = default_config()
TINY = "vit_tiny_patch16_224"
DINO = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
VIT = {"image_size": 16, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
TEXT = {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}


@pytest.fixture(scope="module")
def networks():
    """Return a network of each family, with the name of its model."""
    torch.manual_seed(0)
    return {
        "vit": (TINY, timm.create_model(TINY, img_size=32, num_classes=7)),
        "resnet": ("resnet18", torchvision.models.resnet18(num_classes=7)),
    }


@pytest.fixture(scope="module")
def small_clip(tmp_path_factory):
    """Return the name of a small CLIP that is registered with open_clip, and the network."""
    path = tmp_path_factory.mktemp("models") / "small-clip.json"
    config = {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT}
    path.write_text(json.dumps(config))
    open_clip.add_model_config(path)
    torch.manual_seed(0)
    return "small-clip", open_clip.create_model("small-clip").eval()


def _loaded(family, name, tensors, folder, file="weights.safetensors", **keys):
    """Return the backbone that the family makes of a file of these tensors."""
    path = folder / file
    safetensors.torch.save_file(tensors, path)
    size = {} if family == "clip" else {"image_size": 32}
    return load_backbone(LIBRARIES[family], {"name": name, "weights": str(path)} | size | keys)


def _whites(backbone):
    """Return the value of white in each channel of the backbone's normalised input."""
    white = torch.full((1, *backbone.pixels.size, 3), 255, dtype=torch.uint8)
    return backbone.pixels(white)[0, :, 0, 0].tolist()


# ---- normalisation -------------------------------------------------------------------------------


def test_by_default_images_are_normalised_by_the_numbers_of_the_name(networks, tmp_path):
    name, network = networks["vit"]
    plain = _loaded("vit", name, network.state_dict(), tmp_path)
    assert _whites(plain) == pytest.approx([1.0, 1.0, 1.0])  # (1 - 0.5) / 0.5, as for augreg
    named = _loaded("vit", "vit_small_patch16_224.dino", {}, tmp_path, weights="none")
    assert _whites(named) == pytest.approx([2.2489, 2.4286, 2.64], abs=1e-4), "those of the tag"


@pytest.mark.parametrize("family", ["vit", "resnet"])
def test_mean_and_std_normalise_images_as_the_weights_need(networks, family, tmp_path):
    name, network = networks[family]
    keys = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.5]}
    backbone = _loaded(family, name, network.state_dict(), tmp_path, **keys)
    assert _whites(backbone) == pytest.approx([3.0, 2.0, 0.8])
    keys = {"mean": [0.25], "std": [0.5]}
    backbone = _loaded(family, name, network.state_dict(), tmp_path, **keys)
    assert _whites(backbone) == pytest.approx([1.5, 1.5, 1.5])


def test_mean_and_std_normalise_the_images_of_a_clip(small_clip, tmp_path):
    name, network = small_clip
    backbone = _loaded("clip", name, network.state_dict(), tmp_path, mean=[0.2], std=[0.4])
    assert _whites(backbone) == pytest.approx([2.0, 2.0, 2.0])


def test_numbers_for_other_channels_are_refused(networks, tmp_path):
    name, network = networks["vit"]
    with refused(name, "mean", "3 channels", "got 2"):
        _loaded("vit", name, network.state_dict(), tmp_path, mean=[0.5] * 2, std=[0.5] * 2)
    micro = {"name": "micro_vit", "weights": "none", "mean": [0.5] * 3, "std": [0.5] * 3}
    with refused("micro_vit", "mean", "1 channels", "got 3"):
        load_backbone("timm", micro)


def test_the_log_names_the_numbers(networks, tmp_path, caplog):
    name, network = networks["vit"]
    with caplog.at_level(logging.INFO, "fedloom"):
        _loaded("vit", name, network.state_dict(), tmp_path)
        _loaded("vit", name, network.state_dict(), tmp_path, mean=[0.25], std=[0.125])
    usual, own = (record.getMessage() for record in caplog.records)
    assert name in usual and "mean [0.5, 0.5, 0.5]" in usual and "usual" in usual
    assert "mean [0.25]" in own and "deviation [0.125]" in own and "keys mean and std" in own


def test_a_clips_quick_gelu_is_what_the_key_says_else_what_the_name_says(small_clip, tmp_path):
    name, network = small_clip
    images = torch.randint(0, 256, (2, 16, 16, 3), dtype=torch.uint8)
    torch.manual_seed(0)
    sigmoid = open_clip.create_model(name, force_quick_gelu=True).eval()  # x sigmoid(1.702 x)
    sigmoid.load_state_dict(network.state_dict())
    for keys, model in (
        ({}, network),
        ({"quick_gelu": False}, network),
        ({"quick_gelu": True}, sigmoid),
    ):
        backbone = _loaded("clip", name, network.state_dict(), tmp_path, **keys)
        features, _ = backbone.image_features(images)
        with torch.no_grad():
            expected = model.encode_image(backbone.pixels(images), normalize=True)
        torch.testing.assert_close(features, expected, atol=1e-6, rtol=0)


def test_quick_gelu_must_agree_with_a_tag():
    spec = {"name": "ViT-B-32", "weights": "openai", "quick_gelu": False}
    with refused("ViT-B-32", "'openai'", "need QuickGELU", "leave out quick_gelu"):
        load_backbone("open_clip", spec)
    with refused("ViT-B-32-quickgelu", "'openai'", "leave out quick_gelu"):
        load_backbone("open_clip", spec | {"name": "ViT-B-32-quickgelu"})
    spec = {"name": "ViT-B-32", "weights": "laion2b_s34b_b79k", "quick_gelu": True}
    with refused("ViT-B-32", "laion2b_s34b_b79k", "leave out quick_gelu"):
        load_backbone("open_clip", spec)


# ---- the keys in the config ----------------------------------------------------------------------


def _study(tmp_path, **entry):
    """Return the settings of the default study on a backbone with weights of a file."""
    (tmp_path / "x.safetensors").write_bytes(b"")
    name = {"timm": TINY, "open_clip": "ViT-B-16", "torchvision": "resnet18"}
    library = entry.pop("library", "timm")
    of_file = {
        "library": library,
        "name": name[library],
        "weights": str(tmp_path / "x.safetensors"),
    }
    method = {"timm": "fedvpt", "open_clip": "promptfl", "torchvision": "fedavg"}[library]
    select = {"backbones": ["own"], "methods": [method], "tables": [], "figures": []}
    backbones = DEFAULT["backbones"] | {"own": of_file | entry}
    return resolve_with(DEFAULT | {"backbones": backbones, "select": DEFAULT["select"] | select})


@pytest.mark.parametrize("library", ["timm", "open_clip", "torchvision"])
def test_studies_without_the_keys_keep_their_settings_and_so_their_runs(library, tmp_path):
    assert _study(tmp_path, library=library).backbones["own"].settings.keys() == {"name", "weights"}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"mean": [0.5]}, ["backbones.own", "mean needs std"]),
        ({"std": [0.5]}, ["backbones.own", "std needs mean"]),
        (
            {"mean": [123.7] * 3, "std": [58.4] * 3},
            ["backbones.own.mean", "less than or equal to 1"],
        ),
        ({"mean": [0.5], "std": [0.0]}, ["backbones.own.std", "greater than 0"]),
        ({"mean": [], "std": []}, ["backbones.own.mean"]),
        ({"mean": [0.5] * 4, "std": [0.5] * 4}, ["backbones.own.mean"]),
        ({"quick_gelu": True}, ["backbones.own.quick_gelu", "unknown key"]),
        (
            {"library": "open_clip", "name": "micro_clip", "quick_gelu": True},
            ["backbones.own", "quick_gelu"],
        ),
    ],
)
def test_keys_that_cannot_be_are_refused(entry, words, tmp_path):
    with refused(*words):
        _study(tmp_path, **entry)


def test_a_study_says_what_it_assumes_of_a_file(tmp_path):
    (note,) = _study(tmp_path).notes
    assert all(word in note for word in ("backbones.own", TINY, "mean and std", "tag"))
    normal, activation = _study(tmp_path, library="open_clip").notes
    assert "mean and std" in normal and "tag" not in normal
    assert "without QuickGELU" in activation and "ViT-B-16" in activation
    (note,) = _study(tmp_path, library="torchvision").notes
    assert "resnet18" in note and "mean and std" in note


@pytest.mark.parametrize(
    "entry",
    [
        DINO,
        {"name": "vit_small_patch16_224.dino"},
        {"weights": "hub"},
        {"library": "open_clip", "name": "ViT-B-16-quickgelu", **DINO},
        {"library": "open_clip", "quick_gelu": False, **DINO},
        {"library": "open_clip", "weights": "openai", "name": "ViT-B-16-quickgelu"},
    ],
)
def test_nothing_is_assumed_where_the_study_says_it(entry, tmp_path):
    assert not _study(tmp_path, **entry).notes


# ---- files of training scripts -------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "resnet"])
@pytest.mark.parametrize(
    "prefix",
    ["module.", "backbone.", "module.backbone.", "_orig_mod.model.", "module.base_encoder."],
)
def test_a_known_prefix_is_stripped_and_other_parts_are_left_out(
    networks, family, prefix, tmp_path
):
    name, network = networks[family]
    state = {f"{prefix}{k}": v for k, v in network.state_dict().items()}
    state |= {"projector.0.weight": torch.zeros(2), "queue": torch.zeros(2)}
    loaded = _loaded(family, name, state, tmp_path)
    for key, value in loaded.init_weights().items():
        assert torch.equal(value, network.state_dict()[key])


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "module.model."])
def test_a_prefix_of_a_clip_is_stripped(small_clip, prefix, tmp_path):
    name, network = small_clip
    state = {f"{prefix}{k}": v for k, v in network.state_dict().items()}
    loaded = _loaded("clip", name, state, tmp_path)
    for key, value in loaded.model.state_dict().items():
        assert torch.equal(value, network.state_dict()[key])


@pytest.mark.parametrize("family", ["vit", "resnet"])
@pytest.mark.parametrize("head", ["head", "fc", "head_dist", "classifier"])
def test_a_classifier_is_left_out(networks, family, head, tmp_path):
    name, network = networks[family]
    own = {k: v for k, v in network.state_dict().items() if not k.startswith(("head.", "fc."))}
    state = own | {f"{head}.weight": torch.zeros(7, 2), f"{head}.bias": torch.zeros(7)}
    loaded = _loaded(family, name, state, tmp_path)
    assert torch.equal(loaded.model.state_dict()[next(iter(own))], own[next(iter(own))])


def test_deits_distillation_token_needs_the_model_that_has_it(tmp_path):
    name = "deit_tiny_distilled_patch16_224"
    torch.manual_seed(0)
    state = timm.create_model(name, img_size=32, num_classes=7).state_dict()
    with refused(TINY, "weights.safetensors", "distillation token", "deit_small_distilled"):
        _loaded("vit", TINY, state, tmp_path)
    loaded = _loaded("vit", name, state, tmp_path)
    assert torch.equal(loaded.model.dist_token, state["dist_token"])


def test_a_shard_is_refused_with_the_cure(networks, small_clip, tmp_path):
    shard = "model-00001-of-00002.safetensors"
    for family, (name, network) in (networks | {"clip": small_clip}).items():
        with refused(name, shard, "one file", "save_file"):
            _loaded(family, name, network.state_dict(), tmp_path, file=shard)
    with refused(TINY, "index.json", "one file"):
        load_backbone("timm", {"name": TINY, "weights": "model.safetensors.index.json"})
    name, network = networks["vit"]
    _loaded("vit", name, network.state_dict(), tmp_path, "m-00001-of-00001.safetensors")


@pytest.mark.parametrize("family", ["vit", "resnet"])
def test_weights_of_another_model_are_refused_with_what_differs(networks, family, tmp_path):
    name, network = networks[family]
    state = dict(network.state_dict())
    first = next(iter(state))
    del state[first]
    state["stem.weight"] = torch.zeros(2)
    with refused(name, "weights.safetensors", f"1 ('{first}'", "1 ('stem.weight'"):
        _loaded(family, name, state, tmp_path)


@pytest.mark.parametrize("family", ["vit", "resnet", "clip"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_when_weights_are_loaded(
    networks, small_clip, family, number, tmp_path
):
    name, network = (networks | {"clip": small_clip})[family]
    state = {key: value.clone() for key, value in network.state_dict().items()}
    damaged = [k for k, v in state.items() if v.is_floating_point() and "weight" in k][1]
    state[damaged].view(-1)[-1] = number
    with refused(name, "weights.safetensors", damaged, "NaN or infinity"):
        _loaded(family, name, state, tmp_path)
