"""Keep the results of studies in docs/results, and set their tables into pages.

    real_results.py keep cifar10   copy a finished study's tables, figures and rows from results/
    real_results.py keep priors --only seeds=0   the same of a part, as `fedloom run` narrows it
    real_results.py keep default   copy what README shows of the study of `make run`
    real_results.py write          set the kept tables into the pages

Their marks are as `<!-- table cifar10/main -->`. The text between the tables is written by hand.
What a table says on how its numbers were made is folded away below it, and left out of README. A
test checks that the pages have the kept tables.
"""

import argparse
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
from micro_claims import VERDICTS, line

from fedloom.cli.run.bundled_studies import find_study_file
from fedloom.common.files import write_text
from fedloom.machine.install import ROOT
from fedloom.machine.packages import versions
from fedloom.planning import paths
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.runs import trial_runs
from fedloom.report.tables.layout import HOW_MADE

KEPT = ROOT / "docs/results"
README = ROOT / "README.md"
PAGES = [README] + [ROOT / f"docs/{page}.md" for page in ("results", "claims", "performance")]
BLOCK = re.compile(r"(<!-- table (\S+) -->\n).*?(?=<!-- end -->)", re.S)
# what README shows of the default study
SHOWN_OF_DEFAULT = ["tables=main", "figures=points"]
# the last paragraph of a table's Markdown, and how a page folds it away
DETAILS = re.compile(rf"\n{HOW_MADE}: (.*)\n")
FOLD = rf"\n<details>\n<summary>{HOW_MADE}</summary>\n\n\1\n\n</details>\n"


def keep(study: str, only: list[str]) -> None:
    """Copy the tables and figures of a finished study, and the rows behind them, without states.

    `only` narrows the study to a part, as the option of `fedloom run` does.
    """
    plan = plan_of(study, only)
    folder, select = KEPT / f".{study}", plan.settings.select  # until all is there
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for label in select.tables:
        table = paths.path_for(paths.TABLE, study=plan.name, label=label)
        shutil.copy(table.with_suffix(".parquet"), folder)
        if plan.settings.tables[label].kind == "claims":
            write_text(folder / table.name, tested(table.with_suffix(".parquet"), plan.name))
        else:
            shutil.copy(table, folder)
    for label in select.figures:
        figure = paths.path_for(paths.FIGURE, study=plan.name, label=label)
        shutil.copy(figure.with_suffix(".png"), folder)
    rows([paths.path_for(paths.EVALUATION, run) for run in plan.runs]).to_parquet(
        folder / "evaluation.parquet", compression="zstd"
    )
    rounds = rows([paths.path_for(paths.ROUNDS, run) for run in plan.runs])
    rounds.to_parquet(folder / "rounds.parquet", compression="zstd")
    hours = {"runs": processor_hours(rounds)}
    if trials := [paths.path_for(paths.ROUNDS, run) for run in trial_runs(plan.settings)]:
        hours["trials"] = processor_hours(rows(trials))
    write_text(folder / "cost.md", cost(hours))
    shutil.rmtree(KEPT / study, ignore_errors=True)
    folder.rename(KEPT / study)


def plan_of(study: str, only: list[str]) -> Plan:
    """Return the plan of a study of benchmarks/real, of a micro study, or of the default study."""
    if study == "default":
        return load_plan(overrides={"only": [*SHOWN_OF_DEFAULT, *only]})
    file = ROOT / f"benchmarks/real/{study}.yaml"
    if not file.exists():
        file = find_study_file(f"micro/{study}")
    return load_plan([file], overrides={"only": only})


def tested(claims: Path, study: str) -> str:
    """Return the claims that a study's runs could test, in the form of docs/claims.md."""
    table = pd.read_parquet(claims).assign(study=study)
    kept = table[table["verdict"].isin(VERDICTS)].sort_values("verdict")
    lines = pd.DataFrame([line(claim) for _, claim in kept.iterrows()])
    return lines.drop(columns="study").to_markdown(index=False) + "\n"


def rows(files: list[Path]) -> pd.DataFrame:
    """Return the rows of several runs, with labels as categories."""
    table = pd.concat(map(pd.read_parquet, files), ignore_index=True)
    labels = table.select_dtypes(["object", "string"]).columns
    return table.astype(dict.fromkeys(labels, "category"))


def processor_hours(rounds: pd.DataFrame) -> str:
    """Return how many runs there are, and their time on processors."""
    runs = rounds.groupby(["dataset", "partition", "method", "seed"], observed=True)
    return f"{len(runs)}, {rounds['processor_seconds'].sum() / 3600:.1f} CPU h"


def cost(hours: dict[str, str]) -> str:
    """Return a table of the time of runs and trials, the commit and the versions."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    facts = {**hours, "commit": commit, "Python": platform.python_version(), **versions()}
    return pd.DataFrame([facts]).to_markdown(index=False, disable_numparse=True) + "\n"


def filled(page: Path) -> str:
    """Return the text of a page with every block's table as it is kept."""
    details = FOLD
    if page == README:
        details = ""

    def block(mark: re.Match) -> str:
        """Return a mark with its table."""
        table = (KEPT / mark[2]).with_suffix(".md").read_text()
        return f"{mark[1]}\n{DETAILS.sub(details, table)}\n"

    return BLOCK.sub(block, page.read_text())


def main() -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["keep", "write"])
    parser.add_argument(
        "studies", nargs="*", help="files of benchmarks/real, micro studies, or `default`"
    )
    parser.add_argument("--only", nargs="*", default=[], help="as in `fedloom run`: seeds=0, ...")
    given = parser.parse_args()
    if given.command == "keep":
        for study in given.studies:
            keep(study, given.only)
    for page in PAGES:
        write_text(page, filled(page))


if __name__ == "__main__":
    main()
