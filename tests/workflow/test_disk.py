"""Full disks, and files in the place of folders: one line with the file, no half results."""

import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

from fedloom.backbones import cache
from fedloom.cli.run import launch
from fedloom.cli.run.run_options import RunOptions
from fedloom.common import files, tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_writable
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.data.store import Example, write_images
from fedloom.federated import training_job
from fedloom.hooks import manifest
from fedloom.jobs import __main__ as jobs_main
from fedloom.machine.process_log import QUIET_VARIABLE, log_to
from fedloom.planning.load_plan import load_plan


@pytest.fixture
def full(tmp_path):
    """Yield the folder of a file system of 128 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


BIG = 100_000


def _table(path):
    files.write_table(path, pa.table({"x": np.random.default_rng(0).normal(size=BIG)}))


def _store(path):
    images = np.random.default_rng(0).integers(0, 255, (200, 32, 32, 3), np.uint8)
    examples = (Example(image, 0, i % 2 == 0, "") for i, image in enumerate(images))
    write_images(path, examples, (32, 32, 3), ["a"], "noise")


class _Wide:
    """A backbone whose features do not fit."""

    device = torch.device("cpu")

    def compute_cache(self, images, name):
        return {"final": torch.zeros(len(images), BIG)}


class _Images:
    def __len__(self):
        return 2

    def images(self, rows):
        return np.zeros((len(rows), 1, 1, 1), np.uint8)


# each raises another error where a disk is full
WRITERS = {
    "text": lambda path: files.write_text(path, "x" * 10 * BIG),
    "table": _table,
    "tensors": lambda path: tensor_files.save(path, {"x": torch.zeros(BIG)}),
    "store": _store,
    "cache": lambda path: cache.write_cache(_Wide(), _Images(), "features", path),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(full, kind):
    before = full / "deep" / "result"
    before.parent.mkdir()
    before.write_bytes(b"before")
    for path in (before, full / "new" / "result"):
        with pytest.raises(FedLoomError) as error:
            WRITERS[kind](path)
        line = str(error.value)
        assert line.startswith(f"{path}: ") and "No space left" in line
        assert "\n" not in line
    assert [file for file in full.rglob("*") if file.is_file()] == [before]
    assert before.read_bytes() == b"before"


def test_a_job_on_a_full_disk_goes_on_from_its_last_whole_checkpoint(full, tiny, tmp_path):
    task, hooks = tiny("fedvpt")
    rounds = tiny_job(manifest.find_method("fedvpt"))

    def train(folder):
        folder.mkdir(exist_ok=True)
        training_job.train_rounds(task, hooks, rounds, None, tiny_outputs(folder), "same")

    train(tmp_path / "whole")
    outputs = tiny_outputs(full)
    used = full / "ballast"
    needed = sum(file.stat().st_size for file in (tmp_path / "whole").iterdir())
    used.write_bytes(bytes(128 * 1024 - needed // 2))  # room for half of what the job writes
    with pytest.raises(FedLoomError, match=r"No space left"):
        train(full)
    assert not outputs.state.exists()
    used.unlink()
    train(full)
    whole = tiny_outputs(tmp_path / "whole")
    for kind in ("state", "evaluation"):
        assert getattr(outputs, kind).read_bytes() == getattr(whole, kind).read_bytes()


def test_an_error_of_another_file_is_not_blamed_on_the_result(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"elsewhere"),
        files.atomic_write(tmp_path / "result"),
    ):
        Path("/elsewhere/missing").read_bytes()


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "results").write_text("")
    with pytest.raises(FedLoomError, match=r"results/a/b: .*Not a directory"):
        files.write_text(tmp_path / "results/a/b", "x")


@pytest.mark.parametrize("case", ["file", "link"])
def test_results_that_are_no_folder_are_one_line(tmp_path, monkeypatch, case):
    results = tmp_path / "results"
    if case == "file":
        results.write_text("")
    else:
        results.symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedLoomError, match=r"^results: [^\n]+$"):
        launch.run_study(RunOptions())


def test_looking_needs_no_folder_that_can_be_written_to(tmp_path, monkeypatch):
    """Dry runs must work where the results are those of others and may only be read."""
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK and access(path, mode))
    assert load_plan().runs
    monkeypatch.setattr(sys, "executable", "true")  # this replaces Snakemake
    assert launch.run_study(RunOptions(dry=True)) == 0
    with pytest.raises(FedLoomError, match=r"^results: "):
        launch.run_study(RunOptions())


def test_an_error_that_a_full_disk_keeps_out_of_the_log_is_printed(full, monkeypatch, capsys):
    """The display of the study hides what jobs print, since their logs have it."""
    monkeypatch.setenv(QUIET_VARIABLE, "1")
    log_to(full / "job.log")
    (full / "filler").write_bytes(bytes(2**17 - 4096 * 2))
    logger = logging.getLogger("fedloom")
    logger.debug("x" * 2**14)
    logger.error("error: results/a: cannot be written (No space left on device)")
    logging.getLogger().handlers.clear()
    said = capsys.readouterr().err.splitlines()
    assert said == ["error: results/a: cannot be written (No space left on device)"]


def test_results_may_be_a_link_to_a_folder_or_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_writable(Path("results"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to("disk")
    check_writable(Path("results"))
    monkeypatch.setattr(os, "access", lambda *args: False)
    with pytest.raises(FedLoomError, match=r"^results: "):
        check_writable(Path("results"))


def test_a_log_that_cannot_be_made_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "results").write_text("")
    monkeypatch.setattr(
        sys, "argv", ["fedloom", "table", "--job", "{}", "--log", f"{tmp_path}/results/x/y.log"]
    )
    with pytest.raises(SystemExit) as end:
        jobs_main.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {tmp_path}/results/x: Not a directory"
    )


def test_a_log_on_a_full_disk_hides_no_error(full, monkeypatch, capsys):
    (full / "ballast").write_bytes(bytes(128 * 1024 - 8192))
    job_text = "{}" + " " * 200_000  # the line that says what is wrong is written to the log too
    monkeypatch.setattr(
        sys, "argv", ["fedloom", "train", "--job", job_text, "--log", f"{full}/x.log"]
    )
    with pytest.raises(SystemExit) as end:
        jobs_main.main()
    captured = capsys.readouterr().err
    assert end.value.code == 2
    assert "error: --job" in captured
    assert "Traceback" not in captured and "Logging error" not in captured
    with suppress(OSError):  # the disk is still full; a later test would close the log
        logging.getLogger().handlers[-1].close()


def test_a_home_that_cannot_be_written_is_no_problem(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    script = tmp_path / "python"  # this replaces Snakemake
    script.write_text("#!/bin/sh\necho cache $XDG_CACHE_HOME\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    for home, printed in (("/proc/nothing", f"cache {tmp_path}/.snakemake/cache"), (".", "cache")):
        monkeypatch.setenv("HOME", home)
        assert launch.run_snakemake([]) == 0
        assert capfd.readouterr().out.strip() == printed


@pytest.mark.parametrize(
    ("terminal", "code", "printed"),
    [(True, 1, "display\nwhy\n"), (True, 0, "display\n"), (False, 1, "why\ndisplay\n")],
)
def test_on_a_terminal_snakemake_explains_a_failure_after_the_display(
    tmp_path, monkeypatch, capfd, terminal, code, printed
):
    def follow(ended, *_):
        while not ended():
            time.sleep(0.1)
        print("display", file=sys.stderr)

    script = tmp_path / "python"  # this replaces Snakemake
    script.write_text(f"#!/bin/sh\necho why >&2\nexit {code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(launch, "follow", follow)
    monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
    assert launch.run_snakemake([], display=True) == code
    assert capfd.readouterr().err == printed


def test_a_lock_of_a_snakemake_at_work_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "snakemake"
    script.write_text("#!/bin/sh\nsleep 20\n")
    with subprocess.Popen(["sh", str(script)]) as plain:
        while str(script) not in psutil.Process(plain.pid).cmdline():  # it is empty at first
            assert plain.poll() is None
        with pytest.raises(FedLoomError, match=f"process {plain.pid}.* is running here"):
            launch.remove_stale_lock([])
        plain.kill()
