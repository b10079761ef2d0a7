"""The real workflow, end to end: run, rerun, extend, kill and go on."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest

import checkout
import one_process
from fedloom.cli.run import launch
from fedloom.planning.load_plan import load_plan

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
    config = checkout.copy_to(folder) / "config.yaml"
    digits = "{source: sklearn_digits"
    config.write_text(config.read_text().replace(digits, f"{digits}, max_train: 240, max_test: 60"))
    _study(folder, rounds)
    return folder


def _study(folder: Path, rounds: int) -> None:
    (folder / "small.yaml").write_text(STUDY.format(rounds=rounds))


LAUNCH = ("fedloom", "run", "--")


def _hear_ctrl_c() -> None:
    """Let the process hear Ctrl-C, to which a shell makes all processes in its background deaf."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ignore_ctrl_c() -> None:
    """Make the process deaf to Ctrl-C, as a script does with what it starts in its background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _start(
    folder: Path,
    words: tuple[str, ...] = LAUNCH,
    extra: tuple = (),
    prepare: Callable[[], None] = _hear_ctrl_c,
    **options,
) -> subprocess.Popen:
    configs = ("--configfile", "small.yaml", *extra)
    command = [sys.executable, "-m", *words, *configs]
    environment = os.environ | {"PYTHONPATH": str(folder / "workflow")}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=prepare,
        **options,
    )


def _run(folder: Path, *words: str) -> str:
    process = _start(folder, words or LAUNCH)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def _would_run(folder: Path) -> list[tuple[str, str | None]]:
    """Return rule and method of every job that a dry run lists."""
    output = _run(folder, "snakemake", "-n", "--quiet", "host")
    blocks = re.split(r"\n(?:local)?rule ", output)[1:]
    methods = [re.search(r"wildcards:.*\bmethod=(\w+)", block) for block in blocks]
    rules = [block.split(":")[0] for block in blocks]
    return [(rule, found and found[1]) for rule, found in zip(rules, methods, strict=True)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a finished study of two rounds, and what it printed."""
    folder = _checkout(tmp_path_factory.mktemp("checkout"), rounds=2)
    return folder, _run(folder)


