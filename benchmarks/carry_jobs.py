"""Carry the finished jobs of a study from one machine to another, in an archive.

    carry_jobs.py pack benchmarks/real/priors.yaml priors.tar.xz
    carry_jobs.py unpack benchmarks/real/priors.yaml priors.tar.xz

So a study of many hours can be trained in several sittings, on machines that do not last. `pack`
reads results/ and writes the archive; `unpack` puts what is missing into results/. Checkpoints of
jobs that have not finished stay behind. So do images and features, which are large and take
minutes. Make them before you unpack:

    fedloom run benchmarks/real/priors.yaml -- --until cache

A result is used only if it was made from the sources of FedLoom, the settings of the study and the
features that are here. A line says how many are not.
"""

import argparse
import os
import tarfile
from collections import Counter
from pathlib import Path

from fedloom.common.files import atomic_write
from fedloom.planning import paths
from fedloom.planning.job_receipts import stale
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.study_jobs import jobs_of_study

# the rules whose results are made again
LEFT_OUT = ("dataset", "cache")


def files_of_jobs(plan: Plan) -> dict[Path, list[Path]]:
    """Return the outputs of each job of a study by its receipt, but for images and features."""
    found = dict[Path, list[Path]]()
    for rule, jobs in jobs_of_study(plan).items():
        if rule not in LEFT_OUT:
            for wildcards in jobs.values():
                outputs = RULES[rule].outputs(plan.job(rule, wildcards))
                found[paths.job_receipt(outputs[0])] = list(outputs)
    return found


def pack(plan: Plan, archive: Path) -> int:
    """Write an archive of a study's finished jobs, and return their number.

    Raises:
        SystemExit: no job has finished, or the archive has results that are not here.
    """
    # a job that was killed, or did not run, has no receipt
    jobs = {receipt: files for receipt, files in files_of_jobs(plan).items() if receipt.exists()}
    if not jobs:
        raise SystemExit(f"error: {paths.RESULTS} has no finished job of {plan.name}; run it first")

    if archive.exists():
        with tarfile.open(archive) as tar:
            lost = [name for name in tar.getnames() if not Path(name).exists()]
        if lost:
            raise SystemExit(f"error: {archive} has {lost[0]}, which is not here; unpack it first")

    with atomic_write(archive) as temporary, tarfile.open(temporary, "w:xz") as tar:
        for receipt, files in jobs.items():
            for file in (receipt, *files):
                if file.exists():
                    tar.add(file)
    return len(jobs)


def unpack(plan: Plan, archive: Path) -> int:
    """Put the jobs of an archive that are not here yet into results/, and return their number.

    Raises:
        SystemExit: images or features of the study are missing.
    """
    jobs = jobs_of_study(plan)
    for rule in LEFT_OUT:
        for file in jobs[rule]:
            if not file.exists():
                raise SystemExit(f"error: {file} is missing; run the study with `-- --until cache`")

    with tarfile.open(archive) as tar:
        packed = {Path(member.name): member for member in tar.getmembers()}

        # a job that is here already stays as it is
        number = 0
        wanted = list[Path]()
        for receipt, files in files_of_jobs(plan).items():
            if receipt in packed and not receipt.exists():
                number += 1
                wanted.append(receipt)
                wanted += [file for file in files if file in packed]

        # Snakemake makes again what is older than its inputs: each file becomes newer than the
        # images and features, and than what it was made from
        for file in sorted(wanted, key=lambda file: packed[file].mtime):
            tar.extract(packed[file], filter="data")
            os.utime(file)
    return number


def main() -> None:
    """Pack or unpack the jobs of a study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["pack", "unpack"])
    parser.add_argument("study", type=Path, help="the YAML file of the study")
    parser.add_argument("archive", type=Path, help="the archive, for example priors.tar.xz")
    given = parser.parse_args()

    plan = load_plan([given.study])
    act = {"pack": pack, "unpack": unpack}[given.command]
    print(f"{given.archive}: {act(plan, given.archive)} jobs")
    for reason, count in Counter(stale(plan).values()).items():
        print(f"note: {count} to be made again: {reason}")


if __name__ == "__main__":
    main()
