"""The job server: imports what jobs need once, and forks a process for every job.

It serves the jobs of one Snakemake process (see fedloom.commands.job) and ends with it, after its
last job. It has one thread and computes nothing, so that a fork is a process as if it had just
imported.
Jobs compare their sources with the plan's as they are on disk, not as they were imported. So a
server takes no more jobs once a file of the library has been written since it started.
"""

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import selectors
import signal
import socket
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedloom.commands import job

# what jobs import only when their backbone is known
BACKBONES = ("fedloom.backbones.vit", "fedloom.backbones.clip")
WITH_BACKBONE = ("train", "artefact", "cache", "prototypes", "block_accuracy")

LIBRARY = Path(__file__).parents[1]
PR_SET_PDEATHSIG = 1
DEFAULT = {signal.SIGINT: signal.default_int_handler}  # Python's own


def preload(stage: str) -> None:
    """Import what a stage's jobs import."""
    backbones = BACKBONES if stage in WITH_BACKBONE else ()
    for module in ("fedloom.commands.cli", f"fedloom.stages.{stage}", *backbones):
        importlib.import_module(module)


def sources() -> dict[str, tuple[int, int]]:
    """Return when every file of the library was written, and its inode."""
    stats = {str(file): file.stat() for file in LIBRARY.rglob("*.py")}
    return {file: (stat.st_mtime_ns, stat.st_ino) for file, stat in stats.items()}


def serve(listener: socket.socket, snakemake: int) -> None:
    """Run the jobs that clients ask for, each in a fork, until Snakemake and they have ended.

    Args:
        snakemake: file descriptor that becomes readable when Snakemake ends (a pidfd).
    """
    imported = sources()
    jobs: dict[int, tuple[BaseProcess, socket.socket]] = {}  # and its client, by sentinel
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    ready.register(snakemake, selectors.EVENT_READ)
    while jobs or listener.fileno() != -1:
        key, _ = ready.select()[0]  # one at a time, since it may end what the next is of
        if key.fileobj is listener and sources() != imported:
            ready.unregister(listener)
            listener.close()  # who waits there imports for itself, and who comes, starts another
        elif key.fileobj is listener:
            started = start(listener)
            if started is not None:
                process, client = started
                jobs[process.sentinel] = started
                ready.register(process.sentinel, selectors.EVENT_READ)
                ready.register(client, selectors.EVENT_READ, process)
        elif key.fd == snakemake:
            ready.unregister(snakemake)
            if listener in ready.get_map():
                ready.unregister(listener)
                listener.close()
        elif key.fd in jobs:
            ready.unregister(key.fd)
            process, client = jobs.pop(key.fd)
            if client in ready.get_map():
                ready.unregister(client)
            process.join()
            tell(client, process.exitcode)
            client.close()
            process.close()
        else:  # a client sends nothing after its request: it was killed, and its job follows
            ready.unregister(key.fileobj)
            key.data.kill()


def start(listener: socket.socket) -> tuple[BaseProcess, socket.socket] | None:
    """Start the job that the next client asks for, and tell the client its process."""
    client, _ = listener.accept()
    client.settimeout(job.PATIENCE)
    files: list[int] = []
    try:
        if job.same_user(client):
            _, files, _, _ = socket.recv_fds(client, 1, 3)
            request = job.receive(client)
            if request is not None:
                preload(request["arguments"][0])
                process = multiprocessing.get_context("fork").Process(
                    target=be, args=(request, files, os.getpid(), listener)
                )
                process.start()
                tell(client, process.pid)
                return process, client
    except Exception:  # the client meets it by itself, and says it
        pass
    finally:
        for file in files:
            os.close(file)
    client.close()
    return None


def tell(client: socket.socket, number: int | None) -> None:
    """Send a client its job's process or exit status, unless the client was killed."""
    with contextlib.suppress(ConnectionError):
        job.send(client, number)


def be(request: dict, files: list[int], server: int, listener: socket.socket) -> None:
    """Run a request's job in this process, which ends with the server at the latest."""
    listener.close()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        return
    for number in job.FORWARDED:
        signal.signal(number, DEFAULT.get(number, signal.SIG_DFL))
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["fedloom", *request["arguments"]]
    importlib.import_module("fedloom.commands.cli").main()


def main() -> None:
    """Serve until Snakemake has ended."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    for number in job.FORWARDED:  # a scheduler sends them to all processes; jobs have to answer
        signal.signal(number, signal.SIG_IGN)
    # so that a look for GPUs, which an import may take, does not start CUDA: no fork could use it
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        snakemake = os.pidfd_open(int(sys.argv[2]))
    except ProcessLookupError:  # it ended meanwhile
        return
    serve(listener, snakemake)
    os._exit(0)  # nothing is left to be done, and torch takes half a second to end


if __name__ == "__main__":
    main()
