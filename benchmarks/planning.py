"""What Snakemake takes to plan a study of many runs: processor time and memory of a dry run.

Each line is a separate process: `snakemake -n` of a study of `head_tuning` and `fedvpt` with as
many seeds as it takes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
RUNS_OF_SEED = 2
JOBS_OF_SEED = 5  # the runs, the rows of each in a file, and the partition


def study(seeds: int) -> dict:
    """Return a study whose runs are one job each."""
    rounds = {"rounds": 20, "rounds_per_job": 20, "evaluate_every": 20}
    return {
        "study": {
            **rounds,
            "name": "planning",
            "seeds": list(range(seeds)),
            "clients_per_round": 3,
            "report": {"last_evaluations": 1},
        },
        "partitions": {"six": {"scheme": "pathological", "clients": 6, "classes_per_client": 2}},
        "select": {
            "datasets": ["digits"],
            "partitions": ["six"],
            "methods": ["head_tuning", "fedvpt"],
            "tables": ["main"],
            "figures": [],
        },
    }


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", type=int, default=[100, 1000])
    print(f"{'runs':>8} {'jobs':>8} {'CPU s':>8} {'peak MB':>8}")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    for jobs in parser.parse_args().jobs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "planning.yaml"
            file.write_text(yaml.safe_dump(study(jobs // JOBS_OF_SEED)))
            command = [sys.executable, "-m", "snakemake", "-n", "--snakefile", ROOT / "Snakefile"]
            with subprocess.Popen(
                [*command, "--directory", folder, "--configfile", file],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None
                printed = process.stdout.read()
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                sys.exit(printed)
            total = next(line for line in printed.splitlines() if line.startswith("total"))
            seconds = used.ru_utime + used.ru_stime
            runs = RUNS_OF_SEED * (jobs // JOBS_OF_SEED)
            jobs, peak = int(total.split()[1]), used.ru_maxrss / 1024
            print(f"{runs:8,} {jobs:8,} {seconds:8.1f} {peak:8.0f}")


if __name__ == "__main__":
    main()
