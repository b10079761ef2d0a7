"""`python -m fedloom.jobs.server <rule> ...`: run a rule's job in a fork of a job server.

torch, timm and open_clip take seconds to import. The first job of a Snakemake process starts a
server, which imports them once and forks for every job. The job's own process, the client, sends
its folder, environment, arguments and open files, passes signals on, and ends as the fork ends.
The server ends with its Snakemake, when a file of the library has changed, or by an error, which it
writes to results/logs/job_server.log; queued clients then run their jobs themselves, as
`python -m fedloom.jobs <rule> ...`.
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

# "<token>:<pid of Snakemake>", set by the Snakefile; empty: every job imports for itself
VARIABLE = "FEDLOOM_JOB_SERVER"
# seconds for the server to accept a connection, and for a client to ask
REQUEST_TIMEOUT = 10
# bytes of a request; the kernel refuses more than some 200 KB
MOST = 1 << 20
# signals that a client passes on to its job
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FORK = multiprocessing.get_context("fork")


def main() -> None:
    """Run a job on the server or in this process, and end with its status or by its signal."""
    # the process that a client starts as the server
    if sys.argv[1] == "--serve":
        try:
            serve(socket.socket(fileno=int(sys.argv[2])), os.pidfd_open(int(sys.argv[3])))
        # not Exception: a module that it imports may call sys.exit
        except BaseException:
            log = Path(import_module("fedloom.planning.paths").LOGS, "job_server.log")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(traceback.format_exc())
        finally:
            # at once: keepers go on, and torch would take half a second to end
            os._exit(0)

    # any other process is a client
    try:
        status = try_server(sys.argv[1:])
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
    """Say in a job's log, or on stderr if that fails, that it was killed, and what it asked for."""
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


def try_server(arguments: list[str]) -> int | None:
    """Run a job on the server, started if need be, and pass signals on to it.

    Return its exit status, or minus the signal that ended it; None if it did not run.
    """
    token, _, snakemake = os.environ.get(VARIABLE, "").partition(":")
    if not token or not hasattr(os, "pidfd_open"):
        return None

    # an abstract name leaves no file; libraries read the number of threads when they are imported
    address = f"\0fedloom-{os.getuid()}-{token}-{os.environ.get('OMP_NUM_THREADS', '')}"
    start_server(address, snakemake)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        # another user may hold the name and never accept
        server.settimeout(REQUEST_TIMEOUT)

        # ask for the job, and learn the number of its process; the server may have ended, too many
        # may wait, or the request may be too long
        request = json.dumps([str(Path.cwd()), dict(os.environ), arguments]).encode()
        try:
            server.connect(address)
            if not is_mine(server):
                return None
            socket.send_fds(server, [request], [0, 1, 2])
            server.settimeout(None)
            job = int(server.recv(MOST))
        except (OSError, ValueError):
            return None

        def forward(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job, number)

        # a signal that is ignored here is passed on too: the job may heed it
        for number in FORWARDED:
            signal.signal(number, forward)

        status = server.recv(MOST)
        if not status:
            raise ConnectionError(f"the keeper of process {job} ended before its job did")
        return int(status)


def start_server(address: str, snakemake: str) -> None:
    """Start a server that listens at an address, unless one does; it ends with Snakemake's pid."""
    # of several jobs at once, the first one binds the address, and the others get an OSError
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


def is_mine(connection: socket.socket) -> bool:
    """Return True if the process at the other end runs as this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("3i", credentials)[1] == os.getuid()


def serve(listener: socket.socket, snakemake: int) -> None:
    """Fork for every client until Snakemake, a pidfd, ends or the library changes."""
    # a scheduler sends these to all processes, and jobs are to answer them
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    # so that a look for GPUs, which an import may take, does not start CUDA: no fork could use it
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    started = ctimes()

    # a fork per client
    while snakemake not in select.select([listener, snakemake], [], [])[0]:
        with listener.accept()[0] as client:
            client.settimeout(REQUEST_TIMEOUT)
            if not is_mine(client):
                continue

            # without a request, the client was killed
            data, opened, *_ = socket.recv_fds(client, MOST, 3)
            if data:
                request = json.loads(data)
                rule, _, job, *_ = request[-1]

                # an error of an import ends the server, and the client meets it by itself
                for name in modules_of(rule, job):
                    import_module(name)
                if ctimes() != started:
                    return
                FORK.Process(target=reply, args=(listener, client, opened, *request)).start()

            # the fork has its own
            for file in opened:
                os.close(file)


def ctimes() -> dict[Path, int]:
    """Return when each file of the library was changed, in nanoseconds."""
    return {file: file.stat().st_ctime_ns for file in Path(__file__).parents[1].rglob("*.py")}


def modules_of(rule: str, job: str) -> list[str]:
    """Return the modules that the server imports before it forks for a job."""
    # a job's JSON names the library of its backbone, and so the family, if it has one
    families = import_module("fedloom.config.settings").FAMILIES
    libraries = families.keys() & re.findall(r'"library":"(\w+)"', job)
    backbones = (f"fedloom.backbones.{families[library]}" for library in libraries)
    return ["fedloom.jobs.__main__", f"fedloom.jobs.{rule}_job", *backbones]


def reply(listener: socket.socket, client: socket.socket, *request: object) -> None:
    """Run a job in a fork, and tell its client the job's process and then its exit status."""
    listener.close()
    job = FORK.Process(target=run_in_fork, args=request)
    job.start()

    # if the client was killed, the connection is broken
    with contextlib.suppress(ConnectionError):
        client.send(b"%d" % job.pid)

    # a client sends nothing after its request: it is readable when it was killed
    if job.sentinel in select.select([client, job.sentinel], [], [])[0]:
        job.join()
        client.send(b"%d" % job.exitcode)
    else:
        job.kill()


def run_in_fork(opened: list[int], folder: str, environment: dict, arguments: list[str]) -> None:
    """Become the client, by its files, folder and environment, and run its job."""
    # the server has blocked the signals that jobs are to answer
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
