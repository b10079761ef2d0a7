"""Sum up the machines, times and versions of a study's jobs, from their logs."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from fedloom.planning import paths
from fedloom.planning.plan import Plan
from fedloom.planning.runs import trial_runs

TOOK = re.compile(r"took ([\d.]+) s \(([\d.]+) s of processor time\), and (\d+) MB of memory")
# beginnings of lines that a job's log has once, and headings of what they tell
FACTS = {"on ": "Machines", "device: ": "Devices", "with ": "Versions"}


def used(plan: Plan) -> dict[str, Any]:
    """Return what a study's jobs took, by rule and in all, and facts with the number of their jobs.

    A job that was resumed or repeated has its last log alone. Left out are artefacts and what
    figures of frozen backbones need.
    """
    rows = []
    facts = {name: Counter[str]() for name in FACTS.values()}
    for rule, log in _logs(plan):
        text = log.read_text(errors="replace") if log.is_file() else ""
        for took in TOOK.findall(text)[-1:]:
            rows.append((rule, *map(float, took)))
        for start, fact in re.findall("^(on |device: |with )(.+)", text, re.MULTILINE):
            facts[FACTS[start]][fact] += 1
    frame = pd.DataFrame(rows, columns=["rule", "seconds", "processor", "megabytes"])
    by_rule = pd.concat([frame, frame.assign(rule="all")]).groupby("rule", sort=False)
    sums = by_rule[["seconds", "processor"]].sum() / 3600
    most = by_rule["megabytes"].max()
    return {
        "took": list(zip(most.index, by_rule.size(), *sums.T.to_numpy(), most, strict=True)),
        "facts": {name: every.most_common() for name, every in facts.items() if every},
    }


def _logs(plan: Plan) -> Iterable[tuple[str, Path]]:
    """Return every log of a study's jobs with its rule, those of its trials too."""
    made = list[tuple[str, str | Path]]()
    for run in [*plan.runs, *trial_runs(plan.settings)]:
        inputs = plan.run_inputs(run)
        made += [("dataset", inputs.pop("store")), *inputs.items()]
        made += [("train", file) for file in plan.job_files(run, paths.STATE)]
        made += [("evaluate", paths.path_for(paths.EVALUATION, run))]
        made += [("choose", file) for file in plan.choice(run)]
    for rule in ("partition_chart", "table", "figure"):
        made += [(rule, file) for file in getattr(plan, f"{rule}s")]
    return dict.fromkeys((rule, Path(paths.log(rule, str(file)))) for rule, file in made)
