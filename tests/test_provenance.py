"""A plugin edited, or weights replaced, while a run trains: never a mixed result."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch

from default_config import default_config
from fedloom.commands import cli
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import digest, read_receipt
from fedloom.config.resolve import resolve
from fedloom.federated import training_job
from fedloom.federated.round import train_round
from fedloom.hooks import manifest
from fedloom.stages import cache, dataset, evaluate, partition, train
from fedloom.study import paths, verify_sources
from fedloom.study.jobs import to_json
from fedloom.study.plan import Plan
from fedloom.study.runs import Run

RUN = Run("letters", "two", "vit", "mine", 0)
FOLDER = "letters/two/vit/mine/seed0"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with weights, a dataset of 36 letters, its partition and its features."""
    folder = tmp_path_factory.mktemp("made")
    here = Path.cwd()
    os.chdir(folder)
    shutil.copy(ROOT / "workflow/resources/micro_vit.safetensors", "weights.safetensors")
    plan = _plan(folder, "head_tuning")
    labels = SimpleNamespace(**vars(RUN), cache="features")
    dataset.run(plan.dataset_job(labels), 1)
    partition.run(plan.partition_job(labels), 1)
    cache.run(plan.cache_job(labels), 1)
    os.chdir(here)
    return folder


@pytest.fixture
def study(made, tmp_path, monkeypatch):
    """The same with a plugin of its own, in the working directory of two jobs of one round."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    own = tmp_path / "plugins/mine"
    shutil.copytree(ROOT / "plugins/head_tuning", own)
    toml = own / "method.toml"
    toml.write_text(toml.read_text().replace('"head_tuning"', '"mine"'))
    plugins = manifest.discover(tmp_path / "plugins")
    monkeypatch.setattr(manifest, "discover", lambda: plugins)
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
    return plan.train_job(SimpleNamespace(**vars(RUN), end=f"{end:04}"))


def _receipt(end):
    return read_receipt(paths.at(paths.STATE, RUN, end=paths.end(end)))


def _edit(folder, text="\n# edited\n"):
    file = folder / "plugins/mine/plugin.py"
    file.write_text(file.read_text() + text)


def test_receipts_say_what_a_run_was_made_by(study):
    plan = _plan(study)
    for end in (1, 2):
        train.run(_job(plan, end), 1)
    facts = _receipt(2)
    assert "plugins/mine/plugin.py" in facts["sources"]
    assert any(name.endswith("federated/local_training.py") for name in facts["sources"])
    assert len(facts["weights"]) == 64
    assert {k: _receipt(1)[k] for k in ("sources", "weights")} == {
        k: facts[k] for k in ("sources", "weights")
    }
    evaluate.run(plan.evaluate_job(SimpleNamespace(**vars(RUN))), 1)
    assert paths.at(paths.EVALUATION, RUN).is_file()


def test_an_edit_between_two_jobs_stops_the_second(study):
    plan = _plan(study)
    train.run(_job(plan, 1), 1)
    _edit(study)
    expected = rf"{FOLDER}: its sources were edited .*last: plugins/mine/plugin.py.*; run again"
    with pytest.raises(FedLoomError, match=expected) as error:
        train.run(_job(plan, 2), 1)
    assert "\n" not in str(error.value)
    assert not paths.at(paths.STATE, RUN, end="0002").exists()
    # the next start plans with another parameter, so that Snakemake trains the first job anew
    again = _plan(study)
    assert _job(again, 1).sources != _job(plan, 1).sources
    for end in (1, 2):
        train.run(_job(again, end), 1)


def test_an_edit_during_a_job_leaves_what_it_loaded_in_its_receipt(study, monkeypatch):
    plan, before = _plan(study), (study / "plugins/mine/plugin.py").read_bytes()

    def edited(*args):
        _edit(study)
        return train_round(*args)

    monkeypatch.setattr(training_job, "train_round", edited)
    train.run(_job(plan, 1), 1)
    monkeypatch.setattr(training_job, "train_round", train_round)
    after = (study / "plugins/mine/plugin.py").read_bytes()
    assert after != before
    recorded = _receipt(1)["sources"]
    (study / "plugins/mine/plugin.py").write_bytes(before)
    assert _job(_plan(study), 1).sources == _job(plan, 1).sources
    assert recorded == _receipt(1)["sources"]
    train.run(_job(plan, 2), 1)  # undone in time: the run is of one piece


def test_what_is_imported_later_is_what_was_there_at_the_start(study, monkeypatch):
    """A plugin imports a module inside a hook, which is edited before that hook runs."""
    file, late = study / "plugins/mine/plugin.py", study / "plugins/mine/late.py"
    late.write_text("FACTOR = 1.0\n")
    text = file.read_text()
    body = "def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:\n"
    assert body in text
    more = "    from .late import FACTOR\n\n    assert FACTOR == 1.0, FACTOR\n"
    file.write_text(text.replace(body, body + more))
    plan = _plan(study)

    def edited(*args):
        late.write_text("FACTOR = 2.0\n")
        return train_round(*args)

    monkeypatch.setattr(training_job, "train_round", edited)
    before = plan.run_sources("train", SimpleNamespace(**vars(RUN)))
    job = _job(plan, 1)
    train.run(job, 1)
    assert _receipt(1)["sources"].keys() == set(before)
    assert digest(_receipt(1)["sources"]) == job.sources


@pytest.mark.parametrize("stage", ["dataset", "partition", "cache", "prototypes", "evaluate"])
def test_a_job_that_trains_nothing_refuses_code_that_was_not_planned(study, stage):
    plan, labels = _plan(study), SimpleNamespace(**vars(RUN), cache="features")
    job = getattr(plan, f"{stage}_job")(labels)
    sources = getattr(plan, f"{stage}_sources", lambda _: plan.stage_sources(stage))(labels)
    verify_sources.load(stage, job, plan.digest(sources))
    line = rf"^rule {stage}: its sources were edited .*; run again, and it is made anew$"
    with pytest.raises(FedLoomError, match=line):
        verify_sources.load(stage, job, "0" * 64)
    words = [stage, "--job", to_json(job), "--sources", "0" * 64]
    with pytest.raises(FedLoomError, match=line):
        cli.stage(cli.parser().parse_args(words))


def test_an_edit_while_a_job_loads_its_plugins_stops_it(study, monkeypatch):
    """What was loaded is then unknown."""
    plan, prepare = _plan(study), train.prepare

    def slow(*args):
        loaded = prepare(*args)
        _edit(study)
        return loaded

    monkeypatch.setattr(train, "prepare", slow)
    with pytest.raises(FedLoomError, match=rf"{FOLDER}: its sources were edited"):
        train.run(_job(plan, 1), 1)
    assert not paths.at(paths.STATE, RUN, end="0001").exists()


def test_a_job_does_not_go_on_from_rounds_of_other_sources(study):
    """On a cluster a job plans by itself: what it was told is what is there."""
    train.run(_job(_plan(study), 1), 1)
    _edit(study)
    with pytest.raises(FedLoomError) as error:
        train.run(_job(_plan(study), 2), 1)
    assert str(error.value) == (
        f"{FOLDER}: the rounds up to 1 and those up to 2 were trained with a different "
        f"plugins/mine/plugin.py; delete results/runs/{FOLDER}/rounds and run again"
    )


def test_jobs_that_disagree_are_not_joined(study):
    plan = _plan(study)
    for end in (1, 2):
        train.run(_job(plan, end), 1)
    kept = study / "kept"
    shutil.copytree(study / "results/runs", kept)
    shutil.rmtree(study / "results/runs")
    _edit(study)
    plan = _plan(study)
    for end in (1, 2):
        train.run(_job(plan, end), 1)
    for file in (kept / FOLDER / "rounds").glob("0001*"):
        shutil.copy(file, study / "results/runs" / FOLDER / "rounds")
    expected = (
        rf"{FOLDER}: the rounds up to 1 and the rounds up to 2 were .* plugins/mine/plugin.py"
    )
    with pytest.raises(FedLoomError, match=expected):
        evaluate.run(plan.evaluate_job(SimpleNamespace(**vars(RUN))), 1)
    assert not paths.at(paths.EVALUATION, RUN).exists()


def test_weights_that_change_under_a_run_stop_it(study):
    plan, weights = _plan(study), study / "weights.safetensors"
    train.run(_job(plan, 1), 1)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(FedLoomError, match=rf"{FOLDER}: .*weights.safetensors was replaced after"):
        train.run(_job(plan, 2), 1)
    with pytest.raises(FedLoomError, match=r"features/letters/vit.*weights.safetensors was repl"):
        cache.run(plan.cache_job(SimpleNamespace(**vars(RUN), cache="features")), 1)
    with pytest.raises(FedLoomError, match=r"different weights of the backbone; delete"):
        train.run(_job(_plan(study), 2), 1)


def test_a_checkpoint_is_not_resumed_across_an_edit(study, monkeypatch, caplog):
    def dies(task, *rest):
        if task.round == 2:
            raise KeyboardInterrupt
        return train_round(task, *rest)

    plan = _plan(study)
    config = plan.settings.study
    object.__setattr__(config, "rounds_per_job", 2)
    monkeypatch.setattr(training_job, "train_round", dies)
    with pytest.raises(KeyboardInterrupt):
        train.run(_job(plan, 2), 1)
    monkeypatch.setattr(training_job, "train_round", train_round)
    _edit(study)
    again = _plan(study)
    object.__setattr__(again.settings.study, "rounds_per_job", 2)
    caplog.set_level("INFO")
    train.run(_job(again, 2), 1)
    assert "was made by other code, settings or data; starting after round 0" in caplog.text


@pytest.fixture
def hub(monkeypatch):
    """hub(seed): what timm's hub has for micro_vit."""
    create = timm.create_model

    def holds(seed):
        def download(name, pretrained=False, **keywords):
            assert pretrained
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return create(name, **keywords)

        monkeypatch.setattr(timm, "create_model", download)

    return holds


