"""Memory and time that jobs ask for, and caches that are read by row."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import safetensors.torch
import torch

from changed_task import with_training
from default_config import default_config
from fedloom.backbones.backbone import load_backbone
from fedloom.backbones.sizes import count
from fedloom.common.files import read_json
from fedloom.common.receipts import write_receipt
from fedloom.config.kinds import KINDS
from fedloom.config.settings import BackboneSettings
from fedloom.contract.tiny import tiny_task
from fedloom.data.sources import glyphs, sklearn_digits
from fedloom.federated import groups
from fedloom.federated.build_task import cached_patches
from fedloom.federated.round import initial_state
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.resources import backbone_sizes, estimates
from fedloom.planning.resources.backbone_sizes import sizes
from fedloom.planning.resources.estimates import estimate_job, workload
from refusals import refused

VIT = {"library": "timm", "name": "vit_base_patch16_224.orig_in21k", "weights": "hub"}
MICRO = {
    "library": "timm",
    "name": "micro_vit",
    "weights": "workflow/resources/micro_vit.safetensors",
}
CLIP = {"library": "open_clip", "name": "ViT-B-16-quickgelu", "weights": "openai"}
LABELS = {"dataset": "d", "partition": "p", "method": "m", "seed": "0", "end": "0020"}


def _count_here(command, **_):
    """Count a backbone's sizes in this process, which has imported torch, and not in a child."""
    *_, library, settings = command
    counted = json.dumps(count(library, json.loads(settings)))
    return SimpleNamespace(returncode=0, stdout=counted, stderr="")


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Return ask(rule, images, backbone, ...): a rule's request on a store of so many images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", _count_here)

    def make(
        rule,
        images=50_000,
        backbone=VIT,
        method="fedvpt",
        training=(),
        options=(),
        on_gpu=False,
        **study,
    ):
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
        values = {"batch_size": 64, "epochs": 1, **dict(training)}
        config["methods"]["m"] = {"plugin": method, "training": values, "options": dict(options)}
        chosen = {"datasets": ["d"], "partitions": ["p"], "backbones": ["b"], "methods": ["m"]}
        config["select"] |= chosen | {"figures": [], "tables": ["main"]}
        make.plan = plan = Plan(resolve(config))
        labels = SimpleNamespace(**LABELS, backbone="b", artefact="x")
        return plan.resources(rule, labels, on_gpu=on_gpu)

    return make


def test_features_of_50000_images_get_more_than_the_five_hours_that_they_take(ask):
    """A ViT-B/16 took 4.9 hours of one core for these features, while the limit was 4 hours."""
    asked = ask("cache")
    assert 2 * 4.9 * 60 < asked.runtime < 4 * 4.9 * 60
    assert asked.mem_mb < 8000
    assert ask("cache", images=500_000).runtime > 9 * asked.runtime
    assert ask("cache", images=500).runtime <= 30


def test_training_gets_the_memory_of_the_clients_that_train_at_once(ask):
    """A ViT-B/16 on a core trains one client at a time, which takes 96 MB an image."""
    whole = ask("train").mem_mb
    assert whole == pytest.approx(estimates.LIBRARIES_MB + 2 * 343 + 64 * 96, abs=500)
    assert ask("train", stacked=False).mem_mb == whole
    assert ask("train", clients_per_round=50).mem_mb == whole
    micro = ask("train", training={"micro_batch": 8}).mem_mb
    assert micro == pytest.approx(estimates.LIBRARIES_MB + 2 * 343 + 8 * 96, abs=500)
    assert ask("train", training={"batch_size": 128}).mem_mb - whole == pytest.approx(
        64 * 96, abs=500
    )
    assert ask("train", gradient_checkpointing=True).mem_mb < whole / 2


@pytest.mark.parametrize("rule", ["dataset", "train"])
def test_the_second_attempt_requests_twice_the_first(ask, rule):
    first = ask(rule, images=50_000_000)
    second = ask.plan.resources(rule, SimpleNamespace(**LABELS, backbone="b"), attempt=2)
    assert first.runtime >= estimates.MAX_TRAINING_MINUTES
    assert (second.mem_mb, second.runtime) == (2 * first.mem_mb, 2 * first.runtime)


@pytest.mark.parametrize("rule", ["train", "cache", "artefact"])
def test_with_a_gpu_activations_are_not_requested_of_the_host(ask, rule):
    core = ask(rule)
    gpu = ask(rule, on_gpu=True)
    host = gpu.mem_mb - estimates.LIBRARIES_MB - estimates.CUDA_MB
    assert host == pytest.approx(2 * 343 + (rule == "artefact") * 1000, abs=500)
    assert gpu.runtime == core.runtime


