"""`python -m fedloom.jobs.server <rule> ...`: run a rule's job in a fork of a job server.

torch, timm and open_clip take seconds to import, and pandas or matplotlib a part of one. A server
imports them once for many jobs:

1. The first job of a Snakemake process starts the server.
2. The process that Snakemake starts for a job is the *client*. It sends its folder, environment,
   arguments and open files to the server.
3. The server forks a *keeper* for each client. The keeper forks the job, and tells the client how
   the job ended.
4. The client passes signals on to the job, and ends as the job ended.

The server ends when its Snakemake ends, or when a file of the library has changed. It also ends at
an error, which it writes to results/logs/job_server.log. Clients that still wait then run their
jobs themselves, as `python -m fedloom.jobs <rule> ...`.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path

# The Snakefile sets this variable to "<token>:<pid of Snakemake>". If it is empty, there is no
# server, and every job imports for itself.
VARIABLE = "FEDLOOM_JOB_SERVER"
# seconds within which the server must accept a connection, and a client must send its request
REQUEST_TIMEOUT = 10
# the most bytes that a receiver accepts; the kernel refuses to send more than some 200 KB
MOST = 1 << 20
# signals that a client passes on to its job
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FORK = multiprocessing.get_context("fork")
# modules that the jobs of a rule import while they run: inside a function, through pyarrow, or in a
# plugin's file
IMPORTED_LATER = {
    "train": ("pandas", "scipy.optimize"),
    "artefact": ("pandas", "scipy.optimize"),
    "table": ("pandas.io.formats.style", "scipy.stats"),
    "figure": ("matplotlib.pyplot",),
    "partition_chart": ("matplotlib.pyplot",),
}


def main() -> None:
    """Run a job on the server or in this process; end with the status or the signal of the job."""
    # a client has started this process as the server
    if sys.argv[1] == "--serve":
        try:
            serve(socket.socket(fileno=int(sys.argv[2])), os.pidfd_open(int(sys.argv[3])))
        # not Exception: a module that the server imports may call sys.exit
        except BaseException:
            log = Path(import_module("fedloom.planning.paths").LOGS, "job_server.log")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(traceback.format_exc())
        finally:
            # end at once: torch would take half a second, and the keepers must go on
            os._exit(0)

    # any other process is a client
    try:
        status = _try_server(sys.argv[1:])
    except KeyboardInterrupt:
        status = -signal.SIGINT

    # without a server, the job runs in this process
    if status is None:
        import_module("fedloom.jobs.__main__").main()

    # end by the signal that ended the job, so that Snakemake sees what happened
    elif status < 0:
        if -status == signal.SIGKILL:
            tell_of_kill(sys.argv[2:])
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def tell_of_kill(arguments: list[str]) -> None:
    """Write to a job's log that the job was killed, and how much memory it had asked for.

    If the log cannot be written, print the line on stderr.
    """
    # the job's own arguments say where it logs, and how much memory it asked for
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", default="an unknown number of")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    given, _ = parser.parse_known_args(arguments)

    had = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e6
    line = (
        "error: killed by SIGKILL; if nobody did that, memory ran out: it asked for "
        f"{given.memory} MB, this machine has {had:.0f}; run fewer jobs at once"
    )

    # at the end of the log that the job has begun
    try:
        with given.log.open("r+", encoding="utf-8") as log:
            log.seek(0, os.SEEK_END)
            log.write(f"{line}\n")
    except OSError:
        print(line, file=sys.stderr)


def _try_server(arguments: list[str]) -> int | None:
    """Run a job on the server, which is started if there is none, and pass signals on to the job.

    Return the exit status of the job, or minus the number of the signal that ended it. Return None
    if the server did not run the job. Raise a ConnectionError if the job's keeper ended first.
    """
    token, _, snakemake = os.environ.get(VARIABLE, "").partition(":")
    if not token or not hasattr(os, "pidfd_open"):
        return None

    # An abstract address leaves no file. The number of threads is a part of it, since libraries
    # read the number when they are imported.
    address = f"\0fedloom-{os.getuid()}-{token}-{os.environ.get('OMP_NUM_THREADS', '')}"
    _start_server(address, snakemake)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        # another user may listen at the address and never accept
        server.settimeout(REQUEST_TIMEOUT)

        # Ask for the job, and receive the number of its process. This fails if the server has
        # ended, if too many clients wait, or if the request is too long.
        request = json.dumps([str(Path.cwd()), dict(os.environ), arguments]).encode()
        try:
            server.connect(address)
            if not _is_mine(server):
                return None
            socket.send_fds(server, [request], [0, 1, 2])
            server.settimeout(None)
            job = int(server.recv(MOST))
        except (OSError, ValueError):
            return None

        def forward(signal_number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job, signal_number)

        # a signal that is ignored here is passed on too: the job may handle it
        for signal_number in FORWARDED:
            signal.signal(signal_number, forward)

        status = server.recv(MOST)
        if not status:
            raise ConnectionError(f"the keeper of process {job} ended before its job did")
        return int(status)


def _start_server(address: str, snakemake: str) -> None:
    """Start a server that listens at an address, unless there is one already.

    `snakemake` is the pid of Snakemake, with which the server ends.
    """
    # if several jobs try this at once, one binds the address, and the others get an OSError
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener, contextlib.suppress(OSError):
        listener.bind(address)
        listener.listen(1024)

        # the server inherits the socket, and no terminal
        file = listener.fileno()
        null = subprocess.DEVNULL
        command = [sys.executable, "-m", "fedloom.jobs.server", "--serve", str(file), snakemake]
        subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, pass_fds=[file], start_new_session=True
        )


def _is_mine(connection: socket.socket) -> bool:
    """Return True if the process at the other end runs as this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("3i", credentials)[1] == os.getuid()