def test_a_hubs_weights_are_known_by_what_was_loaded(study, hub):
    hub(0)
    plan = _plan(study, weights="hub")
    labels = SimpleNamespace(**vars(RUN), cache="features")
    cache.run(plan.cache_job(labels), 1)
    train.run(_job(plan, 1), 1)
    known = json.loads((study / "results/weights/vit.json").read_text())
    assert _receipt(1)["weights"] == known["sha256"]
    assert read_receipt(paths.at(paths.CACHE, RUN, cache="features"))["weights"] == known["sha256"]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = timm.models.create_model("micro_vit", num_classes=0).state_dict()
    expected = hashlib.sha256()
    for name in sorted(state):
        value = state[name].numpy()
        expected.update(f"{name} torch.{value.dtype} {[*value.shape]}".encode() + value.tobytes())
    assert known["sha256"] == expected.hexdigest()


def test_a_hubs_weights_that_change_are_refused_in_training_and_in_caches(study, hub):
    hub(0)
    plan = _plan(study, weights="hub")
    labels = SimpleNamespace(**vars(RUN), cache="features")
    cache.run(plan.cache_job(labels), 1)
    train.run(_job(plan, 1), 1)
    hub(1)
    line = (
        r"the hub's weights of backbones.vit are not those in results/weights/vit.json, of which "
        "earlier results are; delete that file and the results of this backbone, and run again$"
    )
    with pytest.raises(FedLoomError, match=rf"^{FOLDER}: {line}"):
        train.run(_job(plan, 2), 1)
    with pytest.raises(FedLoomError, match=rf"^results/features/letters/vit.safetensors: {line}"):
        cache.run(plan.cache_job(labels), 1)
    larger = _plan(study, weights="hub", image_size=40)  # of which nothing is known yet
    train.run(_job(larger, 1), 1)