@pytest.mark.parametrize(
    ("visible", "told", "unless_told"), [("", 1, 0), ("0,1", 0, 1)], ids=["no GPU", "two GPUs"]
)
def test_a_rule_may_be_told_to_take_a_gpu_or_none(tmp_path, visible, told, unless_told):
    """A rule gets a GPU by default where the machine has one."""
    study = "study: {name: one, rounds: 1, report: {last_evaluations: 1}}\n"
    (tmp_path / "one.yaml").write_text(study)
    command = [sys.executable, "-m", "snakemake", "-n", "--quiet", "host", "-s", ROOT / "Snakefile"]
    command += ["--configfile", tmp_path / "one.yaml", "--directory", tmp_path]
    command += ["--set-resources", f"train:gpu={told}"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = done.stdout + done.stderr
    for rule, gpu in (("train", told), ("cache", unless_told)):
        asked = re.search(rf"^rule {rule}:.*?resources: (.*?)$", said, re.M | re.S)
        assert ("gpu=1" in asked[1]) == (gpu == 1)


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("name", ["fedvpt", "fedavg", "head_tuning"])
def test_planning_and_the_runtime_train_as_many_clients_at_once(ask, tmp_path, name, batch):
    training = {"batch_size": batch}
    ask("train", backbone=MICRO, method=name, training=training)
    labels = SimpleNamespace(**LABELS, backbone="b")
    planned = workload(ask.plan.settings, labels, "m").clients_per_batch
    method = manifest.find_method(name)
    task = tiny_task(method, tmp_path, backbone=load_backbone("timm", MICRO))
    task = with_training(task, batch_size=batch)
    hooks = loader.load_hooks(method)
    received = initial_state(task, hooks).server["params"]
    assert planned == min(5, groups.clients_trained_at_once(task, received))


@pytest.mark.parametrize(
    ("name", "prompts", "trains"),
    [
        ("fedvpt", 1, False),
        ("pep_fedpt", 1 + 1, False),  # the shared and a mixed prompt
        ("sgpt", 1 + 1, False),  # the shared and the group's prompt
        ("centralised", 10, False),
        ("fedbabu", 0, True),  # with the option train: prompts it has ten
        ("head_tuning", 0, False),
    ],
)
def test_planning_and_the_runtime_count_the_same_prompts_and_weights(
    ask, tmp_path, name, prompts, trains
):
    ask("train", backbone=MICRO, method=name)
    labels = SimpleNamespace(**LABELS, backbone="b")
    planned = workload(ask.plan.settings, labels, "m").step
    task = tiny_task(manifest.find_method(name), tmp_path, backbone=load_backbone("timm", MICRO))
    for step in (planned, groups.client_step(task)):
        assert step.prompt_floats == prompts * task.backbone.width
        assert step.trains_weights == trains


@pytest.mark.parametrize(
    ("name", "options", "images", "texts"),
    [("promptfl", {}, 0, 1), ("fedmgp", {"groups": 3}, 3, 3), ("cocoop", {}, 0, 8)],
)
def test_planning_counts_as_many_images_and_texts_as_the_runtime(
    ask, tmp_path, name, options, images, texts
):
    backbone = default_config()["backbones"]["micro_clip"]
    ask("train", backbone=backbone, method=name, options=options, training={"batch_size": 8})
    planned = workload(ask.plan.settings, SimpleNamespace(**LABELS, backbone="b"), "m")
    task = tiny_task(manifest.find_method(name), tmp_path, **options)
    task = with_training(task, batch_size=8)
    one = planned.data.classes * backbone_sizes.NAME_TOKENS
    size = planned.size
    floats = task.backbone.text_floats(task.data.classes)
    for step, of_one in (
        (planned.step, one * size.text_width * size.text_depth),
        (groups.client_step(task), floats),
    ):
        assert (step.images, step.text_floats) == (8 * images, texts * of_one)
    of_texts = (50 if name == "cocoop" else texts) * 2 * one * size.token_operations
    assert planned.encoding(50) == 50 * images * size.operations + of_texts


def test_the_job_of_test_sets_has_time_for_all_images_on_every_client():
    config = default_config()
    config["partitions"]["p"] = {"scheme": "iid", "clients": 10, "transfer_to": ["digits"]}
    chosen = {"datasets": ["glyphs"], "partitions": ["p"], "backbones": ["micro_clip"]}
    config["select"] |= chosen | {"methods": ["fedmgp"], "tables": ["main"], "figures": []}
    settings = resolve(config)
    labels = {"dataset": "glyphs", "partition": "p", "backbone": "micro_clip", "seed": "0"}
    labels = SimpleNamespace(**labels, method="fedmgp", artefact=manifest.TEST_SETS)
    run = workload(settings, labels, "fedmgp")
    glyphs, digits = (estimates.contents(settings.datasets[k]).test for k in ("glyphs", "digits"))
    images = glyphs + 10 * (glyphs + digits)
    found = estimate_job(settings, "artefact", labels).operations
    assert found == pytest.approx(run.encoding(images), rel=0.01)


def test_a_clip_method_does_not_ask_for_the_patches_of_all_images(ask):
    """FedOTP's jobs once held all 10 GB of patches, which are now read row by row."""
    small, large = (ask("train", images=n, backbone=CLIP, method="fedotp") for n in (5000, 500_000))
    assert small.mem_mb == large.mem_mb
    assert small.runtime < large.runtime
    assert ask("train", backbone=CLIP, method="promptfl").mem_mb <= small.mem_mb


def test_time_follows_rounds_and_clients_up_to_what_a_job_may_take(ask):
    one = ask("train", images=2000, rounds_per_job=1).runtime
    assert one < ask("train", images=2000, evaluate_every=20).runtime
    assert ask("train", images=2000, evaluate_every=20).runtime < ask("train", images=2000).runtime
    assert ask("train").runtime == estimates.MAX_TRAINING_MINUTES, (
        "it resumes when it is tried again"
    )


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
    assert estimates.contents(glyphs)[:2] == (100 * 12 * 4, 100)
    few = replace(glyphs, settings=glyphs.settings | {"max_train": 300, "max_test": 50})
    assert estimates.contents(few) == (350, 100, 300, 50)


def _sizes(library, name, **settings):
    return sizes(BackboneSettings("b", library, {"name": name, **settings}))


@pytest.mark.parametrize(
    ("library", "name", "parameters", "operations"),
    [  # parameters in millions, operations in billions (2 a product), by the libraries' tables
        ("timm", "vit_base_patch16_224.orig_in21k", 85.80, 2 * 17.58),
        ("timm", "vit_small_patch16_224", 21.67, 2 * 4.61),
        ("torchvision", "resnet20", 0.27, 2 * 0.041),
        ("torchvision", "resnet50", 23.51, 2 * 4.09),
        ("open_clip", "ViT-B-16-quickgelu", 149.62, 2 * 17.58),
        ("open_clip", "RN50", 102.01, 2 * 6.12),
    ],
)
def test_sizes_are_those_of_the_libraries_tables(library, name, parameters, operations):
    counted = count(library, {"name": name})
    assert counted["parameters"] / 1e6 == pytest.approx(parameters, rel=0.01)
    assert counted["operations"] / 1e9 == pytest.approx(operations, rel=0.05)


@pytest.mark.parametrize("name", ["micro_vit", "resnet8_wide", "micro_clip"])
def test_sizes_that_ship_are_those_that_are_counted(name):
    shipped = read_json(backbone_sizes.SHIPPED)
    (key,) = (key for key in shipped if f'"{name}"' in key)
    assert count(key.split()[0], {"name": name}) == shipped[key]


def test_sizes_are_counted_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    larger = _sizes("timm", "vit_tiny_patch16_224", image_size=384)
    assert larger.tokens == 577
    backbone_sizes._sizes.cache_clear()
    monkeypatch.setattr(subprocess, "run", None)
    assert _sizes("timm", "vit_tiny_patch16_224", image_size=384) == larger


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('no such model')", ["no such model"]),
        ("import sys; sys.exit(3)", ["status 3"]),  # a killed process prints nothing
    ],
)
def test_a_backbone_that_cannot_be_counted_is_named(tmp_path, monkeypatch, script, words):
    monkeypatch.chdir(tmp_path)
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda words, **more: run([words[0], "-c", script], **more)
    )
    with refused("vit_enormous", *words):
        _sizes("timm", "vit_enormous")


