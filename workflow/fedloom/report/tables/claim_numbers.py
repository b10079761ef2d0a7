"""Read the numbers that a paper's claims compare from a study's runs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.report.metrics import DOMAIN_PREFIX, evaluation, frame, percent
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.costs import cost_to_target, sent
from fedloom.report.tables.paper_claims import EACH_DOMAIN
from fedloom.report.verdicts import Term

# metrics that follow from the method alone
COUNTS = ("params_up", "params_down")
# metrics of the cost of reaching the table's target
COSTS = ("rounds", "million_params")
# the metric that is the mean accuracy over all evaluated rounds; faster training makes it higher
COURSE = "course_mean"

ScenarioLabels = tuple[str, ...]
# runs by scenario and by the paper's row
RunsByScenario = dict[ScenarioLabels, dict[str, list[PlottedRun]]]


class Place(NamedTuple):
    """The scenarios in which a claim is tested, all with one backbone."""

    # the scenarios that the claim is about
    ends: list[ScenarioLabels]
    # the scenarios from which a claim on a change starts; none for other claims
    starts: list[ScenarioLabels]


class NotRunError(Exception):
    """The study lacks something that a claim needs; the text of the error says what."""


@dataclass(frozen=True)
class StudyNumbers:
    """The numbers of a study's runs that claims compare."""

    runs: RunsByScenario
    # accuracy in percent, for claims on the cost of reaching it; None if the table has no target
    target: float | None

    def differences(
        self,
        claim: dict,
        pairs: list[tuple[str, str, str | None]],
        place: Place,
    ) -> tuple[list[list[Term]], list[str]]:
        """Return the terms of the difference of every pair, and the rows whose numbers are bounds.

        A pair has three parts: a metric, the row that should be higher, and the row that should be
        lower, which is None for a claim on a change alone.
        """
        other = claim.get("below_metric")
        times = claim.get("times", 1)

        rivals = []
        bounded = dict[str, None]()
        for metric, above, below in pairs:
            terms = self._side(above, metric, 1, place)
            if any(term.at_least for term in terms):
                bounded[above] = None

            if below is not None:
                less = self._side(below, other or metric, -times, place)
                if any(term.at_least for term in less):
                    bounded[below] = None
                terms += less

            rivals.append(terms)
        return rivals, [*bounded]

    def _side(self, row: str, metric: str, weight: float, place: Place) -> list[Term]:
        """Return the terms of one method's metric, multiplied by `weight`.

        The metric is its mean over the scenarios that the claim is about, minus its mean over the
        scenarios from which the claim starts.
        """
        terms = []
        for scenarios, way in zip(place, (weight, -weight), strict=True):
            for scenario in scenarios:
                share = way / len(scenarios)
                terms.append(self._term(self.runs[scenario][row], metric, share, scenario))
        return terms

    def _term(
        self, runs: list[PlottedRun], metric: str, weight: float, scenario: ScenarioLabels
    ) -> Term:
        """Return a method's metric in one scenario, by seed, as a term of a difference.

        Raises a NotRunError if the runs do not have the metric.
        """
        # the group of clients of the metric
        group = metric.removesuffix("_mean").removesuffix("_worst")
        if metric == COURSE:
            group = "participating"

        # the numbers of every seed
        values = dict[int, np.ndarray]()
        ids = dict[int, tuple[str, ...]]()
        at_least = False
        for run in runs:
            numbers, is_bound = self._of_run(run, metric, group)
            if not numbers.size:
                raise NotRunError(f"no {metric.replace('_', ' ')} here")
            values[run.seed] = numbers.to_numpy()
            ids[run.seed] = tuple(map(str, numbers.columns))
            at_least |= is_bound

        # how they become one number
        statistic = "mean"
        if metric.endswith("_worst"):
            statistic = "worst"
            if runs[0].reported.worst_of:
                statistic = "lowest"

        # methods may be tested on other clients, as attackers are not
        clients = f"{'/'.join(scenario)} {group} {ids}"
        return Term(weight, clients, statistic, values, at_least, metric in COUNTS)

    def _of_run(self, run: PlottedRun, metric: str, group: str) -> tuple[pd.DataFrame, bool]:
        """Return a run's numbers [R, K] (see `Term`), and whether they are only lower bounds.

        Columns are the clients' numbers; of a number of the run, there is only one.
        """
        if metric in COUNTS:
            return pd.DataFrame([[sent(run)[metric]]]), False

        if metric in COSTS:
            if self.target is None:
                raise NotRunError("the table has no target")
            cost = cost_to_target(evaluation(run.evaluation), frame(run.rounds), self.target)
            return pd.DataFrame([[cost[metric]]]), bool(cost[f"{metric}_above"])

        return _numbers(run, metric, group), False


def claim_metrics(claim: dict, run: PlottedRun) -> list[str]:
    """Return the metrics of a claim: usually one, but for `each_domain` one per trained domain."""
    if claim["metric"] != EACH_DOMAIN:
        return [claim["metric"]]

    rows = evaluation(run.evaluation)
    domains = rows.loc[rows["participating"], "domain"].dropna().unique()
    if not len(domains):
        raise NotRunError("no domains here")
    return [f"{DOMAIN_PREFIX}{name}" for name in sorted(domains)]


def _numbers(run: PlottedRun, metric: str, group: str) -> pd.DataFrame:
    """Return losses [R, 1], or accuracies in percent of a group's clients [R, K].

    The R rows are the reported rounds; for the metric COURSE, they are all evaluated rounds.
    """
    if metric == "train_loss":
        rows = frame(run.rounds)
    else:
        rows = evaluation(run.evaluation)

    # the reported rounds
    rounds = run.reported.rounds
    if metric.endswith("_worst") and run.reported.worst_of:
        rounds = run.reported.worst_of
    if metric != COURSE:
        rows = rows[rows["round"].isin(rounds)]
    if metric == "train_loss":
        return rows[["train_loss"]]

    # the clients of the group, or those that train on one domain
    server = rows["client_id"] == SERVER_MODEL
    trains = rows["participating"]
    groups = {"global": server, "participating": trains, "held_out": ~server & ~trains}
    if group not in groups:
        groups[group] = trains & (rows["domain"] == group.removeprefix(DOMAIN_PREFIX))

    rows = rows.assign(value=percent(rows))[groups[group]]
    return rows.pivot(index="round", columns="client_id", values="value")
