"""Accuracy in bfloat16 beside float32, for every method of a study.

    bf16_accuracy.py run micro/micro_vit     train the study as it is, then in bfloat16
    bf16_accuracy.py show micro/micro_vit    print the table

In bfloat16 a method trains with the options that its float32 trials chose, from the same seeds, on
the same clients. So the difference of a seed is that of precision alone.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml
from scipy import stats

from fedloom.cli.run import bundled_studies
from fedloom.common.files import write_text
from fedloom.planning import paths
from fedloom.planning.choices import chosen_options
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.report import metrics

FOLDER = Path("results/bf16")
SUFFIX = "_bf16"


def in_bf16(study: str) -> Path:
    """Write the study in bfloat16, with the options that its trials chose, and return the file."""
    plan = load_plan([bundled_studies.find_study_file(study)])
    settings, backbones, methods = plan.settings, {}, {}
    scenarios = {(run.dataset, run.partition, run.backbone) for run in plan.runs}
    if len(scenarios) > 1:
        sys.exit(f"{study}: select must name one scenario, got {len(scenarios)}; take another")
    for label in settings.select.backbones:
        backbone = settings.backbones[label]
        backbones[label + SUFFIX] = {"library": backbone.library, **backbone.settings}
    for run in plan.runs:
        method = settings.methods[run.method]
        chosen = [chosen_options(Path(file)) for file in plan.choice_file(run)]
        rates = {key.removeprefix("training."): each[key] for each in chosen for key in each}
        methods[run.method + SUFFIX] = {
            "plugin": method.plugin,
            "title": method.title,
            "options": method.options,
            "training": method.own_training | rates,
        }
    changed = {
        "include": [str(bundled_studies.find_study_file(study))],
        "study": {"name": plan.name + SUFFIX, "precision": "bf16", "tune": None},
        "backbones": backbones,
        "methods": methods,
        "select": {
            "backbones": list(backbones),
            "methods": list(methods),
            "tables": ["main"],
            "figures": [],
        },
    }
    file = FOLDER / f"{Path(study).name}.yaml"
    write_text(file, yaml.safe_dump(changed, sort_keys=False))
    return file


def accuracies(plan: Plan) -> pd.DataFrame:
    """Return the mean accuracy of participating clients at the reported rounds, by run."""
    rows = []
    for run in plan.runs:
        evaluation = metrics.evaluation(paths.path_for(paths.EVALUATION, run))
        last = sorted(evaluation["round"].unique())[-plan.settings.study.report.last_evaluations :]
        shown = evaluation[evaluation["participating"] & evaluation["round"].isin(last)]
        title = plan.settings.methods[run.method].title
        rows.append([title, run.seed, metrics.percent(shown).mean()])
    return pd.DataFrame(rows, columns=["method", "seed", "accuracy"])


def table(study: str) -> pd.DataFrame:
    """Return a row per method: both accuracies and their difference, paired."""
    plans = (
        load_plan([bundled_studies.find_study_file(study)]),
        load_plan([FOLDER / f"{Path(study).name}.yaml"]),
    )
    full, half = map(accuracies, plans)
    both = full.merge(half, on=["method", "seed"], suffixes=("", SUFFIX), validate="1:1")
    rows = []
    for method, seeds in both.groupby("method", sort=False):
        difference = seeds["accuracy" + SUFFIX] - seeds["accuracy"]
        low, high = stats.ttest_1samp(difference, 0).confidence_interval()
        rows.append(
            {
                "method": method,
                "float32": f"{seeds['accuracy'].mean():.1f} ± {seeds['accuracy'].std():.1f}",
                "bf16": f"{seeds['accuracy' + SUFFIX].mean():.1f}",
                "difference [95 %]": f"{difference.mean():+.2f} [{low:+.2f}, {high:+.2f}]",
                "seeds": len(seeds),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Train both studies, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["run", "show"])
    parser.add_argument("study", help="a bundled study, as micro/micro_vit")
    parser.add_argument("--cores", default="all")
    given = parser.parse_args()
    if given.command == "run":
        fedloom = [sys.executable, "-m", "fedloom", "run", "--cores", given.cores]
        subprocess.run([*fedloom, given.study], check=True)
        subprocess.run([*fedloom, str(in_bf16(given.study))], check=True)
    print(table(given.study).to_markdown(index=False))


if __name__ == "__main__":
    main()
