"""Sum up a study's first table of accuracies: a chart of its seeds, and sentences made of numbers.

The sentences of a scenario say which method has the highest mean accuracy, which the second, and
whether the seeds decide that the first is ahead of all others.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from fedloom.config.kinds import KINDS
from fedloom.config.output_kinds import AccuracyTable
from fedloom.planning.job_specs import TableJob
from fedloom.planning.plan import Plan
from fedloom.report import tables
from fedloom.report.figures.accuracies import ACCURACY_AXES, accuracy
from fedloom.report.figures.seed_points import draw_points
from fedloom.report.figures.style import with_styles
from fedloom.report.metrics import grouped
from fedloom.report.plotted_runs import PlottedRun, plotted_runs
from fedloom.report.tables.claim_numbers import Place, StudyNumbers
from fedloom.report.verdicts import CONFIDENCE, HOLDS, decide, difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "participating_mean"
# the most scenarios that have a panel and sentences; a table shows the others
MOST_SCENARIOS = 3
# the most methods that a sentence names
MOST_NAMES = 4


class Headline(NamedTuple):
    """What a study shows first."""

    # the table that it sums up
    table: str
    # the runs of its chart
    runs: list[PlottedRun]
    # the sentences of every scenario
    paragraphs: list[str]


def find_headline(plan: Plan) -> Headline | None:
    """Return the headline of a study: of its first table of methods' accuracies.

    Tables over several partitions, and tables of accuracies before personalisation, are left out.
    Return None if no other table shows accuracies.
    """
    for label in plan.settings.select.tables:
        job = plan.table_job(label)
        every = _compared_runs(job)
        if not every:
            continue

        # the first scenarios of the table
        groups = list(grouped(every).values())
        shown = groups[:MOST_SCENARIOS]
        paragraphs = [describe_scenario(runs, named=len(groups) > 1) for runs in shown]
        if len(groups) > len(shown):
            paragraphs.append(f"The table has {len(groups)} scenarios in all.")

        # what warns a reader of the table warns here, too
        if job.remark is not None:
            paragraphs.insert(0, job.remark)
        if job.narrowed:
            paragraphs.append(job.narrowed)
        return Headline(label, [run for runs in shown for run in runs], paragraphs)
    return None


def _compared_runs(job: TableJob) -> list[PlottedRun]:
    """Return the runs of a table that shows METRIC after personalisation; else []."""
    kind = KINDS["tables"][job.kind]
    if not issubclass(kind, AccuracyTable) or kind.spec.across_partitions:
        return []
    if not job.settings["personalized"]:
        return []

    # the kind may show other numbers, or a run may have none
    own = tables.instantiate_kind(job)
    extra = own.extra_of(job.settings)
    runs = plotted_runs(job.shown)
    for run in runs:
        if METRIC not in own.measure(run, **extra):
            return []
    return runs


def draw_headline(headline: Headline) -> "Figure":
    """Draw the accuracies of a headline's runs, a point per seed."""
    return draw_points(with_styles(headline.runs), {ACCURACY_AXES[METRIC]: accuracy})


def describe_scenario(runs: Sequence[PlottedRun], named: bool) -> str:
    """Say which method of a scenario is best, which is second, and whether the seeds decide it.

    `runs` are the scenario's runs, of one method or more; if `named`, the text names the scenario.
    """
    by_method = {label: own for (label,), own in grouped(runs, ["method"]).items()}
    means = {label: _mean(own) for label, own in by_method.items()}
    best, *others = sorted(means, key=means.__getitem__, reverse=True)

    where = "The highest mean accuracy"
    if named:
        where += f" on {'/'.join(_scenario(runs[0]))}"
    text = f"{where} is that of {_quoted(by_method[best])}, {means[best]:.2f} %."
    if not others:
        return text
    text += f" The second is that of {_quoted(by_method[others[0]])}, {means[others[0]]:.2f} %."
    return f"{text} {_describe_lead(by_method, best, others)}"


def _describe_lead(by_method: dict[str, list[PlottedRun]], best: str, others: list[str]) -> str:
    """Say of which other methods the seeds decide that the best method of a scenario is ahead.

    It is ahead of all if every 95 % interval of a difference is above zero. If one is not, it is
    ahead of those whose interval is above zero even if it is widened for all comparisons.
    """
    # the difference to every other method, as a claim on all of them is tested
    scenario = _scenario(by_method[best][0])
    study = StudyNumbers({scenario: by_method}, None)
    pairs: list[tuple[str, str, str | None]] = [(METRIC, best, rival) for rival in others]
    rivals, _ = study.differences({}, pairs, Place([scenario], []))
    verdict = decide(rivals)
    if verdict.difference.seeds == 1:
        return "One seed does not decide which method is ahead."
    # of a stream, the reported rounds may have other clients
    if math.isnan(verdict.difference.value):
        return "The rounds have different clients, so that the seeds decide nothing here."

    # the comparison that comes nearest to contradicting it
    nearest = _quoted(by_method[others[verdict.rival]])
    low, high = verdict.difference.interval()
    lead = (
        f"{verdict.difference.value:.2f} points, with a 95 % interval from {low:.2f} to {high:.2f}"
    )
    if verdict.text == HOLDS:
        text = "The first is ahead of all others"
        return f"{text}: its least certain lead, over {nearest}, is {lead}."

    # which comparisons are decided, and which are not
    confidence = 1 - (1 - CONFIDENCE) / len(others)
    ahead = []
    open_to = []
    for rival, terms in zip(others, rivals, strict=True):
        low, high = difference(terms).interval(confidence)
        if 0 < low < high:
            ahead.append(_quoted(by_method[rival]))
        else:
            open_to.append(_quoted(by_method[rival]))

    text = f"The seeds do not decide whether the first is ahead of {_listed(open_to, 'or')}"
    if ahead:
        text = f"The first is ahead of {_listed(ahead, 'and')}. {text}"
    if verdict.reason:
        lead += f" ({verdict.reason})"
    return f"{text}: its lead over {nearest} is {lead}."


def _quoted(runs: Sequence[PlottedRun]) -> str:
    """Return the title of a method between quotation marks, since it may contain a comma."""
    return f"“{runs[0].title}”"


def _listed(names: Sequence[str], word: str) -> str:
    """Join names to a list, with `word` before the last; many are only counted."""
    if len(names) > MOST_NAMES:
        return f"{len(names)} other methods"
    *first, last = names
    if not first:
        return last
    return f"{', '.join(first)} {word} {last}"


def _scenario(run: PlottedRun) -> tuple[str, str, str]:
    """Return the labels of a run's scenario."""
    return run.dataset, run.partition, run.backbone


def _mean(runs: Sequence[PlottedRun]) -> float:
    """Return the mean over seeds of a method's accuracy in percent."""
    return fmean(accuracy(run, METRIC) for run in runs)
