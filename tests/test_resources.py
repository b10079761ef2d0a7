"""Memory and time that jobs ask for, and caches that are read by row."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import open_clip
import psutil
import pytest
import safetensors.torch
import timm
import torch

from default_config import default_config
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import write_receipt
from fedloom.data.sources import glyphs, sklearn_digits
from fedloom.federated.setup import cached_patches
from fedloom.methods import manifest
from fedloom.plan import resources, work
from fedloom.plan.backbone_sizes import shape
from fedloom.plan.plan import Plan
from fedloom.plan.resolve import resolve
from fedloom.plan.settings import Backbone, Dataset

VIT = {"library": "timm", "name": "vit_base_patch16_224.orig_in21k", "weights": "hub"}
CLIP = {"library": "open_clip", "name": "ViT-B-16-quickgelu", "weights": "openai"}
LABELS = {"dataset": "d", "partition": "p", "method": "m", "seed": "0", "end": "0020"}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """ask(rule, images, backbone, method): what a rule asks for, on a store of so many images."""
    monkeypatch.chdir(tmp_path)

    def make(rule, images=50_000, backbone=VIT, method="fedvpt", training=(), **study):
        if images is not None:
            store = tmp_path / "results/datasets/d/images.arrow"
            store.parent.mkdir(parents=True, exist_ok=True)
            store.write_bytes(b"")
            write_receipt(store, images=images, classes=["c"] * 100)
        config = default_config()
        config["study"] |= {"clients_per_round": 5, "rounds": 20, "rounds_per_job": 20}
        config["study"] |= {"report": {"last_evaluations": 1}} | study
        config["datasets"]["d"] = {"source": "torchvision", "name": "CIFAR100", "root": "data"}
        config["partitions"]["p"] = {"scheme": "iid", "clients": 100}
        config["backbones"]["b"] = backbone
        options = {"batch_size": 64, "epochs": 1, **dict(training)}
        config["methods"]["m"] = {"plugin": method, "training": options}
        chosen = {"datasets": ["d"], "partitions": ["p"], "backbones": ["b"], "methods": ["m"]}
        config["select"] |= chosen | {"figures": [], "tables": ["main"]}
        plan = Plan(resolve(config))
        return plan.resources(rule, SimpleNamespace(**LABELS, backbone="b", artefact="x"))

    return make


def test_features_of_50000_images_get_more_than_the_five_hours_that_they_take(ask):
    """They took a ViT-B/16 4.9 hours of one core, against a limit of 4."""
    asked = ask("cache")
    assert 2 * 4.9 * 60 < asked.runtime < 4 * 4.9 * 60
    assert asked.mem_mb < 8000
    assert ask("cache", images=500_000).runtime > 9 * asked.runtime
    assert ask("cache", images=500).runtime <= 30


def test_training_gets_the_memory_of_the_images_in_flight(ask):
    """A ViT-B/16 takes 78 MB for each; 26 GB for 5 clients of 64, against 6."""
    whole = ask("train").mem_mb
    assert 26_000 < whole < 32_000
    assert ask("train", stacked=False).mem_mb < whole / 3
    micro = ask("train", training={"micro_batch": 8}).mem_mb
    assert micro < whole / 4
    assert ask("train", training={"batch_size": 128}).mem_mb > 1.8 * whole
    large = VIT | {"name": "vit_large_patch14_clip_336.openai"}
    assert ask("train", backbone=large).mem_mb > 5 * whole


def test_a_clip_method_does_not_ask_for_the_patches_of_all_images(ask):
    """FedOTP's jobs held all 10 GB of them; they are read by row."""
    small, large = (ask("train", images=n, backbone=CLIP, method="fedotp") for n in (5000, 500_000))
    assert small.mem_mb == large.mem_mb
    assert small.runtime < large.runtime
    assert ask("train", backbone=CLIP, method="promptfl").mem_mb < small.mem_mb


