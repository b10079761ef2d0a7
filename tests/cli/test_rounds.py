"""`fedloom.rounds`: one run of a study, trained in this process round by round."""

import errno
import gc
import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import load_file

import fedloom
from fedloom.common import tensor_files
from fedloom.common.receipts import write_receipt
from fedloom.config.protocols import job_ends
from fedloom.federated import training_job
from fedloom.jobs import cache_job, choose_job, dataset_job, partition_job, train_job
from fedloom.machine.install import ROOT
from fedloom.planning import job_receipts, paths, provenance
from fedloom.planning.load_plan import load_plan
from fedloom.planning.run_labels import Run, Wildcards
from fedloom.planning.runs import trials_of_one_run
from fedloom.planning.study_jobs import jobs_before_training

TIMES = ["seconds", "processor_seconds"]
PERSONALISED = "ditto"


def _study(methods, **study):
    """Return a study of letters with two seeds, whose jobs train two rounds each."""
    study = {
        "name": "stepped",
        "rounds": 3,
        "rounds_per_job": 2,
        "seeds": [0, 1],
        "clients_per_round": 2,
        "evaluate_every": 2,
        "report": {"last_evaluations": 1},
        "training": {"lr": 0.1},
    } | study
    backbones = ["micro_vit"]
    if "trip" in methods:
        backbones = ["micro_clip"]
    return {
        "study": study,
        "datasets": {"letters": {"source": "glyphs", "classes": 4, "draws": 2}},
        "partitions": {"three": {"scheme": "iid", "clients": 4, "held_out": 0.25}},
        "select": {
            "datasets": ["letters"],
            "partitions": ["three"],
            "backbones": backbones,
            "methods": methods,
            "tables": ["main"],
            "figures": [],
        },
    }


def _run_job(plan, rule, labels):
    """Run a job as its process does, in the current folder."""
    job = plan.job(rule, labels)
    started = job_receipts.begin_job(rule, job, plan.sources(rule, job))
    import_module(f"fedloom.jobs.{rule}_job").run_job(job, 1)
    job_receipts.end_job(started)


def _run_workflow(study, method, seed):
    """Train a run of a study in the current folder by the workflow's jobs; return the run."""
    YAML().dump(study, Path("study.yaml"))
    plan = load_plan([Path("study.yaml")])
    (backbone,) = study["select"]["backbones"]
    run = Run("letters", "three", backbone, method, seed)
    for rule, by_file in jobs_before_training(plan, run).items():
        for labels in by_file.values():
            _run_job(plan, rule, labels)
    for end in job_ends(plan.study(run)):
        _run_job(plan, "train", Wildcards(**vars(run), end=paths.four_digits(end)))
    return run


def _assert_equals_jobs(training, run):
    """Require that rounds leave the states and rows of the run's jobs in the current folder."""
    trained = list(training)
    assert [done.number for done in trained] == [1, 2, 3]

    # the first job trains rounds 1 and 2, and the second one round 3
    for end, made in (("0002", trained[:2]), ("0003", trained[2:])):
        file = paths.path_for(paths.STATE, run, end=end)
        _, facts = tensor_files.load(file)
        tensor_files.save(Path("ours.safetensors"), made[-1].state.tree(), **facts)
        assert Path("ours.safetensors").read_bytes() == file.read_bytes()

        tables = {name: paths.path_for(paths.JOB_TABLES[name], run, end=end) for name in TABLES}
        for name, table in tables.items():
            ours = pd.concat([getattr(done, TABLES[name]) for done in made], ignore_index=True)
            theirs = pd.read_parquet(table)
            if name == "rounds":
                ours = ours.drop(columns=TIMES)
                theirs = theirs.drop(columns=TIMES)
            pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


# the tables of a job, and the attributes of a round with their rows
TABLES = {"evaluation": "evaluation", "rounds": "totals", "clients": "clients"}


@pytest.mark.parametrize("method", ["fedvpt", "pep_fedpt", PERSONALISED, "trip"])
def test_rounds_are_those_of_the_workflows_jobs(method, tmp_path, monkeypatch):
    """PEP-FedPT reads prototypes, TRIP features and patches; Ditto's clients keep a state."""
    monkeypatch.chdir(tmp_path)
    study = _study([method])
    run = _run_workflow(study, method, seed=1)
    _assert_equals_jobs(fedloom.rounds(study, seed=1), run)


