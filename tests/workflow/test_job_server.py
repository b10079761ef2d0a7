"""A job that the job server runs is as if it had been run by itself; the server leaves nothing."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import checkout
from fedloom.cli.run import launch
from fedloom.config.settings import BackboneSettings
from fedloom.jobs import server as job_server
from fedloom.planning.job_specs import CacheJob, to_json
from fedloom.planning.rules import RULES

LOG = "results/logs/job_server.log"
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the job server needs Linux")


@contextlib.contextmanager
def _sleeping():
    with subprocess.Popen(["sleep", "6000"]) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def lasting():
    """Yield a stand-in for the Snakemake of the tests that leave its server as it is."""
    with _sleeping() as process:
        yield process


@pytest.fixture
def fresh():
    """Yield a stand-in for a Snakemake that no other test has."""
    with _sleeping() as process:
        yield process


@pytest.fixture
def snakemake(request, lasting):
    """Return a process that stands for the Snakemake whose jobs these are."""
    if "fresh" in request.fixturenames:
        return request.getfixturevalue("fresh")
    _soon(lambda: len(_servers(lasting)) <= 1)  # the last test's job has ended
    return lasting


@pytest.fixture
def start(snakemake, tmp_path):
    """Return start(), which starts a job of the rule that imports least, in an empty folder."""
    environment = os.environ | {job_server.VARIABLE: f"test{snakemake.pid}:{snakemake.pid}"}

    def start(*arguments: str, rule: str = "choose", **environ: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "fedloom.jobs.server", rule, "--job", "{}", *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment | environ,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def _servers(snakemake: subprocess.Popen) -> list[psutil.Process]:
    """Return the job servers of a Snakemake, keepers and jobs, which have the same command."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "--serve" in (process.info["cmdline"] or [])
        and process.info["cmdline"][-1] == str(snakemake.pid)
    ]


