"""The display of a study's run: how much is done by the jobs' estimates, and lines for its ends."""

import io
import json
import logging

import pytest
from rich.console import Console
from snakemake.common import NOTHING_TO_BE_DONE_MSG

from fedloom.cli.run import display
from fedloom.common.errors import FedLoomError
from fedloom.machine.job_events import event_file, last_progress, with_event
from fedloom.machine.process_log import log_to, progress
from fedloom.planning.run_progress import EVENTS, RunProgress
from snakemake_logger_plugin_fedloom import LogHandler

BEGIN = {
    "event": "begin", "study": "mine", "process": 1, "time": 100.0,
    "seconds": {"a/0002": 30.0, "a/0004": 10.0, "b/0002": 20.0}, "means": {"train": 15.0},
}  # fmt: skip


def _started(number, output, log=None, rule="train"):
    wildcards = {"method": output[0], "seed": "0", "end": "0002"}
    return {
        "event": "job_info", "jobid": number, "rule_name": rule, "wildcards": wildcards,
        "output": [output], "log": [str(log)] if log else [], "time": 0.0,
    }  # fmt: skip


def _progress(done, elapsed, left, total=4, values="loss=1"):
    """Return the line of events in which a job tells how far it is."""
    told = {"done": done, "total": total, "elapsed": elapsed, "left": left, "values": values}
    return json.dumps({"event": "progress", **told}) + "\n"


@pytest.fixture
def two_jobs():
    """Return a run with two training jobs to do, of 10 and 20 seconds."""
    run = RunProgress()
    run.apply_event(BEGIN)
    run.apply_event({"event": "run_info", "stats": {"train": 2, "all": 1, "total": 3}})
    return run


@pytest.fixture
def log(tmp_path):
    """Return the log of a job whose long name fills a line, and which has done 23 of 40 rounds."""
    log_to(tmp_path / "job.log")
    with progress(total=40, initial=20, what=f"{'d' * 80}/p/b/a/seed0") as bar:
        bar.set_postfix({"loss": "0.5", "accuracy": "81.2"})
        bar.update(3)
    log_to(None)
    return tmp_path / "job.log"


@pytest.fixture
def events_file(tmp_path, monkeypatch):
    """Return the file of a run's events in the current folder."""
    monkeypatch.chdir(tmp_path)
    EVENTS.parent.mkdir()
    return EVENTS


def test_the_share_is_that_of_the_estimates(two_jobs):
    for number, file in enumerate(("a/0004", "b/0002")):
        two_jobs.apply_event(_started(number, file))
    assert (two_jobs.jobs, two_jobs.share()) == ({"train": 2}, 0)
    assert two_jobs.time_left(105.0) is None
    word, job = two_jobs.apply_event({"event": "job_finished", "job_id": 0, "time": 5.0})
    assert (word, job.name, two_jobs.done) == ("finished", "a/seed0", 1)
    assert two_jobs.share() == pytest.approx(10 / 30)
    assert two_jobs.time_left(5.0) == (pytest.approx(5), False), "10 s in all, 5 of them over"


def test_a_job_fails_once(two_jobs):
    two_jobs.apply_event(_started(0, "a/0004"))
    assert two_jobs.apply_event({"event": "job_error", "jobid": 0})[0] == "failed"
    assert two_jobs.apply_event({"event": "job_error", "jobid": 0}) is None
    assert (len(two_jobs.failed), two_jobs.done, two_jobs.share()) == (1, 0, 0)
    two_jobs.apply_event(_started(0, "a/0004"))
    assert not two_jobs.failed, "it is tried again"


def test_rounds_are_counted_from_the_first_of_the_run(log):
    found = last_progress(log)
    assert (found.done, found.total, found.values) == (23, 40, "loss=0.5, accuracy=81.2")
    assert last_progress(log.with_name("none")) is None


def test_the_log_says_in_words_what_the_event_says(log):
    assert log.read_text().splitlines()[-1].endswith("left, loss=0.5, accuracy=81.2]")
    event = json.loads(event_file(log).read_text().splitlines()[-1])
    assert event["event"] == "progress"
    assert event["left"] == pytest.approx(event["elapsed"] / 3 * 17), "3 rounds are done of 20"


def test_a_line_that_is_half_written_is_not_read(log):
    with event_file(log).open("a") as file:
        file.write(_progress(done=30, elapsed=1.0, left=1.0)[:40])
    assert last_progress(log).done == 23


def test_the_last_progress_is_found_behind_other_events(log):
    """Only the end of a long file is read, and that end begins in the middle of a line."""
    other = json.dumps(with_event("device", text="x" * 50)["extra"]["event"]) + "\n"
    event_file(log).write_text(
        _progress(done=1, elapsed=1.0, left=1.0)
        + other * 200
        + _progress(done=2, elapsed=1.0, left=1.0)
        + other * 3
    )
    assert last_progress(log).done == 2