def test_tuned_options_are_chosen_by_trials(tmp_path, monkeypatch, capsys):
    """The trials are trained before the first round, unless a finished study has chosen."""
    monkeypatch.chdir(tmp_path)
    tune = {"trials": 2, "rounds": 1, "values": {"training.lr": [0.003, 0.3]}}
    study = _study(["fedvpt"], tune=tune)
    run = _run_workflow(study, "fedvpt", seed=1)
    capsys.readouterr()

    anew = fedloom.rounds(study, seed=1)
    assert "note: fedvpt: first trains 2 trials for 2 rounds in all, " in capsys.readouterr().err
    _assert_equals_jobs(anew, run)

    reused = fedloom.rounds(study, seed=1, reuse=True)
    assert not capsys.readouterr().err
    assert reused.task.training == anew.task.training
    _assert_equals_jobs(reused, run)

    # a trial whose results are there is not trained again, and not counted
    shutil.rmtree("results/choices")
    _, trial = trials_of_one_run(load_plan([Path("study.yaml")]).settings, run)
    shutil.rmtree(paths.path_for(paths.EVALUATION, trial).parent)
    fedloom.rounds(study, seed=1, reuse=True)
    assert "first trains 1 trial for 1 round in all, " in capsys.readouterr().err


def test_trials_may_be_trained_in_a_thread(tmp_path, monkeypatch):
    """Only the main thread of Python may set what signals do."""
    monkeypatch.chdir(tmp_path)
    tune = {"trials": 2, "rounds": 1, "values": {"training.lr": [0.003, 0.3]}}
    study = _study(["fedvpt"], tune=tune)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(fedloom.rounds, study, seed=1).result()
        assert pool.submit(next, training).result().number == 1


def test_signals_are_left_to_the_process_while_trials_are_trained(tmp_path, monkeypatch):
    """Jobs remember signals until a round has ended; a process of the user's may not want that."""
    monkeypatch.chdir(tmp_path)
    numbers = [signal.SIGTERM, signal.SIGUSR1]
    before = [signal.getsignal(number) for number in numbers]
    found = []
    train_round = training_job.train_round

    def looking(*args):
        found.append([signal.getsignal(number) for number in numbers])
        return train_round(*args)

    monkeypatch.setattr(training_job, "train_round", looking)
    tune = {"trials": 2, "rounds": 1, "values": {"training.lr": [0.003, 0.3]}}
    fedloom.rounds(_study(["fedvpt"], tune=tune))
    assert found == [before, before]


