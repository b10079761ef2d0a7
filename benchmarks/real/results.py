"""Keep the results of `make real` in docs/results, and set them into docs/results.md.

    results.py keep cifar10   copy a finished study's tables, figures and rows from results/
    results.py write          set the kept tables into the page, after their marks

A mark is `<!-- table cifar10/main -->`. The text between the tables is written by hand. A test runs
`write`, which must change nothing.
"""

import argparse
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd

from fedloom.commands.planning import load_plan
from fedloom.common.checkout import ROOT
from fedloom.common.io import write_text
from fedloom.common.packages import versions
from fedloom.study import paths

KEPT, PAGE = ROOT / "docs/results", ROOT / "docs/results.md"
BLOCK = re.compile(r"(<!-- table (\S+) -->\n\n).*?(?=\n<!-- end -->)", re.S)


def keep(study: str) -> None:
    """Copy the tables and figures of a finished study, and the rows behind them, without states."""
    plan = load_plan([ROOT / f"benchmarks/real/{study}.yaml"])
    folder, select = KEPT / study, plan.settings.select
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for label in select.tables:
        table = paths.at(paths.TABLE, study=plan.name, label=label)
        shutil.copy(table, folder)
        shutil.copy(table.with_suffix(".parquet"), folder)
    for label in select.figures:
        figure = paths.at(paths.FIGURE, study=plan.name, label=label)
        shutil.copy(figure.with_suffix(".png"), folder)
    rows([paths.at(paths.EVALUATION, run) for run in plan.runs]).to_parquet(
        folder / "evaluation.parquet", compression="zstd"
    )
    rounds = rows([paths.at(paths.ROUNDS, run) for run in plan.runs])
    rounds.to_parquet(folder / "rounds.parquet", compression="zstd")
    evaluations = {Path(file) for run in plan.runs for file in plan.trials(run)}
    trials = rows([file.with_name(Path(paths.ROUNDS).name) for file in sorted(evaluations)])
    write_text(folder / "cost.md", cost(rounds, trials))


def rows(files: list[Path]) -> pd.DataFrame:
    """Return the rows of several runs, with labels as categories."""
    table = pd.concat(map(pd.read_parquet, files), ignore_index=True)
    labels = table.select_dtypes(["object", "string"]).columns
    return table.astype(dict.fromkeys(labels, "category"))


def cost(rounds: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Return a table of the time of runs and trials, the commit and the versions."""
    keys = ["dataset", "partition", "method", "seed"]
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    hours = {
        name: f"{len(table.groupby(keys, observed=True))}, "
        f"{table['processor_seconds'].sum() / 3600:.1f} CPU h"
        for name, table in (("runs", rounds), ("trials", trials))
    }
    facts = {**hours, "commit": commit, "Python": platform.python_version(), **versions()}
    return pd.DataFrame([facts]).to_markdown(index=False) + "\n"


def filled(page: str) -> str:
    """Return the page with every block's table as it is kept."""
    return BLOCK.sub(lambda block: block[1] + (KEPT / f"{block[2]}.md").read_text(), page)


def main() -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["keep", "write"])
    parser.add_argument("studies", nargs="*", help="names of files in benchmarks/real")
    given = parser.parse_args()
    if given.command == "keep":
        for study in given.studies:
            keep(study)
    write_text(PAGE, filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