def test_time_follows_rounds_and_clients_up_to_what_a_job_may_take(ask):
    one = ask("train", images=2000, rounds_per_job=1).runtime
    assert one < ask("train", images=2000, evaluate_every=20).runtime
    assert ask("train", images=2000, evaluate_every=20).runtime < ask("train", images=2000).runtime
    assert ask("train").runtime == resources.LONGEST, "it resumes when it is tried again"


def test_time_follows_local_steps_where_they_stand_in_for_epochs(ask):
    few, many = (
        ask("train", images=500, rounds_per_job=1, training={"local_steps": n}).runtime
        for n in (1, 100)
    )
    assert few < many


def test_before_there_is_a_store_the_config_says_how_much_there_is(ask, tmp_path):
    assert ask("cache", images=None).runtime > 2 * 60 * 5, "60,000 images, if nobody knows"
    plan = Plan(resolve(default_config()))
    for rule in ("dataset", "cache", "prototypes", "block_accuracy", "train", "artefact"):
        digits = {"dataset": "digits", "backbone": "micro_vit", "method": "fedvpt", "seed": "0"}
        labels = digits | {"partition": "iid", "end": "0020", "artefact": "x"}
        asked = plan.resources(rule, SimpleNamespace(**labels))
        assert asked.mem_mb <= 3000 and asked.runtime <= 30
        assert (asked.mem_mb % 500, asked.runtime % 15) == (0, 0)
    glyphs = plan.settings.datasets["glyphs"]
    assert work.contents(glyphs) == (100 * 12 * 4, 100)


def _shape(library, name, **settings):
    return shape(Backbone("b", library, {"name": name, **settings}))


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("vit_base_patch16_224.orig_in21k", 0.01),
        ("vit_small_patch8_224.dino", 0.01),
        ("vit_tiny_patch16_384", 0.01),
        ("vit_base_patch14_dinov2.lvd142m", 0.01),  # of 518 px
        ("vit_so400m_patch14_siglip_378.webli", 0.05),  # and a pooling block
        ("vit_large_patch14_clip_336.openai", 0.01),
        ("vit_giant_patch14_reg4_dinov2.lvd142m", 0.25),  # gated MLPs are counted as plain ones
        ("vit_gigantic_patch14_clip_224.metaclip_2pt5b", 0.01),
        ("deit_small_patch16_224", 0.01),
        ("micro_vit", 0.05),
    ],
)
def test_a_vits_sizes_are_those_of_the_model_that_timm_builds(name, close):
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0)
    true = sum(parameter.numel() for parameter in model.parameters())
    told = _shape("timm", name)
    assert true * (1 - min(close, 0.05)) <= told.parameters <= true * (1 + close)
    first = model.blocks[0].attn.qkv.in_features
    assert (told.image.width, told.image.depth) == (first, len(model.blocks))
    tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    assert told.image.tokens == tokens


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-L-14-336", "ViT-bigG-14", "ViT-H-14-378"])
def test_a_clips_sizes_are_those_of_the_model_that_open_clip_builds(name):
    config = open_clip.get_model_config(name)
    with torch.device("meta"):
        model = open_clip.CLIP(config["embed_dim"], config["vision_cfg"], config["text_cfg"])
    true = sum(parameter.numel() for parameter in model.parameters())
    told = _shape("open_clip", name)
    assert told.parameters == pytest.approx(true, rel=0.01)
    assert told.image.tokens == len(model.visual.positional_embedding)
    blocks = model.transformer.resblocks
    assert (told.text.width, told.text.depth) == (model.transformer.width, len(blocks))


def test_towers_of_two_libraries_and_unknown_names():
    siglip = _shape("open_clip", "ViT-SO400M-14-SigLIP-384")
    assert siglip.parameters == pytest.approx(878e6, rel=0.03)  # by open_clip's own table
    assert (siglip.image.width, siglip.image.tokens) == (1152, 27**2)
    micro = _shape("open_clip", "micro_clip")
    assert (micro.image.width, micro.image.tokens, micro.text.width) == (96, 17, 64)
    new = _shape("open_clip", "ViT-Q-32-new")
    assert (new.image.width, new.image.depth, new.image.tokens) == (768, 12, 50)
    assert _shape("timm", "something_patch8_448").image.tokens == 56**2 + 1
    assert _shape("torchvision", "resnet18", image_size=32).image.width == 768


