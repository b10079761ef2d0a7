"""fedloom.results, scan, export and run: a study's evaluations as data, and a study from Python."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

import fedloom
from command_line import invoked
from default_config import default_config
from fedloom.common.files import read_metadata, write_table
from fedloom.common.run_tables import EVALUATION_SCHEMA
from fedloom.config.narrowing import narrow, read_narrowing
from fedloom.machine.install import ROOT
from fedloom.planning import paths, provenance, records
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.report.metrics import join

LABELS = ["title", "method", "options", "dataset", "partition", "backbone", "split"]
KEYS = ["dataset", "partition", "method", "seed", "round", "client", "group"]
PERSONALISES = "fedvpt"  # in these studies


def _plan(name: str, methods: list[str], rounds: int, **study: object) -> Plan:
    config = default_config()
    config["study"] |= {"name": name, "rounds": rounds, "evaluate_every": 1, **study}
    config["study"]["report"] = {"last_evaluations": 1}
    config["methods"]["rates"] = {"plugin": "head_tuning", "grid": {"training.lr": [0.1, 0.7]}}
    config["methods"]["plain"] = {"plugin": "head_tuning"}
    config["partitions"]["two"] = {"scheme": "iid", "clients": 20}
    config["select"] |= {"datasets": ["digits"], "partitions": ["two"], "methods": methods}
    config["select"] |= {"tables": ["main"], "figures": []}
    return Plan(resolve(deepcopy(config)), config)


def _evaluate(plan: Plan, run: Run, rounds: int, data: str = "images") -> None:
    """Write made-up evaluations of two clients and the server's model, in their usual order."""
    made_by = {"settings": provenance.digest_of_settings(plan.run_spec(run)), "data": data}
    rng = np.random.default_rng(list(run.path.encode()))
    kinds = [(0, True, False), (1, False, False), (-1, False, False)]
    if run.method == PERSONALISES:
        kinds = [(0, True, False), (0, True, True), *kinds[1:2], (1, False, True), kinds[2]]
    rows = [
        {"round": number, "client_id": client, "domain": "" if client < 0 else f"d{client}"}
        | {"participating": participating, "personalized": personalized, "num_test": 40}
        | {"num_correct": int(rng.integers(41)), "loss": float(rng.random())}
        for number in range(1, rounds + 1)
        for client, participating, personalized in kinds
    ]
    out = paths.path_for(paths.EVALUATION, run)
    part = out.with_name("part.parquet")
    write_table(part, pa.Table.from_pylist(rows, schema=EVALUATION_SCHEMA))
    join([part], out, run, made_by)


