"""Edits of a plugin or of weights between the jobs of a run never give a mixed result."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt, write_receipt
from fedloom.jobs import cache_job, dataset_job, evaluate_job, partition_job, train_job
from fedloom.machine.install import ROOT
from fedloom.planning import paths, provenance
from fedloom.planning.job_specs import TrainJob, from_json, to_json
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run

RUN = Run("letters", "two", "vit", "mine", 0)
FOLDER = "letters/two/vit/mine/seed0"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with weights, a dataset of 36 letters, its partition and its features."""
    folder = tmp_path_factory.mktemp("made")
    here = Path.cwd()
    os.chdir(folder)
    shutil.copy(ROOT / "workflow/resources/micro_vit.safetensors", "weights.safetensors")
    plan = _plan(folder, "head_tuning")
    labels = SimpleNamespace(**vars(RUN), cache="features")
    dataset_job.run_job(plan.job("dataset", labels), 1)
    partition_job.run_job(plan.job("partition", labels), 1)
    cache_job.run_job(plan.job("cache", labels), 1)
    os.chdir(here)
    return folder


@pytest.fixture
def study(made, tmp_path, monkeypatch):
    """Return a copy of `made` with a separate plugin, which is made the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    own = tmp_path / "plugins/mine"
    shutil.copytree(ROOT / "plugins/methods/head_tuning", own)
    toml = own / "method.toml"
    toml.write_text(toml.read_text().replace('"head_tuning"', '"mine"'))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _plan(folder, plugin="mine", **backbone):
    config = default_config()
    config["study"] |= {"rounds": 2, "rounds_per_job": 1, "clients_per_round": 2, "seeds": [0]}
    config["study"]["report"] = {"last_evaluations": 1}
    config["datasets"]["letters"] = {"source": "glyphs", "classes": 3, "draws": 1}
    config["partitions"]["two"] = {"scheme": "iid", "clients": 2}
    weights = str(folder / "weights.safetensors")
    config["backbones"] = {"vit": {"library": "timm", "name": "micro_vit", "weights": weights}}
    config["backbones"]["vit"] |= backbone
    config["methods"] = {"mine": {"plugin": plugin}}
    chosen = {"datasets": ["letters"], "partitions": ["two"], "backbones": ["vit"]}
    chosen |= {"methods": ["mine"], "tables": ["main"], "figures": []}
    return Plan(resolve(config | {"select": chosen}))


def _job(plan, end):
    return plan.job("train", SimpleNamespace(**vars(RUN), end=f"{end:04}"))


def _receipt(end):
    return read_receipt(paths.path_for(paths.STATE, RUN, end=paths.four_digits(end)))


def _edit(folder, text="\n# edited\n"):
    file = folder / "plugins/mine/plugin.py"
    file.write_text(file.read_text() + text)


def test_a_receipt_holds_what_the_job_was_made_by(study):
    plan = _plan(study)
    job = _job(plan, 1)
    train_job.run_job(job, 1)
    facts = _receipt(1)
    assert facts["sources"] == job.sources
    assert facts["weights"] == plan.settings.backbones["vit"].sha256
    assert facts["settings"] == provenance.digest_of_settings(plan.run_spec(RUN))


def test_evaluations_hold_the_digests_of_settings_and_data(study):
    def made():
        for number in (1, 2):
            train_job.run_job(from_json(to_json(_job(plan, number)), TrainJob), 1)
        evaluate_job.run_job(plan.job("evaluate", SimpleNamespace(**vars(RUN))), 1)
        return provenance.facts_of_run(RUN)

    plan = _plan(study)
    before = made()
    assert before["settings"] == provenance.digest_of_settings(plan.run_spec(RUN))
    write_receipt(paths.path_for(paths.PARTITION, RUN), clients=2)  # of another partition
    after = made()
    assert after["settings"] == before["settings"] and after["data"] != before["data"]


def test_jobs_of_different_settings_are_not_chained(study):
    train_job.run_job(_job(_plan(study), 1), 1)
    job = _job(_plan(study), 2)
    other = replace(job, spec=replace(job.spec, clients_per_round=1))
    with pytest.raises(FedLoomError, match=rf"{FOLDER}: .*different settings; delete"):
        train_job.run_job(other, 1)


def test_jobs_of_different_sources_are_not_chained(study):
    """A job on a cluster plans anew, so its sources are the edited files that it finds."""
    train_job.run_job(_job(_plan(study), 1), 1)
    _edit(study)
    with pytest.raises(FedLoomError, match=rf"{FOLDER}: .*sources; delete results/runs/{FOLDER}"):
        train_job.run_job(_job(_plan(study), 2), 1)
    for end in (1, 2):
        train_job.run_job(_job(_plan(study), end), 1)


def test_weights_that_change_under_a_run_stop_it(study):
    plan = _plan(study)
    weights = study / "weights.safetensors"
    train_job.run_job(_job(plan, 1), 1)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(FedLoomError, match=rf"{FOLDER}: .*weights; delete"):
        train_job.run_job(_job(_plan(study), 2), 1)


def test_a_checkpoint_is_not_resumed_across_an_edit(study, caplog):
    file = study / "plugins/mine/plugin.py"
    line = "    if task.round == 2 and Path('die').exists():\n        raise KeyboardInterrupt\n"
    head, body = file.read_text().split("-> list[Update]:\n")
    file.write_text(f"from pathlib import Path\n{head}-> list[Update]:\n{line}{body}")
    plan = _plan(study)
    config = plan.settings.study
    object.__setattr__(config, "rounds_per_job", 2)
    Path("die").touch()
    with pytest.raises(KeyboardInterrupt):
        train_job.run_job(_job(plan, 2), 1)
    Path("die").unlink()
    _edit(study)
    again = _plan(study)
    object.__setattr__(again.settings.study, "rounds_per_job", 2)
    caplog.set_level("INFO")
    train_job.run_job(_job(again, 2), 1)
    assert "starting after round 0" in caplog.text


@pytest.fixture
def hub(monkeypatch):
    """Return hub(seed), which lets timm's hub hold weights of micro_vit drawn from the seed."""
    create = timm.create_model

    def holds(seed):
        def download(name, pretrained=False, **keywords):
            assert pretrained
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return create(name, **keywords)

        monkeypatch.setattr(timm, "create_model", download)

    return holds


