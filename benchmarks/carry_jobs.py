"""Carry the finished jobs of a study from one machine to another, in a small archive.

    carry_jobs.py pack benchmarks/real/priors.yaml     write benchmarks/real/priors.tar.xz
    carry_jobs.py unpack benchmarks/real/priors.yaml   put what it holds into results/

So a study of many hours can be trained in several sittings, on machines that do not last. The
archive leaves out images and features, which are large and take minutes. Make them first:

    fedloom run benchmarks/real/priors.yaml -- --until cache

Snakemake makes again what seems older than its inputs, so that the files are dated anew.
"""

import argparse
import os
import tarfile
from pathlib import Path

from fedloom.planning import paths
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.study_jobs import jobs_of_study

# the rules whose results are made again
LEFT_OUT = ("dataset", "cache")


def finished_files(plan: Plan) -> list[Path]:
    """Return the outputs and receipts of a study's finished jobs, but for images and features."""
    files = dict[Path, None]()
    for rule, found in jobs_of_study(plan).items():
        if rule in LEFT_OUT:
            continue
        for wildcards in found.values():
            outputs = RULES[rule].outputs(plan.job(rule, wildcards))
            receipt = paths.job_receipt(outputs[0])
            # a job that was killed, or did not run, has no receipt
            if receipt.exists():
                files |= dict.fromkeys(file for file in (*outputs, receipt) if file.exists())
    return sorted(files)


def missing_data(plan: Plan) -> list[Path]:
    """Return the images and features of a study that are still to be made."""
    jobs = jobs_of_study(plan)
    return [file for rule in LEFT_OUT for file in jobs[rule] if not file.exists()]


def pack(plan: Plan, archive: Path) -> int:
    """Write an archive of a study's finished jobs, and return its number of files."""
    files = finished_files(plan)
    with tarfile.open(archive, "w:xz") as tar:
        for file in files:
            tar.add(file)
    return len(files)


def unpack(plan: Plan, archive: Path) -> int:
    """Write the files of an archive that are not there yet, and return their number.

    Raises:
        SystemExit: images or features of the study are missing.
    """
    if missing := missing_data(plan):
        raise SystemExit(
            f"error: {missing[0]} is missing; first run: fedloom run ... -- --until cache"
        )
    with tarfile.open(archive) as tar:
        new = [member for member in tar.getmembers() if not Path(member.name).exists()]
        # each file becomes newer than the images and features, and than what it was made from
        for member in sorted(new, key=lambda member: member.mtime):
            tar.extract(member, filter="data")
            os.utime(member.name)
    return len(new)


def main() -> None:
    """Pack or unpack the jobs of a study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["pack", "unpack"])
    parser.add_argument("study", type=Path, help="the YAML file of the study")
    given = parser.parse_args()
    act = {"pack": pack, "unpack": unpack}[given.command]
    archive = given.study.with_suffix(".tar.xz")
    print(f"{archive}: {act(load_plan([given.study]), archive)} files")


if __name__ == "__main__":
    main()
