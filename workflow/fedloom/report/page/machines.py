"""Sum up the machines, times and versions of a study's jobs, from their events."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fedloom.machine.job_events import read_events
from fedloom.planning import paths
from fedloom.planning.plan import Plan
from fedloom.planning.runs import trial_runs

# kinds of events that a job has once, and headings of what they tell
FACTS = {"machine": "Machines", "device": "Devices", "versions": "Versions"}


def used(plan: Plan) -> dict[str, object]:
    """Return time and memory of a study's jobs by rule and in all, and their machines and versions.

    Machines, devices and versions each come with their number of jobs.

    A job that was resumed or repeated has the events of its last attempt alone. Left out are
    artefacts and what figures of frozen backbones need.
    """
    # what every job tells of itself
    rows = []
    facts = {name: Counter[str]() for name in FACTS.values()}
    for rule, log in _logs(plan):
        for event in read_events(log):
            kind = event["event"]
            if kind == "took":
                rows.append((rule, event["seconds"], event["processor"], event["megabytes"]))
            elif kind in FACTS:
                facts[FACTS[kind]][event["text"]] += 1

    # sums and maxima by rule, and over all rules
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
