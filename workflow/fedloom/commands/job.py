"""`python -m fedloom.commands.job <stage> ...`: a rule's job, by the job server where there is one.

torch, timm and open_clip take seconds to import. The first job of a Snakemake process starts a job
server (fedloom.commands.job_server), which imports them once and forks a process for every job.
This module imports only the standard library: it hands the job's arguments, environment, folder
and open files to the server, passes signals on, and ends as the job ended. Without a server, it is
`python -m fedloom <stage> ...`.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

# "<token>:<pid of Snakemake>", set by the Snakefile; empty: every job imports for itself
SERVER = "FEDLOOM_JOB_SERVER"
PATIENCE = 10  # seconds for the server to accept a connection, and for a client to ask
LENGTH = struct.Struct("!I")
TIME = struct.Struct("ll")  # seconds and microseconds; 0: without end
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def address(token: str) -> str:
    """Return the server's socket: a name of Linux's own, which no file can leave behind.

    Libraries read the number of threads when they are imported, so it is a part of the name.
    """
    return f"\0fedloom-{os.getuid()}-{token}-{os.environ.get('OMP_NUM_THREADS', '')}"


def same_user(connection: socket.socket) -> bool:
    """Return True if the process at the other end runs as this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("3i", credentials)[1] == os.getuid()


def connect(token: str, snakemake: str) -> socket.socket | None:
    """Return a connection to the server, which is started if need be; None where none can be."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address(token))
        except OSError:  # another job was first
            pass
        else:
            listener.listen(128)
            start(listener, snakemake)
    connection = socket.socket(socket.AF_UNIX)
    try:
        # another user may have taken the name, and never accept; Python's own timeout does not wait
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIME.pack(PATIENCE, 0))
        connection.connect(address(token))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIME.pack(0, 0))
        if same_user(connection):
            return connection
    except OSError:  # it ended between the two, or did not accept
        pass
    connection.close()
    return None


def start(listener: socket.socket, snakemake: str) -> None:
    """Start a server, in a session of its own so that only its clients end its jobs.

    It writes nothing: where an import fails there, the job imports for itself and says why.
    """
    subprocess.Popen(
        [sys.executable, "-m", "fedloom.commands.job_server", str(listener.fileno()), snakemake],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,
    )


def send(connection: socket.socket, message: Any) -> None:
    """Send a message as JSON after its length."""
    data = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """Return the next message, or None if the other end is gone."""
    head = _exactly(connection, LENGTH.size)
    body = head and _exactly(connection, LENGTH.unpack(head)[0])
    return json.loads(body) if body else None


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def served(connection: socket.socket, arguments: list[str]) -> int | None:
    """Let the server run a job, and return its exit status, or minus the signal that ended it.

    None if the server could not start the job: it has ended, or an import failed there.

    Raises:
        ConnectionError: the server ended while the job ran.
    """
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "ignored": [n for n in FORWARDED if signal.getsignal(n) is signal.SIG_IGN],
    }
    try:
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        send(connection, request)
        job = receive(connection)
    except ConnectionError:
        return None
    if job is None:
        return None

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(job, number)

    for number in FORWARDED:
        signal.signal(number, forward)  # one that is ignored too: the job may heed it
    status = receive(connection)
    if status is None:
        raise ConnectionError(f"the job server of process {job} ended before its job did")
    return status


def end_as(status: int) -> None:
    """End this process as another one ended: with its exit status, or by the same signal."""
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def by_server(arguments: list[str]) -> int | None:
    """Run a job by the server and return its status; None if there is none to run it."""
    token, _, snakemake = os.environ.get(SERVER, "").partition(":")
    if not token or not hasattr(os, "pidfd_open"):
        return None
    connection = connect(token, snakemake)
    if connection is None:
        return None
    with connection:
        return served(connection, arguments)


def main() -> None:
    """Run a job and end as it ended."""
    try:
        status = by_server(sys.argv[1:])
    except KeyboardInterrupt:
        end_as(-signal.SIGINT)
    if status is not None:
        end_as(status)
    from fedloom.commands.cli import main as run

    run()


if __name__ == "__main__":
    main()