def test_a_model_that_its_library_does_not_have_is_named():
    with refused("vit_enormous", "timm"):
        count("timm", {"name": "vit_enormous"})


def test_clients_that_train_all_weights_get_memory_for_their_copies(ask):
    """A ViT-B/16 has 343 MB: five uploads and one client that trains hold 10 copies."""
    options = {"images": 500, "training": {"batch_size": 1}}
    prompts = ask("train", **options).mem_mb
    whole = ask("train", method="fedavg", **options).mem_mb
    assert whole - prompts == pytest.approx(9 * 343, abs=500), "without copies, two are loaded"
    kept = ask("train", method="singleset_full", **options).mem_mb
    assert kept - whole > 100 * 343, "each of 100 clients keeps its own"


def test_training_before_every_evaluation_takes_its_time(ask):
    options = {"images": 2000, "rounds_per_job": 1, "training": {"epochs": 1, "batch_size": 8}}
    plain = ask("train", method="fedavg", **options).runtime
    assert ask("train", method="fedbabu", **options).runtime > 2 * plain


@pytest.mark.parametrize("wrong", ["tunning_epochs", "prommpts"])
def test_a_cost_names_an_option(tmp_path, wrong):
    shutil.copytree(ROOT / "plugins/methods/fedbabu", tmp_path / "fedbabu")
    toml = tmp_path / "fedbabu/method.toml"
    right = re.sub(r"(.)\1", r"\1", wrong)
    toml.write_text(toml.read_text().replace(f'"{right}"', f'"{wrong}"'))
    with refused("method.toml", "cost", repr(wrong), repr(right)):
        manifest.discover_methods(tmp_path)["fedbabu"]


def test_patches_are_read_by_row_from_the_file(tmp_path):
    """The file holds 200 MB of patches, of which three images are read."""
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
    """The number that follows from a source's keys is the number of images that it lists."""
    keys = KINDS["datasets"][source.__name__.split(".")[-1]](**settings)
    listed = source.read(keys.plain)
    assert keys.expected()[:2] == (len(listed.labels), len(listed.classes))