def test_a_job_at_work_counts_by_its_time(two_jobs, log):
    two_jobs.apply_event(_started(0, "b/0002", log))
    event_file(log).write_text(_progress(done=3, elapsed=60.0, left=20.0))
    two_jobs.running[0].look()
    assert two_jobs.share() == pytest.approx(0.75 * 20 / 30)
    event_file(log).write_text(_progress(done=0, elapsed=0.0, left=None))
    two_jobs.running[0].look()
    assert two_jobs.share() == 0


def test_the_log_of_an_earlier_attempt_tells_nothing(two_jobs, log):
    two_jobs.apply_event(_started(0, "b/0002", log) | {"time": log.stat().st_mtime + 1})
    two_jobs.running[0].look()
    assert two_jobs.share() == 0


def test_an_event_that_is_half_written_is_read_when_it_is_whole(events_file, monkeypatch):
    monkeypatch.setattr(display, "REFRESH_SECONDS", 0)
    text = json.dumps(BEGIN) + "\n"
    events_file.write_text(text[:20])

    def ended() -> bool:
        over = events_file.stat().st_size > 20
        if not over:
            with events_file.open("a") as file:
                file.write(text[20:])
        return over

    out = io.StringIO()
    display.follow(ended, Console(file=out))
    assert "study mine" in out.getvalue()


def test_lines_where_there_is_no_terminal(events_file, log):
    events = [
        BEGIN, {"event": "run_info", "stats": {"train": 1, "table": 1}},
        _started(0, "a/0004", log), {"event": "job_finished", "job_id": 0, "time": 5.0},
        _started(1, "t", rule="table"), {"event": "job_error", "jobid": 1},
    ]  # fmt: skip
    events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    out = io.StringIO()
    display.follow(lambda: True, Console(file=out, width=200))
    train, table, whole = out.getvalue().splitlines()
    assert train.startswith("finished  train a/seed0: 23/40 loss=0.5, accuracy=81.2  (1 of 2 jobs")
    assert table.startswith("failed    table t/seed0") and "1 failed" in table
    assert whole.startswith("study mine: 1 of 2 jobs, ")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            "round 1\n",
            "it was killed, probably because it took too much memory, or the disk is full; ",
        ),
        ("error: x\n", ""),
    ],
)
def test_a_failed_job_without_an_error_in_its_log_was_killed(two_jobs, tmp_path, lines, reason):
    log = tmp_path / "job.log"
    log.write_text(lines)
    two_jobs.apply_event(_started(0, "a/0004", log))
    line = display._line(two_jobs, *two_jobs.apply_event({"event": "job_error", "jobid": 0}))
    assert f"; {reason}see {log}" in line.plain


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_jobs_get_a_line_where_there_is_no_terminal(events_file, log, terminal, monkeypatch):
    monkeypatch.setattr(display, "SECONDS_BETWEEN_LINES", 0)
    events = [BEGIN, {"event": "run_info", "stats": {"train": 2}}, _started(0, "a/0004", log)]
    events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=terminal)
    display.follow(lambda: True, console)
    line = "at work   train a/seed0: 23/40 loss=0.5, accuracy=81.2  (0 of 2 jobs"
    assert (line in out.getvalue()) is not terminal


def test_on_a_terminal_every_job_has_a_line(two_jobs, log):
    two_jobs.apply_event(_started(0, "a/0004", log))
    two_jobs.running[0].look()
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=True).print(display._drawing(two_jobs))
    heading, bar, job = out.getvalue().splitlines()
    assert "study mine: 0 of 2 jobs" in heading and "━" in bar and "━" not in job
    assert "a/seed0  23/40 loss=0.5, accuracy=81.2" in job


def test_jobs_that_a_signal_ends_are_not_shown_as_failed(events_file, monkeypatch):
    events_file.write_text(json.dumps(BEGIN) + "\n")
    signals = list[int]()

    def signal(_: float) -> None:
        signals.append(2)
        with events_file.open("a") as file:
            for event in (_started(0, "a/0004"), {"event": "job_error", "jobid": 0}):
                file.write(json.dumps(event) + "\n")

    monkeypatch.setattr(display.time, "sleep", signal)
    out = io.StringIO()
    display.follow(lambda: False, Console(file=out), signals)
    assert out.getvalue() == "study mine: no job was started\n"


def test_a_run_without_a_job_to_do_says_that_all_is_up_to_date(events_file):
    """Snakemake has a message for this, and no event."""
    events_file.write_text(json.dumps(BEGIN) + "\n")
    message = logging.LogRecord("", logging.INFO, "", 0, NOTHING_TO_BE_DONE_MSG, None, None)
    LogHandler.emit(object.__new__(LogHandler), message)
    out = io.StringIO()
    display.follow(lambda: True, Console(file=out))
    assert out.getvalue() == "study mine: nothing to do: all is up to date\n"


def test_watching_needs_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedLoomError, match="fedloom run"):
        display.watch()
