"""`make run`: Snakemake on all cores, after whatever an earlier run left behind.

A lock of our own says whether a run is alive: it is held by this process and by Snakemake, not by
the jobs, which may outlive both (they take turns by the run folder's lock, see engine/chunk.py).
Snakemake's own lock, which is only files, outlives a killed run and is then removed.
"""

import argparse
import fcntl
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import psutil

from fedloom.config import read

LOCK = Path(".fedloom.lock")


def running_snakemake() -> int | None:
    """The process id of a Snakemake at work in this folder that we did not start."""
    here = str(Path.cwd())
    for process in psutil.process_iter(["pid", "cwd", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == here and any(
            Path(word).name == "snakemake" for word in words[:3]
        ):
            return process.info["pid"]
    return None


def tables(arguments: list[str]) -> Path:
    """Where the study's tables lie: its name is that of the last config file that gives one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", default=[], type=Path)
    extra = parser.parse_known_args(arguments)[0].configfile
    names = [read(path).get("study", {}).get("name") for path in (Path("config.yaml"), *extra)]
    return Path("results/tables") / [name for name in names if name][-1]


def show_errors(since: float) -> None:
    """Print again, at the end, the error lines of the jobs that failed."""
    for log in sorted(Path("results/logs").rglob("*.log")):
        if log.stat().st_mtime < since:
            continue
        for line in log.read_text().splitlines():
            if line.startswith("error: "):
                print(f"\n{line}\n  in {log}", file=sys.stderr)


def show_results(folder: Path) -> None:
    """Print the main table, and where everything lies."""
    print(f"\n{(folder / 'main.md').read_text()}")
    print(f"tables  {folder}/main.{{md,csv,tex,parquet}}")
    print("runs    results/runs/<dataset>/<partition>/<backbone>/<method>/seed<k>/")
    print("        evaluation.parquet: per client and round; rounds.parquet: per round")
    print("logs    results/logs")


def snakemake(arguments: list[str], lock: IO | None = None) -> int:
    """Run Snakemake; its exit status. It inherits the lock, its jobs do not."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    kept = [] if lock is None else [lock.fileno()]
    with subprocess.Popen(command, pass_fds=kept) as process:
        # Ctrl-C reaches Snakemake as well, which ends its jobs and unlocks: wait for it
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


def main() -> int:
    """Run Snakemake with the arguments given; returns its exit status."""
    arguments = ["--cores", "all", "--rerun-incomplete", *sys.argv[1:]]
    if {"-n", "--dry-run", "--dryrun"} & set(arguments):
        return snakemake(arguments)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run is at work in this folder; waiting for it to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if any(Path(".snakemake/locks").glob("*")):
            pid = running_snakemake()
            if pid is not None:
                print(f"error: snakemake (process {pid}) works in this folder", file=sys.stderr)
                return 2
            print("removing the lock of a run that was killed", file=sys.stderr)
            status = snakemake([*arguments, "--unlock"])
            if status != 0:
                return status
        started = time.time()
        status = snakemake(arguments, lock)
    if status != 0:
        show_errors(started)
        return status
    folder = tables(sys.argv[1:])
    if (folder / "main.md").exists():
        show_results(folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
