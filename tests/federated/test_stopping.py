"""A scheduler's signal ends a job of training between two rounds, and the next one goes on."""

import logging
import os
import signal
import sys
from dataclasses import replace

import pytest

from before_aggregation import BeforeAggregation
from fedloom.common.errors import StoppedError
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.hooks import manifest
from fedloom.jobs import __main__ as jobs_main

SIGNALS = [signal.SIGTERM, signal.SIGUSR1]
FILES = ("state", "evaluation", "clients")


def _train(task, hooks, folder):
    folder.mkdir(exist_ok=True)
    job = replace(tiny_job(manifest.find_method(task.method), 0, 3), evaluated_rounds=(2, 3))
    training_job.train_rounds(task, hooks, job, None, tiny_outputs(folder), "same")


def _signalled(hooks, number, at):
    """Return hooks that send this process the signal `number` in the middle of round `at`."""

    def send(task):
        if task.round == at:
            os.kill(os.getpid(), number)

    return BeforeAggregation(send, hooks)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_the_round_is_finished_and_the_next_job_goes_on_after_it(tiny, tmp_path, caplog, number):
    task, hooks = tiny("pep_fedpt")
    _train(task, hooks, tmp_path / "whole")
    line = f"stopped by {number.name} after round 2 of 3; start the job again"
    with pytest.raises(StoppedError, match=line):
        _train(task, _signalled(hooks, number, 2), tmp_path / "stopped")
    whole, stopped = (tiny_outputs(tmp_path / name) for name in ("whole", "stopped"))
    assert stopped.checkpoint.exists()
    assert not any(getattr(stopped, file).exists() for file in FILES)
    caplog.set_level(logging.INFO)
    _train(task, hooks, tmp_path / "stopped")
    assert "resumed after round 2" in caplog.text
    for file in FILES:
        assert getattr(whole, file).read_bytes() == getattr(stopped, file).read_bytes()


def test_a_signal_in_the_last_round_lets_the_job_finish(tiny, tmp_path):
    task, hooks = tiny("fedvpt")
    _train(task, hooks, tmp_path / "whole")
    _train(task, _signalled(hooks, signal.SIGTERM, 3), tmp_path / "signalled")
    for file in FILES:
        whole, late = (getattr(tiny_outputs(tmp_path / x), file) for x in ("whole", "signalled"))
        assert whole.read_bytes() == late.read_bytes()


def test_after_the_rounds_signals_mean_what_they_meant_before(tiny, tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    task, hooks = tiny("fedvpt")
    with pytest.raises(StoppedError):
        _train(task, _signalled(hooks, signal.SIGUSR1, 1), tmp_path)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_the_command_says_so_in_a_line_and_with_a_status_of_its_own(monkeypatch, capsys):
    def stopped(name):
        raise StoppedError("run: stopped by SIGTERM")

    monkeypatch.setattr(jobs_main, "import_module", stopped)
    monkeypatch.setattr(sys, "argv", ["fedloom", "train", "--job", "{}"])
    with pytest.raises(SystemExit) as end:
        jobs_main.main()
    assert end.value.code == StoppedError.status == 75
    assert capsys.readouterr().err == "error: run: stopped by SIGTERM\n"
