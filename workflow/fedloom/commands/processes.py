"""Processes of a folder, told apart by their commands: Snakemake and its jobs."""

from collections.abc import Iterator
from pathlib import Path

import psutil

# the modules that run a job, and the file of the command
STARTERS = {"fedloom", "fedloom.commands.job", "fedloom.commands.cli"}


def of_folder(folder: Path) -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield the processes that work in a folder, each with the words of its command.

    Those of other users, whose folders only root may know, are left out.
    """
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if process.info["cwd"] == str(folder):
            yield process, process.info["cmdline"] or []


def is_snakemake(words: list[str]) -> bool:
    """Return True if a command is Snakemake's."""
    return any(Path(word).name == "snakemake" for word in words[:3])


def stage_of(words: list[str]) -> str | None:
    """Return the stage that a command runs as a rule's job; None if it is no such command."""
    for number, word in enumerate(words[:5]):
        if Path(word).name in STARTERS and "--job" in words[number + 2 :]:
            return words[number + 1]
    return None


def log_of(words: list[str]) -> str | None:
    """Return the log file that a job's command names."""
    return words[words.index("--log") + 1] if "--log" in words[:-1] else None
