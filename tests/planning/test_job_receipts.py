"""Receipts of jobs: planning compares what results were made from, without .snakemake."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.cli import main as snakemake

from default_config import default_config
from fedloom.common import receipts
from fedloom.common.files import read_table, write_table
from fedloom.hooks import manifest
from fedloom.jobs import (
    artefact_job,
    cache_job,
    choose_job,
    dataset_job,
    evaluate_job,
    partition_chart_job,
    table_job,
    train_job,
)
from fedloom.jobs import partition_job as partition
from fedloom.machine.install import ROOT
from fedloom.planning import job_receipts, paths
from fedloom.planning.load_plan import load_plan, resolve
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.rules.rule import LARGE_SUFFIXES
from fedloom.planning.run_labels import Run
from fedloom.planning.study_jobs import jobs_of_study

RUN = Run("letters", "two", "micro_vit", "mine", 0)
STATE = paths.path_for(paths.STATE, RUN, end="0001")
EVALUATION = paths.path_for(paths.EVALUATION, RUN)
TABLE = Path("results/tables/receipts/main.md")
PARTITION = paths.path_for(paths.PARTITION, RUN)
JOBS = {
    "artefact": artefact_job,
    "dataset": dataset_job,
    "partition": partition,
    "partition_chart": partition_chart_job,
    "cache": cache_job,
    "train": train_job,
    "choose": choose_job,
    "evaluate": evaluate_job,
    "table": table_job,
}


def _plan(clients=2, lr=0.01, figures=()):
    config = default_config()
    config["figures"]["nine"] = {"kind": "answers"}
    config["study"] |= {"name": "receipts", "rounds": 1, "clients_per_round": 2, "seeds": [0]}
    config["study"] |= {"report": {"last_evaluations": 1}, "tune": None}
    config["datasets"]["letters"] = {"source": "glyphs", "classes": 3, "draws": 1}
    config["partitions"]["two"] = {"scheme": "iid", "clients": clients}
    config["methods"] = {"mine": {"plugin": "mine", "training": {"lr": lr}}}
    chosen = {"datasets": ["letters"], "partitions": ["two"], "backbones": ["micro_vit"]}
    chosen |= {"methods": ["mine"], "tables": ["main"], "figures": [*figures]}
    return Plan(resolve(config | {"select": chosen}))


def _run(plan, rule, labels):
    """Run a job as its process does."""
    job = plan.job(rule, labels)
    started = job_receipts.begin_job(rule, job, plan.sources(rule, job))
    JOBS[rule].run_job(job, 1)
    job_receipts.end_job(started)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with the results of a study of one run, and its plugin."""
    folder = tmp_path_factory.mktemp("made")
    own = folder / "plugins/mine"
    shutil.copytree(ROOT / "plugins/methods/head_tuning", own)
    toml = own / "method.toml"
    toml.write_text(toml.read_text().replace('"head_tuning"', '"mine"'))
    with contextlib.chdir(folder):
        manifest.discover_methods.cache_clear()
        plan = _plan()
        for rule, by_file in jobs_of_study(plan).items():
            for labels in by_file.values():
                _run(plan, rule, labels)
    manifest.discover_methods.cache_clear()
    return folder


