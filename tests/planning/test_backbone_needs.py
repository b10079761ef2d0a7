"""Planning refuses a method on a backbone that lacks what the method needs."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from backbone_study import backbone_study
from clip_families import FAMILIES, folder_of_families
from fedloom.backbones.sizes import count
from fedloom.planning.load_plan import load_plan
from fedloom.planning.resources import backbone_sizes
from fedloom.planning.resources.estimates import workload
from hub_tokenizers import PLACES
from refusals import refused

LABELS = {"dataset": "glyphs", "partition": "pathological", "seed": "0"}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return study(method, name): the plan of a study on the backbone that open_clip names so."""
    monkeypatch.chdir(tmp_path)
    folder_of_families()
    backbone_sizes._sizes.cache_clear()

    # a process of its own would not know the tiny models
    def count_here(command, **_):
        *_, library, settings = command
        counted = json.dumps(count(library, json.loads(settings)))
        return SimpleNamespace(returncode=0, stdout=counted, stderr="")

    monkeypatch.setattr(subprocess, "run", count_here)

    def make(method, name, library="open_clip", **more):
        entry = {"library": library, "name": name} | more
        return load_plan([backbone_study(tmp_path, method, entry)])

    return make


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("promptfl", "tiny-mobileclip"),
        ("promptfl", "tiny-siglip"),
        ("fedmaple", "tiny-siglip2"),
        ("fedmaple", "micro_clip"),
        ("fedotp", "micro_clip"),
        ("fedotp", "RN50-quickgelu"),
    ],
)
def test_a_tower_that_gives_what_a_method_needs_is_planned(method, name, study):
    assert {run.method for run in study(method, name).runs} == {method}


@pytest.mark.parametrize(
    ("method", "name", "is_fit"),
    [
        ("pep_fedpt", "vit_tiny_patch16_224", True),
        ("pep_fedpt", "vit_small_patch16_dinov3", True),  # it has one, though it pools its patches
        ("fedvpt", "test_vit2", True),
        ("pep_fedpt", "test_vit2", False),
        ("sgpt", "test_vit2", False),
    ],
)
def test_a_method_that_needs_a_class_token_is_refused_without_one(method, name, is_fit, study):
    if is_fit:
        assert {run.method for run in study(method, name, "timm").runs} == {method}
        return
    with refused("backbones.b.name", method, name, "class token", "study.yaml"):
        study(method, name, "timm")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_method_that_reads_patches_needs_a_class_token(family, study):
    with refused("backbones.b.name", "fedotp", f"tiny-{family}", "patches", "study.yaml"):
        study("fedotp", f"tiny-{family}")


@pytest.mark.parametrize("method", ["fedmaple", "fedmgp", "fedmvp", "pfedmma"])
@pytest.mark.parametrize("name", ["RN50-quickgelu", "tiny-mobileclip", "tiny-convnext"])
def test_a_method_that_enters_the_image_tower_needs_blocks(method, name, study):
    with refused("backbones.b.name", method, name, "transformer blocks", "study.yaml"):
        study(method, name)


def test_sizes_count_whole_texts_in_a_tower_without_a_mask(study):
    """A token of 2 blocks of width 16: four matrices of the attention, two of the MLP, mixing."""
    planned = study("promptfl", "tiny-siglip")
    found = backbone_sizes.sizes(planned.settings.backbones["b"])
    of_token = 2 * (2 * 12 * 16**2 + 2 * 2 * 16 * PLACES)
    projection = 2 * 16 * 24 / PLACES
    assert found.token_operations == pytest.approx(of_token + projection)
    assert (found.text_places, found.has_patches, found.depth) == (PLACES, False, 3)

    labels = SimpleNamespace(**LABELS, backbone="b", method="promptfl")
    run = workload(planned.settings, labels, "promptfl")
    assert run.step.text_floats == run.data.classes * PLACES * 16 * 2


def test_a_local_tokenizer_is_a_part_of_the_plan(study, tmp_path):
    folder = folder_of_families() / "siglip"
    plan = study("promptfl", "tiny-siglip", tokenizer=str(folder))
    files = plan.weights_file(SimpleNamespace(backbone="b"))
    assert [(tmp_path / file).resolve() for file in files] == [
        folder / "tokenizer.json",
        folder / "tokenizer_config.json",
    ]
    kept = plan.settings.backbones["b"]
    assert len(kept.settings["tokenizer_sha256"]) == 64
    other = folder_of_families() / "siglip2"
    changed = study("promptfl", "tiny-siglip", tokenizer=str(other)).settings.backbones["b"]
    assert changed.settings["tokenizer_sha256"] != kept.settings["tokenizer_sha256"]
    with refused("backbones.b.tokenizer", "tokenizer.json", tmp_path):
        study("promptfl", "tiny-siglip", tokenizer=str(tmp_path))