def _evaluations(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every method's evaluation."""
    paths = folder.glob("results/runs/digits/six/micro_vit/*/seed0/evaluation.parquet")
    return {path.parts[-3]: path.read_bytes() for path in paths}


def test_one_command_ends_with_the_table(finished):
    folder, output = finished
    table = (folder / "results/tables/small/main.md").read_text()
    assert table in output
    for title in ("FedVPT", "PEP-FedPT"):
        assert title in table
    assert "results/tables/small" in output
    line = r"^finished  train digits/six/micro_vit/pep_fedpt/seed0: 2/2 loss=.*% of the work"
    assert re.search(line, output, re.M), "progress is shown"
    assert "Select jobs" not in output, "Snakemake's own lines are in its log"
    assert not list(folder.glob("results/**/*.fedloom-tmp"))


def test_the_report_holds_every_table_and_figure_and_needs_no_network(finished):
    folder, _ = finished
    output = _run(folder, "fedloom", "report", "--")
    assert output.splitlines()[-1] == "report  results/report/small.html"
    text = (folder / "results/report/small.html").read_text()
    for path in (
        "tables/small/main.html",
        "tables/small/heldout.html",
        "figures/small/accuracy.png",
    ):
        assert f'href="../{path}"' in text
    assert "the minimum over clients" in text, "the caption of a kind"
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=.?http", text)
    words = re.sub(r"<[^>]+>", " ", text[text.index('id="Costs"') :]).split()
    assert words[words.index("train") + 1] == "4", "a log of two jobs of both methods"
    assert f"{platform.python_version()}," in words


def test_results_hold_what_the_tables_need(finished):
    folder, _ = finished
    for method in METHODS:
        run = folder / f"results/runs/digits/six/micro_vit/{method}/seed0"
        evaluation = pd.read_parquet(run / "evaluation.parquet")
        labels = ["dataset", "partition", "backbone", "method", "seed"]
        assert list(evaluation) == [
            *labels, "round", "client_id", "domain", "participating", "personalized", "num_test",
            "num_correct", "loss",
        ]  # fmt: skip
        assert len(evaluation) == 2 * 6
        assert evaluation.groupby("round")["num_test"].sum().tolist() == [60, 60]
        assert (~evaluation["participating"]).sum() == 2
        rounds = pd.read_parquet(run / "rounds.parquet")
        assert list(rounds) == [
            *labels, "round", "seconds", "processor_seconds", "threads", "cores", "bytes_up",
            "bytes_up_used", "bytes_down", "train_loss", "guessing_loss", "clients",
        ]  # fmt: skip
        assert rounds["round"].tolist() == [1, 2]
        clients = pd.read_parquet(run / "clients.parquet")
        assert clients.groupby("round")["client_id"].count().tolist() == [3, 3]
        assert clients["bytes_up"].sum() == rounds["bytes_up"].sum()
        assert (rounds["bytes_up_used"] == rounds["bytes_up"]).all(), "nothing was lost"
        assert list(clients)[-1] == "train_loss" and clients["received"].all()
        width = {"fedvpt": 11, "pep_fedpt": 51}[method]  # rows of 96 floats
        assert rounds["bytes_down"].tolist() == [3 * 4 * 96 * width] * 2
        log = folder / f"results/logs/train/digits/six/micro_vit/{method}/seed0/rounds/0002.log"
        assert "2/2" in log.read_text()


def test_editing_a_method_reruns_its_runs_and_touching_files_reruns_nothing(finished):
    folder, _ = finished
    for path in folder.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            path.touch()
    file = folder / "plugins/methods/fedvpt/plugin.py"
    text = file.read_text()
    file.write_text(text + "# edited\n")
    jobs = _would_run(folder)
    file.write_text(text)
    assert {method for _, method in jobs if method} == {"fedvpt"}
    assert {rule for rule, _ in jobs} == {"train", "evaluate", "table", "figure", "all"}


def test_extending_runs_only_the_new_rounds_and_a_kill_costs_nothing(
    finished, tmp_path, monkeypatch
):
    folder, _ = finished
    _study(folder, rounds=3)
    output = _run(folder, *LAUNCH, "-n")
    assert re.search(r"^train +2$", output, re.MULTILINE), "a round of each method"
    assert len(output.splitlines()) < 60, "counts, and no list of jobs"
    before = {
        path: path.stat().st_mtime_ns
        for path in folder.glob("results/runs/*/*/*/*/*/rounds/000[12].*")
    }

    process = _start(folder)
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
    assert before and all(path.stat().st_mtime_ns == written for path, written in before.items())

    straight = tmp_path / "straight"
    shutil.copytree(folder / "results", straight / "results", ignore=RUNS)
    _study(straight, rounds=3)
    monkeypatch.chdir(straight)
    plan = load_plan([Path("small.yaml")])
    scenario = {"dataset": "digits", "partition": "six", "backbone": "micro_vit", "seed": 0}
    for method in METHODS:  # in this process: it neither dies nor starts again
        one_process.train(plan, SimpleNamespace(**scenario), method, artefacts=set())
    assert _evaluations(folder).keys() == METHODS
    assert _evaluations(folder) == _evaluations(straight)


def _wait_for(folder: Path, pattern: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 600
    while not list(folder.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "prepare"), [(signal.SIGINT, _hear_ctrl_c), (signal.SIGTERM, _ignore_ctrl_c)]
)
def test_a_signal_ends_everything_and_leaves_no_lock(finished, tmp_path, number, prepare):
    """Ctrl-C reaches the launcher and all below it; SIGTERM here reaches the launcher alone.

    With SIGTERM, the run is one that a script has started in its background, so that it is born
    deaf to SIGINT, on which Snakemake ends its jobs. It must end long before it would be killed.
    """
    folder = tmp_path / "untrained"  # data and caches are there
    shutil.copytree(finished[0], folder, ignore=RUNS)
    _study(folder, rounds=1)
    process = _start(folder, prepare=prepare, start_new_session=True)
    _wait_for(folder, "results/runs/digits/six/micro_vit/*/seed0/rounds/.lock", process)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    output, _ = process.communicate(timeout=launch.STOP_TIMEOUT / 2)
    assert process.returncode == 128 + number
    assert "stopped; run the same command again" in output
    assert "failed" not in output
    assert "fedloom/cli/run/launch.py" not in output, "no traceback of the launcher"
    left = [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]
    assert not left, "a job outlives the launcher"
    assert not list((folder / ".snakemake/locks").glob("*"))


def test_waiting_jobs_are_not_checked_again_and_again(finished):
    """Snakemake checks them after every job while it has a limit of jobs per second."""
    folder, _ = finished
    (folder / "unlimited.py").write_text(
        "import sys\n"
        "from snakemake.cli import main\n"
        "from snakemake.scheduling.job_scheduler import JobScheduler\n"
        "JobScheduler._schedule_reevalutation = lambda *_: sys.exit('checked again')\n"
        "main(sys.argv[1:])\n"
    )
    table = folder / "results/tables/small/main.md"
    text = table.read_text()
    table.unlink()
    _run(folder, "unlimited", "--cores", "1")
    assert table.read_text() == text


def test_a_nan_stops_the_run_and_is_named(finished):
    folder, _ = finished
    (folder / "hot.yaml").write_text(
        "methods: {hot: {plugin: head_tuning, training: {lr: 1.0e+38, epochs: 3}}}\n"
        "select: {methods: [hot]}\n"
    )
    process = _start(folder, extra=("hot.yaml",))
    output, _ = process.communicate()
    assert process.returncode != 0
    line = r"error: head_tuning: client_update, round \d, client \d: upload 'params/head' is not"
    assert re.search(line, output)
    assert "Traceback" not in output
    assert "RuleException" not in output, "the job's own line says it"
    assert not list(folder.glob("results/runs/digits/*/micro_vit/hot/seed0/rounds/0001*"))
