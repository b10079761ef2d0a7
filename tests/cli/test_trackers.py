"""Trackers: what their clients read back, and what they are told of a study's runs."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import invoked
from fedloom.cli.inspect import track
from fedloom.cli.run import launch
from fedloom.cli.run.run_options import RunOptions
from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_table
from fedloom.common.receipts import receipt_path, write_receipt
from fedloom.federated.answer_counts import AnswerCounts
from fedloom.federated.checkpoint import Checkpoint
from fedloom.federated.rows import Rows
from fedloom.federated.state import State
from fedloom.planning import paths, provenance, run_progress
from fedloom.planning.load_plan import CHANGES_KEY, load_plan
from fedloom.planning.plan import Plan
from made_rows import evaluation_row, round_row

RUN = "digits/two/micro_vit/head_tuning/seed0"
SETTINGS = {"method": "head_tuning", "training.lr": 0.3, "weighted": False}
VALUES = {1: {"train_loss": 2.0}, 2: {"train_loss": 1.5, "accuracy/held_out_mean": 40.0}}


# ---- each tracker, read by its own client --------------------------------------------------------


def _read_tensorboard(folder: Path) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    events = EventAccumulator(str(folder / "mine" / RUN)).Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = parse_session_start_info_plugin_data(content).hparams
    assert given["training.lr"].number_value == 0.3 and given["weighted"].bool_value is False
    assert given["method"].string_value == "head_tuning"
    names = events.Tags()["scalars"]
    return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in names}


def _read_wandb(folder: Path) -> dict:
    """Read the file for `wandb sync`: messages of wandb in the format of LevelDB's log."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # otherwise wandb writes the file at the process's end
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")  # the second run replaced the first
    data = file.read_bytes()
    at = 7
    part = b""
    found = dict[str, list]()
    while at < len(data):
        if (padding := -at % 32768) < 7:  # a header has 7 bytes
            at += padding
            continue
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        part = part + data[at + 7 : at + 7 + size]
        at = at + 7 + size
        if kind not in (1, 4):  # 1 is a whole record, 4 the last part of one
            continue
        record = Record.FromString(part)
        part = b""
        if record.WhichOneof("record_type") == "run":
            assert (record.run.project, record.run.display_name) == ("mine", RUN)
            given = {each.key: json.loads(each.value_json) for each in record.run.config.update}
            assert given.items() >= SETTINGS.items()
        for item in record.history.item:
            name = "/".join(item.nested_key) or item.key
            value = json.loads(item.value_json)
            if not name.startswith("_"):
                found.setdefault(name, []).append((record.history.step.num, value))
    return found


def _read_mlflow(folder: Path) -> dict:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("mine")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (RUN, "FINISHED")
    assert run.data.params == {name: str(value) for name, value in SETTINGS.items()}
    read = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: [(point.step, point.value) for point in points] for name, points in read.items()}


@pytest.mark.parametrize("name", track.OWN_TRACKERS)
def test_a_client_reads_what_was_told_and_nothing_twice(name, tmp_path, monkeypatch):
    for variable in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    tracker = track.find_tracker(name).load()
    for number in VALUES:  # each time, the run is followed anew with one more round
        with tracker(tmp_path, "mine", RUN, SETTINGS) as log:
            for each in range(1, number + 1):
                log(each, VALUES[each])
    read = {"tensorboard": _read_tensorboard, "wandb": _read_wandb, "mlflow": _read_mlflow}[name]
    assert read(tmp_path) == {
        "train_loss": [(1, 2.0), (2, 1.5)],
        "accuracy/held_out_mean": [(2, 40.0)],
    }


def test_a_tracker_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedLoomError, match="no tracker 'wand'; did you mean 'wandb'"):
        invoked("track", "wand")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FedLoomError, match=r"wandb: not installed.*fedloom\[trackers\]"):
        invoked("track", "wandb")
    assert not list(tmp_path.iterdir())


# ---- what a tracker is told ----------------------------------------------------------------------


class Told(list):
    """A tracker that keeps everything that it is told of all runs."""

    def __call__(self, run: str, settings: dict):
        self.append(("begin", run, settings["training.lr"]))
        return self

    def __enter__(self):
        return lambda number, values: self.append((number, values["train_loss"]))

    def __exit__(self, *_):
        self.append("end")


STUDY = """
study: {name: mine, rounds: 4, rounds_per_job: 2, seeds: [0], evaluate_every: 1}
partitions: {two: {scheme: iid, clients: 20}}
select: {datasets: [digits], partitions: [two], methods: [head_tuning], figures: []}
"""


def _plan(*changes: str) -> Plan:
    Path("mine.yaml").write_text(STUDY)
    return load_plan([Path("mine.yaml")], {CHANGES_KEY: changes})


def _rows(number: int, loss: float) -> Rows:
    """Return made-up rows of a round: of twenty images, two clients answer 10 and 15 correctly."""
    evaluated = [
        replace(evaluation_row(number, client, 1.0), num_test=20, num_correct=correct)
        for client, correct in ((0, 10), (1, 15))
    ]
    return Rows.from_round(round_row(number, loss), evaluated, AnswerCounts())