def test_sizes_follow_the_image_size_and_what_was_measured():
    vit = _shape("timm", "vit_base_patch16_224.orig_in21k")
    larger = _shape("timm", "vit_base_patch16_224.orig_in21k", image_size=384)
    assert larger.image.tokens == 577
    assert vit.training == pytest.approx(78, rel=0.05)
    assert 50_000 * vit.operations / resources.RATE / 3600 == pytest.approx(4.9, rel=0.05)


def test_no_library_is_imported_to_know_the_sizes():
    """Snakemake plans in every job of a cluster."""
    code = (
        "import sys\nfrom fedloom.plan.work import shape\n"
        "from fedloom.plan.settings import Backbone\n"
        "shape(Backbone('b', 'timm', {'name': 'vit_base_patch16_224'}))\n"
        "shape(Backbone('b', 'open_clip', {'name': 'ViT-B-16'}))\n"
        "print(sorted({'torch', 'timm', 'open_clip'} & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert done.stdout == b"[]\n", done.stderr


def test_clients_that_train_all_weights_get_memory_for_their_copies(ask):
    """A ViT-B/16 has 343 MB: the server, five uploads and one client that trains hold 13 copies."""
    options = {"images": 500, "training": {"batch_size": 1}}
    prompts = ask("train", **options).mem_mb
    whole = ask("train", method="fedavg", **options).mem_mb
    assert 13 * 343 - 500 <= whole - prompts <= 13 * 343 + 500
    kept = ask("train", method="singleset_full", **options).mem_mb
    assert kept - whole > 100 * 343, "each of 100 clients keeps its own"
    inside = ask("train", method="fedavg", training={"batch_size": 64}).mem_mb
    assert inside < ask("train", training={"batch_size": 64}).mem_mb, "one client at a time"


def test_training_before_every_evaluation_takes_its_time(ask):
    options = {"images": 2000, "rounds_per_job": 1, "training": {"epochs": 1, "batch_size": 8}}
    plain = ask("train", method="fedavg", **options).runtime
    assert ask("train", method="fedbabu", **options).runtime > 2 * plain


def test_a_cost_names_an_option(tmp_path):
    shutil.copytree(ROOT / "plugins/fedbabu", tmp_path / "fedbabu")
    toml = tmp_path / "fedbabu/method.toml"
    toml.write_text(toml.read_text().replace('"tuning_epochs"', '"tunning_epochs"'))
    line = "method.toml: cost: no option 'tunning_epochs'; did you mean 'tuning_epochs'"
    with pytest.raises(FedLoomError, match=line):
        manifest.discover(tmp_path)["fedbabu"]


def test_patches_are_read_by_row_from_the_file(tmp_path):
    """200 MB of them, of which three images are read."""
    file = tmp_path / "patches.safetensors"
    safetensors.torch.save_file({"patches": torch.arange(50e6).view(1000, 100, 500)}, file)
    before = psutil.Process().memory_info().rss
    patches = cached_patches(file, torch.device("cpu"))()
    rows = patches[torch.tensor([0, 500, 999])]
    assert psutil.Process().memory_info().rss - before < 60e6
    assert torch.equal(rows[1, 0], torch.arange(25e6, 25e6 + 500))


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (sklearn_digits, {}),
        (glyphs, {"classes": 3, "draws": 2}),
        (glyphs, {"classes": 2, "draws": 1, "styles": ["plain", "outline", "noisy"]}),
    ],
)
def test_a_source_that_draws_its_images_declares_how_many(source, settings):
    """What the schema says is what the source lists."""
    settings = {"test_fraction": 0.25, **settings}
    listed = source.read(settings)
    expected = len(listed.labels), len(listed.classes)
    assert work.contents(Dataset("unread", source.__name__.split(".")[-1], settings)) == expected
