"""Show that a refactoring leaves every number equal to the bit.

    same_numbers.py record CHECKOUT RESULTS [STUDY ...]   run offline studies, cut short
    same_numbers.py compare BEFORE AFTER                  compare final states and evaluations

`record` runs the studies that need no download (config.yaml and the micro studies) for
three rounds and one seed, or those named. `compare` prints every run that differs, and exits with
status 1 if any does. Both checkouts must run on the same machine with the same packages.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import safetensors.torch
import torch
import yaml

ROUNDS = 3
CUT = {
    **{"rounds": ROUNDS, "seeds": [0], "rounds_per_job": ROUNDS, "evaluate_every": ROUNDS},
    "report": {"last_evaluations": 1},
    "tune": None,  # `--until evaluate` would stop at the trials
}  # lies over every study


def record(checkout: Path, results: Path, names: list[str]) -> None:
    """Run offline studies of the checkout below the folder `results`: those named, or all."""
    checkout, results = checkout.resolve(), results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    overlay = results / "cut.yaml"
    overlay.write_text(yaml.safe_dump({"study": CUT}))
    # of an older checkout, they lie beside the others
    micro = {*checkout.glob("workflow/studies/*micro*.yaml")}
    micro |= {*checkout.glob("workflow/studies/micro/*.yaml")}
    studies = [checkout / "config.yaml", *sorted(micro)]
    studies = [study for study in studies if not names or study.stem in names]
    environment = os.environ | {"PYTHONPATH": str(checkout / "workflow")}
    for study in studies:
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(checkout / "Snakefile")]
        command += ["--directory", str(results), "--cores", "2", "--until", "evaluate"]
        command += ["--quiet", "rules", "reason", "host", "progress"]
        command += ["--configfile", str(study), str(overlay)]
        print(study.stem, flush=True)
        subprocess.run(command, env=environment, check=True)


def differences(before: Path, after: Path) -> list[str]:
    """Return one line per run and file that is missing or differs."""
    folders = sorted(path.parent for path in before.rglob("results/runs/**/evaluation.parquet"))
    if not folders:
        sys.exit(f"error: no runs below {before}; run `same_numbers.py record` first")
    lines = []
    for folder in folders:
        run = folder.relative_to(before)
        other = after / run
        if not (other / "evaluation.parquet").is_file():
            lines.append(f"{run}: not in {after}")
            continue
        one, two = (pq.read_table(path / "evaluation.parquet") for path in (folder, other))
        if not set(one.column_names) <= set(two.column_names) or not one.equals(
            two.select(one.column_names)  # a later version may add columns
        ):
            lines.append(f"{run}: evaluation.parquet differs")
        name = f"rounds/{ROUNDS:04}.safetensors"
        one, two = (safetensors.torch.load_file(path / name) for path in (folder, other))
        for key in sorted(one.keys() | two.keys()):
            if key not in one or key not in two:
                lines.append(f"{run}: '{key}' is in one state only")
            elif not torch.equal(one[key], two[key]):
                lines.append(f"{run}: '{key}' differs")
    print(f"{len(folders)} runs compared, {len(lines)} differences")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, arguments in (("record", ("checkout", "results")), ("compare", ("before", "after"))):
        command = commands.add_parser(name)
        for argument in arguments:
            command.add_argument(argument, type=Path)
        if name == "record":
            command.add_argument("studies", nargs="*", help="stems of their files; default: all")
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.checkout, arguments.results, arguments.studies)
        return 0
    lines = differences(arguments.before, arguments.after)
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