@pytest.mark.parametrize("method", ["head_tuning", "fedvpt"])
def test_no_results_are_written_and_the_temporary_folder_goes(method, tmp_path, monkeypatch):
    """Head-Tuning reads cached features in training, and FedVPT images."""
    monkeypatch.chdir(tmp_path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    training = fedloom.rounds(_study([method]))
    assert len([*temporary.glob("fedloom-*")]) == 1
    assert len(training) == 3
    first = next(training)
    assert len(training) == 2
    assert first.number == 1 and first.accuracy is None and first.evaluation.empty

    # the folder stays as long as somebody has the images
    task = training.task
    del training
    gc.collect()
    assert len([*temporary.glob("fedloom-*")]) == 1
    everything = np.arange(len(task.data.labels))
    assert len(task.data.store.images(everything)) == len(everything)
    if method == "head_tuning":
        assert len(task.data.tokens(None)) == len(everything)
    del task, first
    gc.collect()
    assert not [*temporary.glob("fedloom-*")]
    assert [*tmp_path.iterdir()] == [temporary]


def test_a_round_says_what_it_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, second, _ = fedloom.rounds(_study(["head_tuning"]))
    rows = second.evaluation
    shown = rows[rows["participating"]]
    accuracy = (100 * shown["num_correct"] / shown["num_test"]).mean()
    assert second.accuracy == pytest.approx(accuracy)
    loss = second.clients["train_loss"].mean()
    assert second.loss == pytest.approx(loss) == second.totals["train_loss"].item()
    assert repr(second) == f"<round 2, loss {loss:.3f}, accuracy {accuracy:.1f} %>"
    assert second.state.server["params"].keys() == {"head"}


def test_only_results_that_the_study_asks_for_are_reused(tmp_path, monkeypatch):
    """A changed partition is made anew, and what does not depend on it is not."""
    monkeypatch.chdir(tmp_path)
    study = _study(["head_tuning"])
    _run_workflow(study, "head_tuning", seed=0)
    before = sorted(tmp_path.rglob("*"))

    made = list[str]()
    for module in (dataset_job, partition_job, cache_job, choose_job, train_job):
        rule = module.__name__.rpartition(".")[2]
        run_job = module.run_job

        def counted(job, threads, rule=rule, run_job=run_job):
            made.append(rule)
            run_job(job, threads)

        monkeypatch.setattr(module, "run_job", counted)

    fedloom.rounds(study, seed=0, reuse=True)
    assert made == []
    fedloom.rounds(study, seed=0)
    assert sorted(made) == ["cache_job", "dataset_job", "partition_job"]

    made.clear()
    study["partitions"]["three"]["clients"] = 3
    fedloom.rounds(study, seed=0, reuse=True)
    assert made == ["partition_job"]

    # what is made from a changed dataset is outdated too
    made.clear()
    study["datasets"]["letters"]["draws"] = 3
    fedloom.rounds(study, seed=0, reuse=True)
    assert sorted(made) == ["cache_job", "dataset_job", "partition_job"]
    assert sorted(tmp_path.rglob("*")) == before


def _replace_features():
    """Replace the features by zeros as a job does, and their receipts too."""
    file = paths.path_for(paths.FEATURES, dataset="letters", backbone="micro_vit")
    zeros = {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}
    tensor_files.save(file, zeros)
    write_receipt(file)
    return file


def _refuse_link(file, copy):
    """Stand in for a file system without hard links."""
    raise OSError(errno.EXDEV, "Invalid cross-device link", str(file))


@pytest.mark.parametrize("link", [os.link, _refuse_link])
def test_reused_results_are_those_of_the_call(link, tmp_path, monkeypatch):
    """Another run may replace features after the call; they are read when a round needs them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "link", link)
    study = _study(["head_tuning"])
    run = _run_workflow(study, "head_tuning", seed=0)
    training = fedloom.rounds(study, seed=0, reuse=True)
    _replace_features()
    _assert_equals_jobs(training, run)


def test_a_damaged_result_is_made_anew_and_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = _study(["head_tuning"])
    run = _run_workflow(study, "head_tuning", seed=0)
    file = paths.path_for(paths.FEATURES, dataset="letters", backbone="micro_vit")
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    _assert_equals_jobs(fedloom.rounds(study, seed=0, reuse=True), run)
    assert file.read_bytes() == damaged


def test_results_must_not_be_replaced_while_they_are_taken_over(tmp_path, monkeypatch):
    """A job of another study may replace the features when the call has already judged them."""
    monkeypatch.chdir(tmp_path)
    study = _study(["head_tuning"])
    _run_workflow(study, "head_tuning", seed=0)
    link = os.link

    replaced = list[Path]()

    def late(file, copy):
        # a job removes its receipt before it replaces its result
        if file.suffix == ".safetensors" and not replaced:
            replaced.append(_replace_features())
            paths.job_receipt(replaced[0]).unlink()
        link(file, copy)

    monkeypatch.setattr(os, "link", late)
    message = r"^results/features/letters/micro_vit\.safetensors: must not change while it is read"
    with pytest.raises(fedloom.FedLoomError, match=message):
        fedloom.rounds(study, seed=0, reuse=True)


def test_other_weights_of_a_hub_are_an_error_that_names_the_users_file(tmp_path, monkeypatch):
    """The digests in `results` are read below the temporary folder, which nobody can mend."""
    monkeypatch.chdir(tmp_path)
    settings = {"name": "a", "weights": "hub", "image_size": 8}
    backbone = SimpleNamespace(label="vit", library="timm", sha256=None, settings=settings)
    with paths.results_below(tmp_path / "below"):
        provenance.digest_of_weights("run", backbone, lambda: "first")
        with pytest.raises(
            fedloom.FedLoomError, match=r" not those in results/weights/vit\.json; "
        ):
            provenance.digest_of_weights("run", backbone, lambda: "second")


def test_the_labels_of_a_run_must_be_named_if_there_are_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = _study(["fedvpt", "head_tuning"])
    for labels, message in (
        ({}, "^method: must be named, got none; name one of fedvpt, head_tuning$"),
        ({"method": "fedvtp"}, "^method: the study's runs have no 'fedvtp'; did you mean 'fedvpt'"),
        ({"method": "fedvpt", "seed": 7}, "^seed: the study's runs have no '7'; known: 0, 1$"),
        ({"partition": "four"}, "^partition: the study's runs have no 'four'; known: three$"),
    ):
        with pytest.raises(fedloom.FedLoomError, match=message):
            fedloom.rounds(study, **labels)
    assert fedloom.rounds(study, method="head_tuning").run.seed == 0


def test_a_study_may_be_a_file_or_a_bundled_name_with_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {"select.methods": ["head_tuning"], "study.rounds": 1, "study.tune": None}
    bundled = fedloom.rounds("micro/micro_vit", changes, seed=3)
    YAML().dump(_study(["head_tuning"]), Path("mine.yaml"))
    own = fedloom.rounds("mine.yaml", {"training.lr": 0.25})
    assert bundled.run == Run("styles", "styles_5", "micro_vit", "head_tuning", 3)
    assert own.run == Run("letters", "three", "micro_vit", "head_tuning", 0)
    assert len(bundled) == 1 and own.task.training == replace(own.task.training, lr=0.25)


def test_a_plugin_is_read_again_at_each_call(tmp_path, monkeypatch):
    """In a notebook, a plugin is written or edited between two calls."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        folder = Path("plugins") / name
        shutil.copytree(ROOT / "plugins/methods/head_tuning", folder)
        manifest = folder / "method.toml"
        text = manifest.read_text()
        manifest.write_text(text.replace('"head_tuning"', f'"{name}"'))
        assert fedloom.rounds(_study([name])).run.method == name

        # an edit of the same plugin
        code = folder / "plugin.py"
        code.write_text(code.read_text() + "\n\nraise SystemExit('edited')\n")
        with pytest.raises(fedloom.FedLoomError, match="edited"):
            fedloom.rounds(_study([name]))


def test_after_a_round_that_failed_the_next_one_is_an_error(tmp_path, monkeypatch):
    """In a notebook, a cell that is run again would look like the end of a run."""
    monkeypatch.chdir(tmp_path)
    training = fedloom.rounds(_study(["head_tuning"]))
    assert next(training).number == 1
    failing = pytest.MonkeyPatch()
    failing.setattr(training_job, "train_round", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(training)
    failing.undo()
    for _ in range(2):
        with pytest.raises(fedloom.FedLoomError, match=r"seed0: round 2 of 3 was not finished, so"):
            next(training)
    assert len(training) == 2

    # a run that has ended has no error
    whole = fedloom.rounds(_study(["head_tuning"]))
    assert [done.number for done in whole] == [1, 2, 3]
    assert not [*whole]


@pytest.mark.parametrize("function", [fedloom.run, fedloom.rounds], ids=["run", "rounds"])
def test_arguments_of_another_type_are_refused_in_a_line(function, tmp_path, monkeypatch):
    """People who know `--set rounds=3` pass that text, or a list of such texts."""
    monkeypatch.chdir(tmp_path)
    for changes in ("rounds=3", ["rounds=3"]):
        message = f"^changes: must be a mapping, got {re.escape(repr(changes))}; write it as "
        with pytest.raises(fedloom.FedLoomError, match=message):
            function("micro/micro_vit", changes)
    with pytest.raises(fedloom.FedLoomError, match=r"^study: must be a file.* got list; "):
        function(["micro/micro_vit"])


def test_labels_to_keep_are_a_mapping(tmp_path):
    with pytest.raises(fedloom.FedLoomError, match=r"^only: must be a mapping, got 'seeds=0'; "):
        fedloom.run("micro/micro_vit", folder=tmp_path, only="seeds=0")


def test_an_error_about_a_mapping_names_no_file_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong_key = _study(["fedvpt"], rouds=3)
    with pytest.raises(fedloom.FedLoomError, match=r"^config key study\.rouds: [^/]*$"):
        fedloom.rounds(wrong_key)

    wrong_type = _study(["fedvpt"]) | {"inherit": "no"}
    with pytest.raises(fedloom.FedLoomError, match=r"^the study's mapping: inherit: must be true"):
        fedloom.rounds(wrong_type)

    # a file of the user's is still named
    YAML().dump(wrong_key, Path("mine.yaml"))
    with pytest.raises(fedloom.FedLoomError, match=r"study\.rouds: .*\(mine\.yaml, line \d+\)$"):
        fedloom.rounds("mine.yaml")


def test_a_mapping_includes_files_of_the_folder_in_which_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = _study(["head_tuning"])
    Path("shared").mkdir()
    YAML().dump({"datasets": study.pop("datasets")}, Path("shared/data.yaml"))
    study["include"] = [Path("shared/data.yaml")]
    assert fedloom.rounds(study).run.dataset == "letters"

    # `fedloom.run` writes the mapping below results; only the file's reader would miss the file
    monkeypatch.chdir("/")
    study["study"]["rouds"] = 3
    with pytest.raises(fedloom.FedLoomError, match=r"study\.rouds: unknown key"):
        fedloom.run(study, folder=tmp_path)
    with pytest.raises(fedloom.FedLoomError, match=r"include: must be a list of paths, got 'x'"):
        fedloom.rounds(study | {"include": "x"})