def _soon(condition) -> None:
    """Wait until a condition holds, and fail after a minute."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def _blocked(
    start, snakemake, tmp_path: Path, ignores_usr1: bool = False
) -> tuple[subprocess.Popen, psutil.Process]:
    """Start a job that waits for ever to open its log; return its client and its process.

    The client knows by then that the job has begun; else it would run the job itself.
    """
    if not (tmp_path / "fifo").exists():
        os.mkfifo(tmp_path / "fifo")
    # a test before this one may have run Snakemake in this process, which ignores it from then on
    handler = signal.SIG_IGN if ignores_usr1 else signal.SIG_DFL
    before = signal.signal(signal.SIGUSR1, handler)
    client = start("--log", "fifo")
    signal.signal(signal.SIGUSR1, before)
    _soon(lambda: len(_servers(snakemake)) == 3)
    _soon(lambda: launch._handles_sigterm(client.pid))
    processes = _servers(snakemake)
    parents = {process.ppid() for process in processes}
    (leaf,) = (process for process in processes if process.pid not in parents)
    return client, leaf


def test_a_job_ends_as_it_would_by_itself(start, tmp_path):
    by_server = start("--log", "a.log")
    alone = start("--log", "b.log", **{job_server.VARIABLE: ""})
    outcomes = [(*process.communicate(), process.returncode) for process in (by_server, alone)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1].startswith("error: --job")
    assert outcomes[0][2] == 2
    assert (tmp_path / "a.log").read_text() == (tmp_path / "b.log").read_text() != ""


def test_jobs_of_a_snakemake_share_one_server(start, snakemake):
    for client in [start() for _ in range(3)]:
        assert client.wait() == 2
        client.communicate()
    _soon(lambda: len(_servers(snakemake)) == 1)


def test_jobs_with_other_threads_have_another_server(start, fresh):
    for threads in "1", "2":
        start(OMP_NUM_THREADS=threads).communicate()
    _soon(lambda: len(_servers(fresh)) == 2)


def test_the_server_imports_the_library_of_a_jobs_backbone():
    """A fork that imported timm itself would take a second longer."""
    backbone = BackboneSettings("b", "timm", {"name": "micro_vit", "weights": "none"})
    names = job_server.modules_of("cache", to_json(CacheJob("features", "digits", backbone)))
    assert {"fedloom.jobs.cache_job", "fedloom.backbones.vit"} <= set(names)


def test_the_server_imports_what_jobs_of_a_rule_import_later():
    """Each fork that imported pandas or matplotlib itself would take a third of a second longer."""
    assert "pandas" in job_server.modules_of("train", "{}")
    assert "matplotlib.pyplot" in job_server.modules_of("figure", "{}")
    assert not {"pandas", "matplotlib.pyplot"} & set(job_server.modules_of("evaluate", "{}"))
    for rule in job_server.IMPORTED_LATER:
        assert rule in RULES


def test_the_server_ends_with_its_snakemake(start, fresh):
    start().communicate()
    assert _servers(fresh)
    fresh.kill()
    _soon(lambda: not _servers(fresh))


def test_a_job_outlives_snakemake(start, fresh, tmp_path):
    client, _ = _blocked(start, fresh, tmp_path)
    fresh.kill()
    with (tmp_path / "fifo").open():
        _, error = client.communicate()
    assert client.returncode == 2
    assert error.startswith("error: --job")
    _soon(lambda: not _servers(fresh))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_job(start, fresh, tmp_path, number):
    client, process = _blocked(start, fresh, tmp_path)
    client.send_signal(number)
    assert client.wait() == -number
    _soon(lambda: not process.is_running())


def test_a_signal_that_the_client_ignores_is_ignored_by_the_job(start, fresh, tmp_path):
    """Job scripts of schedulers let all jobs but those of training ignore the signal."""
    client, process = _blocked(start, fresh, tmp_path, ignores_usr1=True)
    client.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    assert process.is_running()
    client.send_signal(signal.SIGTERM)
    assert client.wait() == -signal.SIGTERM


def test_a_killed_job_kills_its_client(start, snakemake, tmp_path):
    client, process = _blocked(start, snakemake, tmp_path)
    process.kill()
    assert client.wait() == -signal.SIGKILL


def test_a_killed_job_says_in_its_log_what_memory_it_asked_for(tmp_path, capsys):
    log = tmp_path / "job.log"
    log.write_text("round 1\n")
    job_server.tell_of_kill(["--job", "{}", "--memory", "2000", "--log", str(log)])
    first, error = log.read_text().splitlines()
    assert first == "round 1"
    assert re.match(r"error: killed by SIGKILL; .* asked for 2000 MB, this machine has \d+;", error)
    job_server.tell_of_kill(["--log", str(tmp_path / "gone/job.log")])
    assert capsys.readouterr().err.startswith("error: killed by SIGKILL; ")


def test_a_job_ends_with_its_killed_client(start, snakemake, tmp_path):
    client, process = _blocked(start, snakemake, tmp_path)
    client.kill()
    _soon(lambda: not process.is_running())
    assert start().wait() == 2  # the server lives on


def test_a_job_ends_whose_client_was_killed_before_it_began(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    client, killed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    killed.close()
    arguments = ["choose", "--job", "{}", "--log", "fifo"]
    request = (socket.socket(), client, [], str(tmp_path), dict(os.environ), arguments)
    keeper = job_server.FORK.Process(target=job_server.reply, args=request)
    keeper.start()
    keeper.join(30)
    assert keeper.exitcode == 0
    client.close()


def test_a_job_outlives_its_server(start, fresh, tmp_path):
    client, process = _blocked(start, fresh, tmp_path)
    process.parent().parent().kill()
    with (tmp_path / "fifo").open():
        _, error = client.communicate()
    assert client.returncode == 2
    assert error.startswith("error: --job")


def test_a_client_fails_with_its_killed_keeper(start, snakemake, tmp_path):
    client, process = _blocked(start, snakemake, tmp_path)
    process.parent().kill()
    process.kill()
    assert f"ConnectionError: the keeper of process {process.pid}" in client.communicate()[1]
    assert client.returncode == 1


def test_a_scheduler_that_signals_all_processes_does_not_end_the_server(start, snakemake):
    start().communicate()
    _soon(lambda: len(_servers(snakemake)) == 1)
    (server,) = _servers(snakemake)
    for number in job_server.FORWARDED:
        server.send_signal(number)
    start().communicate()
    assert server in _servers(snakemake)


def test_a_job_imports_for_itself_where_its_snakemake_has_ended(start, fresh):
    fresh.kill()
    fresh.wait()
    assert start().wait() == 2
    assert not _servers(fresh)


def test_a_job_imports_for_itself_where_the_servers_name_is_taken(start, fresh):
    """Everybody sees the names of sockets, and a process that took one need not accept."""
    with contextlib.ExitStack() as opened:
        taken = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        threads = os.environ.get("OMP_NUM_THREADS", "")
        taken.bind(f"\0fedloom-{os.getuid()}-test{fresh.pid}:{threads}".replace(":", "-"))
        taken.listen(0)
        with pytest.raises(BlockingIOError):
            while True:  # until no more connections may wait
                kind = socket.SOCK_SEQPACKET
                waiting = opened.enter_context(socket.socket(socket.AF_UNIX, kind))
                waiting.setblocking(False)
                waiting.connect(taken.getsockname())
        assert start().wait() == 2
    assert not _servers(fresh)


def _library(tmp_path: Path) -> Path:
    """Return the library in a copy of the checkout, for tests that edit it."""
    return checkout.copy_to(tmp_path / "checkout") / "workflow"


def test_a_job_that_cannot_be_imported_says_so_and_disturbs_no_other(start, fresh, tmp_path):
    library = _library(tmp_path)
    (library / "fedloom/jobs/dataset_job.py").write_text('"""A job."""\n\nnonsense\n')
    path = {"PYTHONPATH": str(library)}
    os.mkfifo(tmp_path / "fifo")
    at_work = start("--log", "fifo", **path)
    _soon(lambda: len(_servers(fresh)) == 3)
    broken = start(rule="dataset", **path)
    assert "NameError: name 'nonsense'" in broken.communicate()[1]
    assert broken.returncode == 1
    _soon(lambda: "NameError: name 'nonsense'" in "".join(map(Path.read_text, tmp_path.glob(LOG))))
    assert start(**path).wait(60) == 2
    with (tmp_path / "fifo").open():
        assert at_work.communicate()[1].startswith("error: --job")


def test_jobs_run_the_library_as_it_is_now(start, fresh, tmp_path):
    """A file that a server imported is edited, changed back to what the plan knows, or deleted."""
    library = _library(tmp_path)
    file = library / "fedloom/jobs/choose_job.py"
    planned = file.read_text()
    edited = planned + '\nraise SystemExit("edited")\n'
    for text, said in ((planned, "--job"), (edited, "edited"), (planned, "--job")):
        file.write_text(text)
        assert said in start(PYTHONPATH=str(library)).communicate()[1]
    (library / "fedloom/jobs/table_job.py").unlink()
    assert "--job" in start(PYTHONPATH=str(library)).communicate()[1]
    _soon(lambda: not _servers(fresh))
    assert not (tmp_path / LOG).exists(), "an edit is not an error of the server"