def _finish(plan: Plan, last: int, losses: list[float]) -> None:
    """Write the files of a training job that ends after round `last`."""
    run = plan.runs[0]
    end = paths.four_digits(last)
    first = last - len(losses) + 1
    rows = Rows.join([_rows(first + n, loss) for n, loss in enumerate(losses)])
    for name in ("rounds", "evaluation"):
        write_table(paths.path_for(paths.JOB_TABLES[name], run, end=end), getattr(rows, name))
    state = paths.path_for(paths.STATE, run, end=end)
    state.touch()
    made_by = provenance.digest_of_settings(plan.run_spec(run))
    write_receipt(state, settings=made_by, data="")


@pytest.fixture
def followed(monkeypatch, tmp_path):
    """Return a run of a study that began a minute ago, and the list of what its tracker is told."""
    monkeypatch.chdir(tmp_path)
    told = Told()
    plan = _plan()
    return track.FollowedRun(plan, plan.runs[0], told, time.time() - 60), told


def test_rounds_are_told_as_they_are_done(followed):
    """Rounds of a job at work come from its checkpoint, those of a finished job from its tables.

    In between, the parts of the checkpoint may be joined.
    """
    run, told = followed
    run.read_new_rounds()
    assert told == []
    _finish(run.plan, 2, [2.0, 1.0])
    run.read_new_rounds()
    assert told == [("begin", RUN, 0.3), (1, 2.0), (2, 1.0)]
    head = paths.path_for(paths.STATE, run.run, end="0004").with_name(paths.CHECKPOINT)
    checkpoint = Checkpoint(head, "")
    checkpoint.write(3, State({}), [], _rows(3, 0.5))
    run.read_new_rounds()
    checkpoint.write(4, State({}), [], _rows(4, 0.25))
    run.read_new_rounds()
    _finish(run.plan, 4, [0.5, 0.25])
    run.read_new_rounds()
    assert told[3:] == [(3, 0.5), (4, 0.25), "end"]
    accuracy = {"accuracy/participating_mean": 62.5, "accuracy/participating_worst": 50.0}
    shown = {name: value for name, value in run.told[1].items() if name.startswith("accuracy")}
    assert shown == accuracy and run.told[1]["train_loss"] == 2.0


def test_a_run_that_is_trained_anew_is_told_anew(followed):
    run, told = followed
    _finish(run.plan, 2, [2.0, 1.0])
    run.read_new_rounds()
    receipt_path(paths.path_for(paths.STATE, run.run, end="0002")).unlink()  # as Snakemake does
    run.read_new_rounds()
    _finish(run.plan, 2, [2.0, 1.5])
    run.read_new_rounds()
    begin = ("begin", RUN, 0.3)
    assert told == [begin, (1, 2.0), (2, 1.0), "end", begin, (1, 2.0), (2, 1.5)]


def test_rounds_of_other_settings_are_not_told(followed):
    run, told = followed
    _finish(_plan("training.lr=9"), 2, [2.0, 1.0])
    head = paths.path_for(paths.STATE, run.run, end="0002").with_name(paths.CHECKPOINT)
    Checkpoint(head, "").write(1, State({}), [], _rows(1, 2.0))
    os.utime(head, (run.since - 1, run.since - 1))
    run.read_new_rounds()
    assert told == []


def test_a_file_that_is_damaged_is_an_error(followed):
    run, _ = followed
    _finish(run.plan, 2, [2.0, 1.0])
    file = paths.path_for(paths.JOB_TABLES["rounds"], run.run, end="0002")
    file.write_bytes(b"PAR1")
    with pytest.raises(FedLoomError, match=r"0002\.rounds\.parquet: is damaged or incomplete"):
        run.read_new_rounds()


# ---- beside a run --------------------------------------------------------------------------------


def test_a_tracker_is_told_of_the_run_until_it_ends(monkeypatch, tmp_path, capsys):
    """A tracker in a second terminal follows a run, and looks once more after the run's end."""
    monkeypatch.chdir(tmp_path)
    _plan()
    told = Told()

    def tracker(folder: Path, study: str, run: str, settings: dict):
        assert (folder, study) == (Path("results/tracked/mine"), "mine") and folder.is_dir()
        return told(run, settings)

    def snakemake(*_, **__):
        ended = iter([False, True])  # it ends between the first look and the second

        def now(first: dict) -> bool:
            _finish(_plan(), 2, [2.0, 1.0])
            return next(ended)

        monkeypatch.setattr(run_progress, "has_ended", now)
        monkeypatch.setattr(track, "TRACK_SECONDS", 0)
        monkeypatch.setattr(track, "find_tracker", lambda _: SimpleNamespace(load=lambda: tracker))
        track.track_study("mine")
        return 1

    monkeypatch.setattr(launch, "run_snakemake", snakemake)
    launch.run_study(RunOptions([Path("mine.yaml")]))
    assert told == [("begin", RUN, 0.3), (1, 2.0), (2, 1.0), "end"]
    assert capsys.readouterr().out == "1 runs in results/tracked/mine\n"


def test_a_run_has_ended_when_it_says_so_or_its_process_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_progress.begin_run(_plan(), [])
    first = run_progress.last_begun()
    assert not run_progress.has_ended(first)
    assert run_progress.has_ended(first | {"process": 2**22}), "beyond all numbers of processes"
    run_progress.end_run()
    assert run_progress.has_ended(first)