def _finish(plan: Plan) -> None:
    """Write what the jobs of a study leave: evaluations of runs and trials, choices, the record."""
    for run in plan.runs:
        if plan.choice_file(run):
            trials = plan.job("choose", run).trials
            for trial in trials:
                labels = run.dataset, f"{run.partition}.validation", run.backbone, trial.label
                _evaluate(plan, Run(*labels, plan.job("choose", run).seed), rounds=2)
            chosen = {"trial": [trials[1].label], "options": [json.dumps(trials[1].options)]}
            write_table(paths.path_for(paths.CHOICE, run), pa.table(chosen))
        _evaluate(plan, run, plan.settings.study.rounds)
    records.write_record(plan)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write finished studies: `tuned`, `short`, and `longer`, which trains for another round."""
    folder = tmp_path_factory.mktemp("studies")
    tune = {"trials": 2, "rounds": 2, "values": {"training.lr": [0.1, 0.2]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _finish(_plan("tuned", ["head_tuning", "fedvpt"], 2, tune=tune))
        _finish(_plan("short", ["plain"], 2))
        _finish(_plan("longer", ["plain", "rates"], 3))
    return folder


def _by_hand(folder, run: str) -> list[dict]:
    file = f"results/runs/digits/two/micro_vit/{run}/evaluation.parquet"
    return pq.read_table(folder / file).to_pylist()


def test_a_row_is_a_client_of_a_run_in_a_round(folder):
    rows = fedloom.results("tuned", folder)
    assert len(rows) == 2 * 2 * (3 + 5) and not rows.duplicated(KEYS).any()
    for read in _by_hand(folder, "head_tuning/seed1")[: 2 * 3]:
        mine = (rows["method"] == "head_tuning") & (rows["seed"] == 1)
        mine &= (rows["round"] == read["round"]) & (rows["client"] == read["client_id"])
        (row,) = rows[mine].to_dict("records")
        group = {0: "participating", 1: "held_out", -1: "global"}[read["client_id"]]
        assert row == {
            **{name: read[name] for name in ("dataset", "partition", "backbone", "method")},
            **{name: read[name] for name in ("seed", "round", "domain", "loss")},
            **{"title": "Head-Tuning", "options": '{"weighted":false}', "learning_rate": 0.2},
            **{"client": read["client_id"], "group": group, "split": "test", "total": 40},
            "correct": read["num_correct"],
            "accuracy": 2.5 * read["num_correct"],
        }


def test_rows_before_a_client_is_personalised_are_another_group(folder):
    rows = fedloom.results("tuned", folder).query("method == 'fedvpt' and seed == 0")
    read = [row["num_correct"] for row in _by_hand(folder, "fedvpt/seed0")[:5]]
    first = rows[rows["round"] == 1].set_index("group")["correct"].to_dict()
    names = ["participating_before", "participating", "held_out_before", "held_out", "global"]
    assert first == dict(zip(names, read, strict=True))


def test_trials_are_apart(folder):
    rows = fedloom.results("tuned", folder, trials=True)
    assert set(rows["method"]) == {
        f"{m}.{lr}" for m in ("head_tuning", "fedvpt") for lr in (0.1, 0.2)
    }
    assert set(rows["split"]) == {"validation"} and set(rows["seed"]) == {1000}
    assert set(rows["title"]) & set(fedloom.results("tuned", folder)["title"]) == set()
    with pytest.raises(fedloom.FedLoomError, match="'longer' must have tuning trials"):
        fedloom.results("longer", folder, trials=True)


def test_studies_in_one_folder_are_not_mixed(folder):
    short = fedloom.results("short", folder)
    longer = fedloom.results("longer", folder)
    assert set(fedloom.results("tuned", folder)["method"]) == {"head_tuning", "fedvpt"}
    assert set(longer["method"]) == {"plain", "rates.0.1", "rates.0.7"}
    assert set(short["round"]) == {1, 2} and set(longer["round"]) == {1, 2, 3}
    rates = longer.groupby("method", observed=True)["learning_rate"].unique()
    assert rates["rates.0.1"] == [0.1] and rates["rates.0.7"] == [0.7]


def test_labels_are_categories_in_the_order_of_the_study(folder):
    rows = fedloom.results("tuned", folder)
    kinds = rows.dtypes[[*LABELS, "domain", "group"]]
    assert all(isinstance(kind, pd.CategoricalDtype) for kind in kinds)
    assert list(rows["method"].cat.categories) == ["head_tuning", "fedvpt"]
    assert not rows.isna().any().any()


def test_a_study_is_named_by_its_file_too(folder, monkeypatch, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("study: {name: tuned}\n")
    pd.testing.assert_frame_equal(fedloom.results(file, folder), fedloom.results("tuned", folder))
    with pytest.raises(fedloom.FedLoomError, match=r"studies/tunde.parquet.*did you mean 'tuned'"):
        fedloom.results("tunde", folder)
    with pytest.raises(fedloom.FedLoomError, match="study 'micro_vit' must have finished"):
        fedloom.results("micro/micro_vit", folder)


def test_a_study_is_that_of_the_folders_own_config(folder, monkeypatch, tmp_path):
    """A folder's config.yaml gives the default study, and the name of a study that states none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/results").symlink_to(folder / "results")
    (tmp_path / "there/config.yaml").write_text("study: {name: short}\n")
    (tmp_path / "there/rounds.yaml").write_text("study: {rounds: 2}\n")
    short = fedloom.results("short", folder)
    for study in (None, "rounds.yaml"):
        rows = fedloom.results(study, "there")
        pd.testing.assert_frame_equal(rows, short)
    assert len(fedloom.scan(folder="there").df()) == len(short)
    monkeypatch.chdir("there")
    assert fedloom.export() == Path("results/export/short")
    invoked("export")