@pytest.fixture
def study(made, tmp_path, monkeypatch):
    """Return a copy of the folder `made`, which is made the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_copied_folder_is_what_its_study_asks_for(study):
    assert job_receipts.stale(_plan()) == {}


def test_a_setting_makes_the_jobs_stale_that_have_it(study):
    """A table that follows from a stale run needs no mark: Snakemake makes it again anyway."""
    assert job_receipts.stale(_plan(lr=0.5)) == {STATE: job_receipts.FROM_OTHER_SETTINGS}
    others = job_receipts.stale(_plan(clients=3))
    assert others == {PARTITION: job_receipts.FROM_OTHER_SETTINGS}


def test_a_picture_of_answers_makes_no_finished_run_stale(study):
    """A picture is made of the last state, so a study that has finished may ask for it later."""
    plan = _plan(figures=["nine"])
    assert job_receipts.stale(plan) == {}
    jobs = jobs_of_study(plan)
    (labels,) = jobs["artefact"].values()
    _run(plan, "artefact", labels)
    answers = paths.path_for(paths.ARTEFACT, RUN, artefact="answers")
    assert [*jobs["artefact"]] == [answers]
    assert read_table(answers).num_rows == 9 and job_receipts.stale(plan) == {}


def test_an_edited_plugin_makes_its_runs_stale(study):
    file = study / "plugins/mine/plugin.py"
    file.write_text(file.read_text() + "\n# edited\n")
    assert job_receipts.stale(_plan()) == {STATE: job_receipts.FROM_OTHER_SOURCES}


def test_a_result_made_from_other_data_is_stale(study):
    plan = _plan(clients=3)
    _run(plan, "partition", SimpleNamespace(**vars(RUN)))
    assert job_receipts.stale(plan)[STATE] == job_receipts.FROM_OTHER_DATA


def test_a_result_without_a_receipt_is_stale(study):
    paths.job_receipt(STATE).unlink()
    assert job_receipts.stale(_plan()) == {STATE: job_receipts.UNKNOWN}
    paths.job_receipt(EVALUATION).write_text("{")
    assert job_receipts.stale(_plan())[EVALUATION] == job_receipts.UNKNOWN


def test_a_job_that_is_killed_leaves_no_receipt(study):
    plan = _plan()
    job = plan.job("evaluate", SimpleNamespace(**vars(RUN)))
    job_receipts.begin_job("evaluate", job, plan.sources("evaluate", job))
    assert job_receipts.stale(plan) == {EVALUATION: job_receipts.UNKNOWN}


def test_a_table_made_from_a_changed_file_makes_that_file_stale(study):
    plan = _plan()
    write_table(EVALUATION, read_table(EVALUATION).replace_schema_metadata(None))
    _run(plan, "table", SimpleNamespace(study="receipts", label="main"))
    expected = {TABLE: job_receipts.FROM_OTHER_DATA, EVALUATION: job_receipts.CHANGED}
    assert job_receipts.stale(plan) == expected


def test_a_cache_that_was_deleted_makes_nothing_stale(study):
    """Caches are large, and people delete them once their runs are trained."""
    shutil.rmtree("results/features")
    assert job_receipts.stale(_plan()) == {}


@pytest.mark.parametrize(
    ("deleted", "changes"),
    [
        (["runs/**/rounds/*.safetensors"], {"lr": 0.5}),
        (["runs/**/rounds/*.safetensors", "partitions/**/*.parquet"], {"clients": 3}),
    ],
)
def test_what_was_made_from_a_missing_result_of_other_settings_is_stale(study, deleted, changes):
    """Large files may be missing from a folder of results that was copied."""
    for pattern in deleted:
        for file in Path("results").glob(pattern):
            file.unlink()
    assert job_receipts.stale(_plan()) == {}
    assert job_receipts.stale(_plan(**changes))[EVALUATION] == job_receipts.FROM_OTHER_DATA


def test_a_result_that_was_changed_is_stale(study):
    """The change is found even if no other result was made from the changed file."""
    write_table(EVALUATION, read_table(EVALUATION).replace_schema_metadata(None))
    assert job_receipts.stale(_plan()) == {EVALUATION: job_receipts.CHANGED}


def test_a_receipt_of_another_format_counts_as_none(study):
    receipts.write_sealed(paths.job_receipt(STATE), {"job": "x"})
    assert job_receipts.stale(_plan()) == {STATE: job_receipts.UNKNOWN}


def test_a_note_counts_the_results_by_reason():
    reasons = [
        job_receipts.FROM_OTHER_SETTINGS,
        job_receipts.UNKNOWN,
        job_receipts.FROM_OTHER_SETTINGS,
    ]
    counts = "2 made from other settings, 1 without a receipt"
    assert job_receipts.note(reasons, True).endswith(f"if they are needed: {counts}")
    assert job_receipts.note(reasons, False).endswith(f"are kept (--rerun-triggers): {counts}")


def test_the_files_of_jobs_are_those_of_the_rules(tmp_path, monkeypatch):
    """The jobs compared are those of the default study, which has a job of almost every rule."""
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    arguments = ["-n", "--quiet", "host", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        pytest.raises(SystemExit),
    ):
        snakemake(arguments)
    blocks = re.findall(
        r"^rule (\w+):\n(?:    input: ([^\n]*)\n)?    output: ([^\n]*)", printed.getvalue(), re.M
    )
    of_rules = {
        min(outputs.split(", ")): (rule, set(filter(None, inputs.split(", "))), outputs.split(", "))
        for rule, inputs, outputs in blocks
    }
    plan = load_plan()
    jobs = [(r, plan.job(r, w)) for r, found in jobs_of_study(plan).items() for w in found.values()]
    assert len(jobs) == len(of_rules) > 50
    for rule, job in jobs:
        outputs = list(map(str, RULES[rule].outputs(job)))
        known, inputs, printed_outputs = of_rules[min(outputs)]
        assert (known, sorted(printed_outputs)) == (rule, sorted(outputs))
        small = {name for name in inputs if not name.endswith((*LARGE_SUFFIXES, ".parquet"))}
        read = set(map(str, RULES[rule].inputs(job)))
        assert small <= read <= inputs, (rule, outputs[0])


STUDY = """\
study: {name: t, rounds: 1, rounds_per_job: 2, seeds: [0], clients_per_round: 2}
datasets: {letters: {source: glyphs, classes: 3, draws: 2}}
partitions: {four: {scheme: iid, clients: 4}}
methods: {fedvpt: {plugin: fedvpt}}
select:
  {datasets: [letters], partitions: [four], methods: [fedvpt], tables: [main], figures: []}