def serve(listener: socket.socket, snakemake: int) -> None:
    """Fork a keeper for every client, until Snakemake ends or the library changes.

    `snakemake` is a pidfd of Snakemake's process.
    """
    # a scheduler sends these signals to all processes; only jobs are to handle them
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # An import may look for GPUs. With this variable, it does so without CUDA, which no fork could
    # use once it is started.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    started = _change_times()

    # fork once for each client
    while snakemake not in select.select([listener, snakemake], [], [])[0]:
        with listener.accept()[0] as client:
            client.settimeout(REQUEST_TIMEOUT)
            if not _is_mine(client):
                continue

            # if there is no data, the client was killed
            data, opened, *_ = socket.recv_fds(client, MOST, 3)
            if data:
                request = json.loads(data)
                rule, _, job, *_ = request[-1]

                # a failed import ends the server; the client then runs the job and reports it
                for name in modules_of(rule, job):
                    import_module(name)
                if _change_times() != started:
                    return
                FORK.Process(target=reply, args=(listener, client, opened, *request)).start()

            # the fork has copies of its own
            for file in opened:
                os.close(file)


def _change_times() -> dict[Path, int]:
    """Return the time, in nanoseconds since 1970, at which each file of the library was changed."""
    return {file: file.stat().st_ctime_ns for file in Path(__file__).parents[1].rglob("*.py")}


def modules_of(rule: str, job: str) -> list[str]:
    """Return the modules that the server imports before it forks for a job."""
    # the JSON of a job with a backbone names the backbone's library, which determines its family
    family_of = import_module("fedloom.config.settings").family_of
    libraries = sorted(set(re.findall(r'"library":"(\w+)"', job)))
    backbones = (f"fedloom.backbones.{family_of(library)}" for library in libraries)
    later = IMPORTED_LATER.get(rule, ())
    return ["fedloom.jobs.__main__", f"fedloom.jobs.{rule}_job", *backbones, *later]


def reply(listener: socket.socket, client: socket.socket, *request: object) -> None:
    """Be a job's keeper: fork the job, and tell its client how it ends.

    The client receives the number of the job's process, and later the job's exit status.
    """
    listener.close()
    job = FORK.Process(target=_run_in_fork, args=request)
    job.start()

    # if the client was killed, the connection is broken
    with contextlib.suppress(ConnectionError):
        client.send(b"%d" % job.pid)

    # a client sends nothing after its request, so its connection is readable only if it was killed
    if job.sentinel in select.select([client, job.sentinel], [], [])[0]:
        job.join()
        client.send(b"%d" % job.exitcode)
    else:
        job.kill()


def _run_in_fork(opened: list[int], folder: str, environment: dict, arguments: list[str]) -> None:
    """Take over the files, folder and environment of a client, and run its job."""
    # the server has blocked the signals that jobs are to handle
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    # the client's files are standard input, output and error
    for target, file in enumerate(opened):
        os.dup2(file, target)
        os.close(file)

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["fedloom", *arguments]
    import_module("fedloom.jobs.__main__").main()


if __name__ == "__main__":
    main()