def test_a_study_without_all_of_its_runs_has_no_record(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plan = _plan("part", ["head_tuning"], 2)
    _evaluate(plan, plan.runs[0], 2)
    records.write_record(plan)
    assert not (tmp_path / paths.path_for(paths.RECORD, study="part")).exists()


def test_accuracies_of_other_settings_are_not_recorded(monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    _finish(_plan("one", ["head_tuning"], 2))
    before = (tmp_path / paths.path_for(paths.RECORD, study="one")).read_bytes()
    records.write_record(_plan("one", ["head_tuning"], 2, training={"lr": 9.0}))
    (line,) = caplog.messages
    assert line.startswith("digits/two/micro_vit/head_tuning/seed0: made with other settings")
    assert (tmp_path / paths.path_for(paths.RECORD, study="one")).read_bytes() == before


def test_versions_are_those_with_which_runs_were_recorded_first(monkeypatch, tmp_path):
    def versions():
        return json.loads(read_metadata(paths.path_for(paths.RECORD, study="one"))["versions"])

    monkeypatch.chdir(tmp_path)
    plan = _plan("one", ["head_tuning"], 2)
    _finish(plan)
    before = versions()
    monkeypatch.setattr(records, "_versions", lambda: {"torch": "9"})
    records.write_record(plan)
    assert versions() == before != {"torch": "9"}, "nothing was trained"
    _evaluate(plan, plan.runs[0], 3)
    records.write_record(plan)
    assert versions() == {"torch": "9"}


def _part(plan: Plan, *words: str) -> Plan:
    """Return the plan of a narrowed study."""
    return Plan(narrow(plan.settings, read_narrowing(words)), plan.config)


def test_a_narrowed_study_leaves_the_record_of_its_whole_study(monkeypatch, tmp_path):
    """The record stays only while it has the runs as they are: one is trained again here."""
    monkeypatch.chdir(tmp_path)
    whole = _plan("one", ["head_tuning", "plain"], 2)
    _finish(whole)
    record = paths.path_for(paths.RECORD, study="one")
    before = record.read_bytes()
    part = _part(whole, "methods=plain", "seeds=1")
    records.write_record(part)
    assert record.read_bytes() == before

    _evaluate(part, part.runs[0], 3)
    records.write_record(part)
    assert fedloom.results("one")["method"].unique().tolist() == ["plain"]


def test_the_record_of_a_narrowed_study_says_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    whole = _plan("one", ["head_tuning", "plain"], 2)
    _finish(_part(whole, "methods=plain", "seeds=1"))
    settings = read_metadata(paths.path_for(paths.RECORD, study="one"))["settings"]
    assert settings.startswith("# narrowed to methods plain; seeds 1 (--only)\n")
    assert YAML(typ="safe").load(settings)["study"]["seeds"] == [0, 1], "of the whole study"
    assert fedloom.results("one")["seed"].unique().tolist() == [1]
    records.write_record(_part(whole, "methods=plain", "seeds=1", "tables=main"))
    settings = read_metadata(paths.path_for(paths.RECORD, study="one"))["settings"]
    assert settings.startswith("# narrowed to methods plain; seeds 1; tables main (--only)\n")
    _finish(whole)
    assert "narrowed" not in read_metadata(paths.path_for(paths.RECORD, study="one"))["settings"]


@pytest.mark.parametrize("read", [fedloom.results, fedloom.scan])
def test_rows_that_another_study_overwrote_are_refused(monkeypatch, tmp_path, read):
    monkeypatch.chdir(tmp_path)
    plan = _plan("one", ["head_tuning"], 2)
    _finish(plan)
    refused = r"head_tuning/seed1: .* of study 'one'; run the study again"
    _evaluate(plan, plan.runs[1], 2, data="other images")
    with pytest.raises(fedloom.FedLoomError, match=refused):
        read("one")
    _evaluate(plan, plan.runs[1], 2)
    read("one")
    _evaluate(_plan("two", ["head_tuning"], 2, training={"lr": 9.0}), plan.runs[1], 2)
    with pytest.raises(fedloom.FedLoomError, match=refused):
        read("one")


def test_a_method_that_trains_nothing_has_no_learning_rate(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = default_config()
    config["study"] |= {"name": "frozen", "rounds": 1, "evaluate_every": 1}
    config["study"]["report"] = {"last_evaluations": 1}
    config["select"] |= {"backbones": ["micro_clip"], "methods": ["zero_shot_clip"]}
    config["select"] |= {"tables": ["main"], "figures": []}
    _finish(Plan(resolve(deepcopy(config)), config))
    rates = fedloom.results("frozen")["learning_rate"]
    assert rates.dtype == float and rates.isna().all()


@pytest.mark.parametrize("study, trials", [("tuned", False), ("tuned", True), ("short", False)])
def test_a_scan_returns_the_same_rows(folder, study, trials):
    pytest.importorskip("duckdb")
    rows = fedloom.results(study, folder, trials)
    found = fedloom.scan(study, folder, trials)
    assert found.columns == list(rows.columns)
    same = [
        frame.sort_values(KEYS, key=lambda c: c.astype(rows[c.name].dtype))
        for frame in (rows, found.df())
    ]
    assert same[0].astype(object).values.tolist() == same[1].astype(object).values.tolist()
    assert isinstance(found.df()["title"].dtype, pd.CategoricalDtype)


def test_without_duckdb_a_scan_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(fedloom.FedLoomError, match=r"fedloom\[results\]"):
        fedloom.scan("tuned", folder)


def test_an_export_reads_back_as_it_was(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    invoked("export", "tuned")
    out = folder / "results/export/tuned"
    assert capsys.readouterr().out == "results/export/tuned\n"
    rows = fedloom.results("tuned")
    pd.testing.assert_frame_equal(pd.read_parquet(out / "results.parquet"), rows)
    readme = (out / "README.md").read_text()
    assert "32 rows of 4 runs" in readme and "torch " in readme
    for column in rows.columns:
        assert f"| {column} | " in readme
    assert "tune:\n    trials: 2\n" in readme, "the settings"


def test_importing_fedloom_imports_no_library():
    slow = {"torch", "pandas", "numpy", "pyarrow", "snakemake", "pydantic", "ruamel", "yaml"}
    script = f"import sys, fedloom; fedloom.FedLoomError; print({slow} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT / "workflow"
    )
    assert done.stdout == "set()\n", done.stderr
    assert set(fedloom.__all__) == set(fedloom.MODULES) <= set(dir(fedloom))


def test_the_first_of_several_errors_is_raised(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nprintf 'error: one\\nthen\\nerror: two\\n'; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(fedloom.FedLoomError, match=r"^one$"):
        fedloom.run(folder=tmp_path)


def test_a_study_is_narrowed_from_python(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > words\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    fedloom.run("micro/micro_vit", folder=tmp_path, only={"methods": ["sgpt", "pfpt"], "seeds": 0})
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-2:] == ["--only=methods=sgpt,pfpt", "--only=seeds=0"]


def test_a_study_that_cannot_run_raises_its_error(tmp_path, capfd):
    changes = {"study.lr": 0.1, "study.rouds": 3}
    with pytest.raises(fedloom.FedLoomError, match=r"--set study\.lr"):
        fedloom.run("micro/micro_vit", changes, folder=tmp_path)
    assert "error: " in capfd.readouterr().out


def test_a_study_given_as_a_mapping_is_kept_for_other_commands(tmp_path):
    study = {"study": {"name": "mine", "rouds": 3}}
    with pytest.raises(fedloom.FedLoomError, match=r"study\.rouds.*studies/mine\.yaml, line"):
        fedloom.run(study, folder=tmp_path)
    assert YAML(typ="safe").load(tmp_path / "results/studies/mine.yaml") == study


def test_values_of_numpy_paths_and_ranges_are_written_as_yaml(tmp_path):
    study = {
        "study": {"name": "mine", "rouds": np.int64(3), "seeds": range(2)},
        "datasets": {"own": {"root": tmp_path, "image_size": np.array([8, 8])}},
    }
    with pytest.raises(fedloom.FedLoomError, match=r"study\.rouds"):
        fedloom.run(study, {"training.lr": np.float32(0.5)}, folder=tmp_path)
    assert YAML(typ="safe").load(tmp_path / "results/studies/mine.yaml") == {
        "study": {"name": "mine", "rouds": 3, "seeds": [0, 1]},
        "datasets": {"own": {"root": str(tmp_path), "image_size": [8, 8]}},
    }
    with pytest.raises(fedloom.FedLoomError, match=r"^study\.name: must be text.* got object"):
        fedloom.run({"study": {"name": object()}}, folder=tmp_path)


def test_a_folder_to_run_in_must_be_there(tmp_path):
    with pytest.raises(fedloom.FedLoomError, match="nowhere: folder does not exist"):
        fedloom.run("micro/micro_vit", folder=tmp_path / "nowhere")