"""


def _run_study(folder, *arguments):
    """Run STUDY in a folder by the command; return the bytes of its results, by name."""
    folder.mkdir(exist_ok=True)
    (folder / "t.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "fedloom", "run", "t.yaml", "--cores", "1", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return _results(folder)


def _results(folder):
    """Return the bytes of the results in a folder, by name."""
    patterns = ("partitions/**/*.parquet", "runs/**/evaluation.parquet", "tables/t/main.*")
    files = [file for each in patterns for file in (folder / "results").glob(each)]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.slow
def test_a_study_in_a_copied_folder_is_that_of_its_settings(tmp_path):
    """A table of old settings once passed for one of new settings where .snakemake was missing."""
    changes = ("study.rounds=2", "methods.fedvpt.training.lr=0.5", "partitions.four.clients=3")
    words = [word for change in changes for word in ("--set", change)]
    first = tmp_path / "first"
    copied = tmp_path / "copied"
    old = _run_study(first)
    shutil.copytree(first, copied, ignore=shutil.ignore_patterns(".snakemake"))
    expected = _run_study(tmp_path / "anew", *words)
    assert len(expected) == 7
    assert _run_study(copied, *words) == expected
    assert all(old[name] != expected[name] for name in old if name.endswith(".parquet"))


@pytest.mark.slow
def test_what_follows_from_a_deleted_file_is_made_again(tmp_path):
    """Deleting a damaged partition, as its error advises, also trains other runs on it anew."""
    two = ("--set", "select.methods=[fedvpt, head_tuning]")
    results = _run_study(tmp_path, *two)
    (partition,) = [tmp_path / name for name in results if name.startswith("results/partitions/")]
    (state,) = (tmp_path / "results/runs").glob("**/head_tuning/**/rounds/0001.safetensors")
    before = state.stat().st_mtime_ns

    # a run of the other method is missing, as after an error that names the partition
    (missing,) = (tmp_path / "results/runs").glob("**/fedvpt")
    shutil.rmtree(missing)
    shutil.rmtree(tmp_path / "results/tables")
    partition.unlink()

    assert _run_study(tmp_path, *two) == results
    assert state.stat().st_mtime_ns > before


@pytest.mark.slow
def test_a_module_of_the_users_folder_takes_the_place_of_none(tmp_path):
    """PYTHONPATH may be unset, and must not get an empty entry, which names the user's folder."""
    (tmp_path / "t.yaml").write_text(STUDY)
    (tmp_path / "random.py").write_text("raise SystemExit('a module of the user')\n")
    code = "from fedloom.cli.main import main; main()"
    start = f"import sys; sys.path.insert(0, {str(ROOT / 'workflow')!r}); {code}"
    command = [sys.executable, "-P", "-c", start, "run", "t.yaml", "--cores", "1"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(_results(tmp_path)) == 7