def test_changed_weights_of_a_hub_are_refused_by_their_digest(study, hub):
    hub(0)
    plan = _plan(study, weights="hub")
    labels = SimpleNamespace(**vars(RUN), cache="features")
    cache_job.run_job(plan.job("cache", labels), 1)
    train_job.run_job(_job(plan, 1), 1)
    known = json.loads((study / "results/weights/vit.json").read_text())
    assert _receipt(1)["weights"] == known["sha256"]
    assert (
        read_receipt(paths.path_for(paths.CACHE, RUN, cache="features"))["weights"]
        == known["sha256"]
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = timm.models.create_model("micro_vit", num_classes=0).state_dict()
    expected = hashlib.sha256()
    for name in sorted(state):
        value = state[name].numpy()
        expected.update(f"{name} torch.{value.dtype} {[*value.shape]}".encode() + value.tobytes())
    assert known["sha256"] == expected.hexdigest()
    hub(1)
    with pytest.raises(FedLoomError, match=rf"{FOLDER}: .*results/weights/vit.json"):
        train_job.run_job(_job(plan, 2), 1)
    with pytest.raises(FedLoomError, match=r"features/letters/vit.safetensors: .*weights/vit.json"):
        cache_job.run_job(plan.job("cache", labels), 1)
    larger = _plan(study, weights="hub", image_size=40)  # no digest is known yet
    train_job.run_job(_job(larger, 1), 1)
