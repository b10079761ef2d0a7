"""The real workflow, end to end: run, rerun, extend, kill and go on."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest

import checkout
import one_process
from fedloom.commands.planning import load_plan

pytestmark = pytest.mark.slow

STUDY = """
study:
  name: small
  rounds: {rounds}
  seeds: [0]
  clients_per_round: 3
  rounds_per_job: 1
  evaluate_every: 1
  report: {{last_evaluations: 1}}
  training: {{epochs: 1, batch_size: 64, lr: 0.3}}
partitions:
  six: {{scheme: pathological, clients: 6, classes_per_client: 2, held_out: 0.17}}
select:
  datasets: [digits]
  partitions: [six]
  methods: [fedvpt, pep_fedpt]
  tables: [main, heldout]
  figures: [accuracy]
"""
METHODS = {"fedvpt", "pep_fedpt"}
RUNS = shutil.ignore_patterns("runs")  # what copies of results leave out


def _checkout(folder: Path, rounds: int) -> Path:
    _study(checkout.copy_to(folder), rounds)
    return folder


def _study(folder: Path, rounds: int) -> None:
    (folder / "small.yaml").write_text(STUDY.format(rounds=rounds))


def _start(
    folder: Path, module: str, *arguments: str, extra: tuple = (), **options
) -> subprocess.Popen:
    configs = ("--configfile", "small.yaml", *extra)
    command = [sys.executable, "-m", module, *arguments, *configs]
    environment = os.environ | {"PYTHONPATH": str(folder / "workflow")}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_hear_ctrl_c,
        **options,
    )


def _hear_ctrl_c() -> None:
    """A shell that starts the tests in the background makes them, and all below, deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(folder: Path, module: str = "fedloom.commands.launch", *arguments: str) -> str:
    process = _start(folder, module, *arguments)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def _would_run(folder: Path) -> list[tuple[str, str, str]]:
    """Rule, method and last round of every job that a dry run lists."""
    output = _run(folder, "snakemake", "-n", "--quiet", "host")
    jobs = []
    for block in re.split(r"\n(?=(?:local)?rule )", output)[1:]:
        found = {
            key: (re.search(rf"wildcards:.*\b{key}=(\w+)", block) or [None, ""])[1]
            for key in ("method", "end")
        }
        jobs.append((re.match(r"(?:local)?rule (\w+)", block)[1], *found.values()))
    return jobs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study of two rounds, and what it printed."""
    folder = _checkout(tmp_path_factory.mktemp("checkout"), rounds=2)
    return folder, _run(folder)


@pytest.fixture
def evaluations():
    def read(folder: Path) -> dict[str, bytes]:
        paths = sorted(folder.glob("results/runs/digits/six/micro_vit/*/seed0/evaluation.parquet"))
        return {path.parts[-3]: path.read_bytes() for path in paths}

    return read


def test_one_command_ends_with_the_table(finished):
    folder, output = finished
    table = (folder / "results/tables/small/main.md").read_text()
    assert table in output
    for title in ("FedVPT", "PEP-FedPT"):
        assert title in table
    assert "results/tables/small" in output.splitlines()[-5]
    assert re.search(r"pep_fedpt/seed0: 1/1 \[.* left", output), "progress is shown"
    assert not list(folder.glob("results/**/*.tmp"))


def test_the_report_holds_every_table_and_figure_and_needs_no_network(finished):
    folder, _ = finished
    output = _run(folder, "fedloom.commands.launch", "report")
    assert output.splitlines()[-1] == "report  results/report/small.html"
    text = (folder / "results/report/small.html").read_text()
    for path in (
        "tables/small/main.html",
        "tables/small/heldout.html",
        "figures/small/accuracy.png",
    ):
        assert f"results/{path}" in text
    assert "the minimum over clients" in text, "the caption of a kind"
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=.?http", text)


def test_results_hold_what_the_tables_need(finished):
    folder, _ = finished
    for method in METHODS:
        run = folder / f"results/runs/digits/six/micro_vit/{method}/seed0"
        evaluation = pd.read_parquet(run / "evaluation.parquet")
        assert list(evaluation) == [
            "dataset", "partition", "backbone", "method", "seed",
            "round", "client_id", "domain", "participating", "personalized", "num_test",
            "num_correct", "loss",
        ]  # fmt: skip
        assert len(evaluation) == 2 * 6
        assert evaluation.groupby("round")["num_test"].sum().tolist() == [540, 540]
        assert (~evaluation["participating"]).sum() == 2
        rounds = pd.read_parquet(run / "rounds.parquet")
        labels = ["dataset", "partition", "backbone", "method", "seed"]
        cost = ["round", "seconds", "processor_seconds", "threads", "cores", "bytes_up"]
        cost.append("bytes_up_used")
        losses = ["train_loss", "guessing_loss"]
        assert list(rounds) == [*labels, *cost, "bytes_down", *losses, "clients"]
        assert rounds["round"].tolist() == [1, 2]
        clients = pd.read_parquet(run / "clients.parquet")
        assert clients.groupby("round")["client_id"].count().tolist() == [3, 3]
        assert clients["bytes_up"].sum() == rounds["bytes_up"].sum()
        assert (rounds["bytes_up_used"] == rounds["bytes_up"]).all(), "nothing was lost"
        assert list(clients)[-1] == "train_loss" and clients["received"].all()
        width = {"fedvpt": 11, "pep_fedpt": 51}[method]  # rows of 96 floats
        assert rounds["bytes_down"].tolist() == [3 * 4 * 96 * width] * 2
        log = folder / f"results/logs/train/digits/six/micro_vit/{method}/seed0/rounds/0002.log"
        assert "1/1" in log.read_text()


def test_a_dry_run_prints_counts_and_no_job_by_job_listing(finished):
    folder, _ = finished
    _study(folder, rounds=9)
    output = _run(folder, "fedloom.commands.launch", "-n")
    _study(folder, rounds=2)
    assert re.search(r"^train +14$", output, re.MULTILINE), "two methods, seven rounds each"
    assert len(output.splitlines()) < 60


def test_editing_a_method_reruns_its_runs_and_touching_files_reruns_nothing(finished):
    folder, _ = finished
    for path in folder.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            path.touch()
    file = folder / "plugins/fedvpt/plugin.py"
    text = file.read_text()
    file.write_text(text + "# edited\n")
    jobs = _would_run(folder)
    file.write_text(text)
    assert {method for _, method, _ in jobs if method} == {"fedvpt"}
    assert {rule for rule, _, _ in jobs} == {"train", "evaluate", "table", "figure", "all"}


def test_extending_runs_only_the_new_rounds_and_a_kill_costs_nothing(
    finished, tmp_path, evaluations, monkeypatch
):
    folder, _ = finished
    _study(folder, rounds=3)
    jobs = _would_run(folder)
    trained = {(method, end) for rule, method, end in jobs if rule == "train"}
    assert trained == {(method, "0003") for method in METHODS}

    process = _start(folder, "fedloom.commands.launch")
    run = folder / "results/runs/digits/six/micro_vit"
    _wait_for(run, "*/seed0/rounds/0003.safetensors", process)
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    )
    for pid in (process.pid, *map(int, children.stdout.split())):
        os.kill(pid, signal.SIGKILL)  # make's Python and Snakemake; its jobs live on
    process.stdout.close()
    process.wait()
    assert list((folder / ".snakemake/locks").glob("*")), "the lock was left behind"
    output = _run(folder)
    assert "removing the lock of a run that was killed" in output

    straight = tmp_path / "straight"
    shutil.copytree(folder / "results", straight / "results", ignore=RUNS)
    _study(straight, rounds=3)
    monkeypatch.chdir(straight)
    plan = load_plan([Path("small.yaml")])
    scenario = {"dataset": "digits", "partition": "six", "backbone": "micro_vit", "seed": 0}
    for method in METHODS:  # in this process: it neither dies nor starts again
        one_process.train(plan, SimpleNamespace(**scenario), method, artefacts=set())
    assert evaluations(folder).keys() == METHODS
    assert evaluations(folder) == evaluations(straight)


def _wait_for(folder: Path, pattern: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 600
    while not list(folder.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def untrained(finished, tmp_path):
    """The study with its data and caches made, and nothing trained yet."""
    folder = tmp_path / "untrained"
    shutil.copytree(finished[0], folder, ignore=RUNS)
    _study(folder, rounds=2)
    return folder


def test_ctrl_c_ends_everything_and_leaves_no_lock(untrained):
    folder = untrained
    process = _start(folder, "fedloom.commands.launch", start_new_session=True)
    _wait_for(folder, "results/runs/digits/six/micro_vit/*/seed0/rounds/.lock", process)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode not in (0, None)
    assert "fedloom/commands/launch.py" not in output, "no traceback of ours"
    assert not list((folder / ".snakemake/locks").glob("*"))


def test_a_signal_to_the_launcher_alone_ends_its_jobs_too(untrained):
    folder = untrained
    process = _start(folder, "fedloom.commands.launch")
    _wait_for(folder, "results/runs/digits/six/micro_vit/*/seed0/rounds/.lock", process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert process.returncode not in (0, None)
    left = [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]
    assert not left, "a job outlives the launcher"
    assert not list((folder / ".snakemake/locks").glob("*"))


def test_two_runs_at_once_take_turns(finished):
    folder, _ = finished
    with (folder / ".fedloom.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = _start(folder, "fedloom.commands.launch")
        line = process.stdout.readline()
        assert "another run is at work in this folder; waiting" in line
        assert process.poll() is None
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_a_nan_stops_the_run_and_is_named(finished):
    folder, _ = finished
    (folder / "hot.yaml").write_text(
        "methods: {hot: {plugin: head_tuning, training: {lr: 1.0e+38}}}\nselect: {methods: [hot]}\n"
    )
    process = _start(folder, "fedloom.commands.launch", extra=("hot.yaml",))
    output, _ = process.communicate()
    assert process.returncode != 0
    line = r"error: head_tuning: client_update, round \d, client \d: upload 'params/head' is not"
    assert re.search(line, output)
    assert "Traceback" not in output
    assert not list(folder.glob("results/runs/digits/*/micro_vit/hot/seed0/rounds/0001*"))
