"""Run every bundled study shrunk (`fedloom run STUDY --smoke`), and print a table of them.

`make smoke` calls this. Two studies run at a time, each on half of the cores: while one is planned,
which takes a single core, the other trains. A study that has run before, with the same sources,
takes seconds.
"""

import argparse
import os
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

from fedloom.cli.run.bundled_studies import all_studies, study_name
from fedloom.jobs.server import VARIABLE

# how many studies run at a time
AT_ONCE = 2
# a line about a table or figure begins with one of these words (fedloom.report.smoke_check)
OUTPUTS = ("  table ", "  figure ")


class Outcome(NamedTuple):
    """The result of a study that ran shrunk."""

    study: str
    status: int
    seconds: float
    # the lines about its tables and figures
    outputs: list[str]
    # the last line that it printed
    last: str


def run_study(study: str, options: list[str]) -> Outcome:
    """Run a study shrunk, without showing its progress."""
    command = [sys.executable, "-m", "fedloom", "run", study, *options]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    seconds = time.perf_counter() - began

    outputs = [line for line in done.stdout.splitlines() if line.startswith(OUTPUTS)]
    lines = (done.stderr + done.stdout).strip().splitlines()
    errors = [line for line in lines if line.startswith("error:")]
    last = (errors or lines or [""])[-1]
    return Outcome(study, done.returncode, seconds, outputs, last)


def describe(outcome: Outcome) -> str:
    """Write a line about a study, and below it a line for each table or figure that failed."""
    tables = sum(line.startswith("  table ") for line in outcome.outputs)
    figures = len(outcome.outputs) - tables
    verdict = "ok"
    if outcome.status != 0:
        verdict = f"FAILED (status {outcome.status})"
    text = (
        f"{outcome.study:<36} {outcome.seconds:>6.0f} s  {tables:>3} tables {figures:>3} figures  "
        f"{verdict}"
    )
    failed = [line for line in outcome.outputs if "FAILED" in line]
    if outcome.status != 0 and not failed:
        failed = [outcome.last]
    return "\n    ".join([text, *(line.strip() for line in failed)])


def main() -> None:
    """Run the studies that are named, or all, and exit with 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", help="names of studies; default: all bundled ones")
    parser.add_argument("--smoke", choices=["micro", "real"], default="micro")
    parser.add_argument(
        "--cores", type=int, help="the most cores that jobs use at a time; default: all"
    )
    arguments = parser.parse_args()

    studies = arguments.studies
    if not studies:
        studies = [study_name(file) for file in all_studies()]

    # one job server for all studies imports torch only once
    os.environ.setdefault(VARIABLE, f"{secrets.token_hex(8)}:{os.getpid()}")

    # share the cores among the studies that run at a time
    cores = arguments.cores or len(os.sched_getaffinity(0))
    at_once = min(AT_ONCE, cores, len(studies))
    options = [f"--smoke={arguments.smoke}", "--cores", str(cores // at_once)]

    began = time.perf_counter()
    outcomes = []
    with ThreadPoolExecutor(at_once) as pool:
        running = [pool.submit(run_study, study, options) for study in studies]
        for done in as_completed(running):
            outcomes.append(done.result())
            print(describe(outcomes[-1]), flush=True)
    seconds = time.perf_counter() - began

    failed = [outcome.study for outcome in outcomes if outcome.status != 0]
    print(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} studies ran, {seconds / 60:.0f} min")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
