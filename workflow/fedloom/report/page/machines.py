"""Sum up the machines, times and versions of a study's jobs, from their logs."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedloom.study import paths
from fedloom.study.plan import Plan
from fedloom.study.runs import trial_runs

TOOK = re.compile(r"took ([\d.]+) s \(([\d.]+) s of processor time\), and (\d+) MB of memory")
# beginnings of lines that a job's log has once, and headings of what they tell
FACTS = {"on ": "Machines", "device: ": "Devices", "with ": "Versions"}


class Took(NamedTuple):
    """The time and memory of a rule's jobs."""

    rule: str
    jobs: int
    hours: float
    processor_hours: float
    megabytes: int  # of the job with most


@dataclass(frozen=True)
class Machines:
    """The time and memory of a study's jobs by rule and in all, and facts with job counts."""

    took: list[Took]
    facts: dict[str, list[tuple[str, int]]]


def used(plan: Plan) -> Machines:
    """Read the logs of a study's jobs; a job that was resumed or repeated has its last log alone.

    Left out are artefacts and what figures of frozen backbones need.
    """
    took, facts = list[Took](), {name: Counter[str]() for name in FACTS.values()}
    for rule, logs in _logs(plan).items():
        texts = [log.read_text(errors="replace") for log in map(Path, logs) if log.is_file()]
        ends = [found[-1] for found in map(TOOK.findall, texts) if found]
        if ends:
            seconds, processor, megabytes = (
                list(map(float, each)) for each in zip(*ends, strict=True)
            )
            hours, of_processor = sum(seconds) / 3600, sum(processor) / 3600
            took.append(Took(rule, len(ends), hours, of_processor, int(max(megabytes))))
        for line in (line for text in texts for line in text.splitlines()):
            for start, name in FACTS.items():
                if line.startswith(start):
                    facts[name][line.removeprefix(start)] += 1
    if took:
        _, jobs, hours, of_processor, megabytes = zip(*took, strict=True)
        took.append(Took("all", sum(jobs), sum(hours), sum(of_processor), max(megabytes)))
    return Machines(took, {name: every.most_common() for name, every in facts.items() if every})


def _logs(plan: Plan) -> dict[str, set[str]]:
    """Return the logs of a study's jobs by rule, those of its trials too."""
    logs = defaultdict[str, set[str]](set)
    for run in [*plan.runs, *trial_runs(plan.settings)]:
        for name, file in plan.run_inputs(run).items():
            rule = "dataset" if name == "store" else name
            logs[rule].add(paths.log(rule, str(file)))
        logs["train"].update(plan.job_files(run, paths.log("train", paths.STATE)))
        logs["evaluate"].add(str(paths.at(paths.log("evaluate", paths.EVALUATION), run)))
        logs["choose"].update(paths.log("choose", path) for path in plan.choice(run))
    for rule in ("partition_chart", "table", "figure"):
        logs[rule].update(paths.log(rule, path) for path in getattr(plan, f"{rule}s"))
    return logs
