"""Sum up the machines, times and versions of a study's jobs, from their events."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fedloom.machine.job_events import read_events
from fedloom.planning import paths
from fedloom.planning.plan import Plan
from fedloom.planning.runs import trial_runs
from fedloom.report.tables.units import HOURS, choose_unit

# kinds of events that a job writes once, and the headings under which the report shows them
FACTS = {"machine": "Machines", "device": "Devices", "versions": "Versions"}


def machines_used(plan: Plan) -> dict[str, object]:
    """Return what the jobs of a study used.

    - `titles`: headings of the columns of `took`;
    - `took`: rule, number of jobs, wall time, processor time and highest memory in megabytes as
      text, for each rule and for all rules together;
    - `facts`: machines, devices and versions, each with its number of jobs.

    If a job was resumed or repeated, only its last attempt counts. Jobs for artefacts, and jobs
    that only figures of frozen backbones need, are left out.
    """
    # read what every job wrote about itself
    rows = []
    facts = {name: Counter[str]() for name in FACTS.values()}
    for rule, log in _logs(plan):
        for event in read_events(log):
            event_name = event["event"]
            if event_name == "took":
                rows.append((rule, event["seconds"], event["processor"], event["megabytes"]))
            elif event_name in FACTS:
                facts[FACTS[event_name]][event["text"]] += 1

    # sums and maxima by rule, and over all rules
    frame = pd.DataFrame(rows, columns=["rule", "seconds", "processor", "megabytes"])
    by_rule = pd.concat([frame, frame.assign(rule="all")]).groupby("rule", sort=False)
    shown = by_rule.size().astype(str).rename("Number").to_frame()
    for name, title in (("seconds", "Time"), ("processor", "Processor time")):
        hours = by_rule[name].sum() / 3600
        unit = choose_unit(hours, HOURS)
        shown[f"{title} ({unit.sign})"] = (hours * unit.per_usual).map("{:.2f}".format)
    shown["Highest memory (MB)"] = by_rule["megabytes"].max().map("{:.0f}".format)
    return {
        "titles": ["Jobs", *shown],
        "took": list(shown.itertuples(name=None)),
        "facts": {name: every.most_common() for name, every in facts.items() if every},
    }


def _logs(plan: Plan) -> Iterable[tuple[str, Path]]:
    """Return every log of the jobs of a study and of its trials, with the rule of the job."""
    made = list[tuple[str, str | Path]]()
    for run in [*plan.runs, *trial_runs(plan.settings)]:
        inputs = plan.run_inputs(run)
        made += [("dataset", inputs.pop("store")), *inputs.items()]
        made += [("train", file) for file in plan.job_files(run, paths.STATE)]
        made += [("evaluate", paths.path_for(paths.EVALUATION, run))]
        made += [("choose", file) for file in plan.choice_file(run)]
    for rule in ("partition_chart", "table", "figure"):
        made += [(rule, file) for file in getattr(plan, f"{rule}s")]
    return dict.fromkeys((rule, Path(paths.log_path(rule, str(file)))) for rule, file in made)
