"""Test a paper's claims: tabulate the differences that a study's runs show, with verdicts."""

import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Percent
from fedloom.config.output_kinds import Methods, PaperName, TableKind
from fedloom.config.settings import Output, Settings
from fedloom.planning.job_specs import TableJob
from fedloom.planning.output_runs import PlottedRun
from fedloom.report.metrics import DOMAIN_PREFIX, evaluation, frame, grouped, percent
from fedloom.report.tables.accuracy import describe_rounds
from fedloom.report.tables.costs import cost_to_target, sent
from fedloom.report.tables.layout import EMPTY, Built, unmarked
from fedloom.report.tables.paper_claims import (
    EACH_DOMAIN,
    Listed,
    labels_of,
    read_claims,
)
from fedloom.report.verdicts import ABOVE_ZERO, HOLDS, MOST_SEEDS, UNDECIDED, Term, Verdict, decide

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


class Claims(TableKind):
    """A paper's claims on its results, each with a verdict from the study's runs.

    One seed decides only claims on the numbers that clients send, and two seeds rarely decide
    others. Of twenty claims on methods that do not differ, one is decided by chance.
    """

    methods: Methods = None
    paper: PaperName
    """The paper, by its folder in workflow/papers, such as pep_fedpt."""
    rows: dict[str, Listed] | None = None
    """Maps the label of a method to the row or rows of claims.yaml that it stands for. A label that
    is left out stands for the row that has its plugin, options and wrappers, or for the row of its
    title, if it has all options that the row states."""
    stands_for: dict[str, Listed]
    """Maps <dataset>/<partition>, by their labels, to the setting or settings of claims.yaml that
    it stands for."""
    target: Percent | None = None
    """Mean accuracy of the participating clients, in percent, for claims on the cost of reaching
    it."""

    def complete(self, settings: Settings, output: Output, where: KeyPath) -> Output:
        """Return the table with the paper's claims, and the labels that stand for its rows.

        The table then shows only the runs of these labels, in the scenarios that stand for a
        setting, because all runs that a table shows are trained. If no label stands for a row, it
        shows all methods; if no scenario stands for a setting, it shows all scenarios.
        """
        paper = read_claims(self.paper, where / "paper")
        rows = self.rows or {}

        # known labels are those of the whole config: a study may not run all of them
        pairs = [f"{d}/{p}" for d, p in product(settings.datasets, settings.partitions)]
        _check_names(rows, settings.methods, paper["rows"], where / "rows")
        _check_names(self.stands_for, pairs, paper["settings"], where / "stands_for")

        # the methods and scenarios that stand for the rows and the settings of the paper
        methods = [settings.methods[label] for label in output.methods]
        labels = labels_of(paper["rows"], methods, rows)
        compared = [label for label in output.methods if label in labels.values()]
        scenarios = [each for each in output.scenarios if str(each) in self.stands_for]

        return replace(
            output,
            methods=tuple(compared or output.methods),
            scenarios=tuple(scenarios or output.scenarios),
            extra={"labels": labels, "claims": paper["claims"], "citation": paper["citation"]},
        )

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a row per claim and scenario, if the scenario stands for a setting of the claim.

        Claims that no scenario can decide come last. Each has one row, which states the reason.
        """
        # the runs of every scenario, by the paper's row that their method stands for
        study: RunsByScenario = {}
        for scenario, group in grouped(runs).items():
            study[scenario] = {}
            for row, label in job.settings["labels"].items():
                study[scenario][row] = [run for run in group if run.method == label]

        # the rows of claims that at least one scenario can test, and of all other claims
        tested = []
        rest = []
        for claim in job.settings["claims"]:
            rows, reasons = self._rows_of(claim, study)
            tested += rows
            if not rows:
                reason = claim.get("untested") or "; ".join(reasons) or "no such setting here"
                rest.append(_row(claim, [*claim["in"]], "not run", reason))

        table = pd.DataFrame(tested + rest).assign(paper=self.paper)
        texts = unmarked(pd.DataFrame(map(_cells, table.to_dict("records"))), 3)
        return Built(table, texts, _caption(job.settings["citation"], runs, table))

    def _rows_of(self, claim: dict, study: RunsByScenario) -> tuple[list[dict], list[str]]:
        """Return the rows of a claim, and the reasons why some scenarios have no row.

        Each scenario that stands for a setting of the claim has one row. Each reason is named once.
        """
        if "untested" in claim:
            return [], []

        rows = []
        reasons = dict[str, None]()
        for setting in claim["in"]:
            ends = self._scenarios(study, [setting])
            starts = self._scenarios(study, claim.get("from"))
            for place in _places(claim, ends, starts):
                try:
                    rows.append(self._tested(claim, setting, place, study))
                except NotRunError as reason:
                    reasons[str(reason)] = None
        return rows, [*reasons]

    def _scenarios(
        self, study: RunsByScenario, settings: Collection[str] | None
    ) -> list[ScenarioLabels]:
        """Return the scenarios of the study that stand for one of a paper's settings."""
        pairs = {pair for pair, names in self.stands_for.items() if {*names} & {*(settings or ())}}
        return [scenario for scenario in study if "/".join(scenario[:2]) in pairs]

    def _tested(self, claim: dict, setting: str, place: Place, study: RunsByScenario) -> dict:
        """Test a claim in a place: in one scenario or the average of several, or on a change.

        Returns the row of the table. Raises a NotRunError if the place lacks runs for the claim.
        """
        # the claim's methods that were run, and those that were not
        of_row = study[place.ends[0]]
        named = dict.fromkeys([*claim["above"], *claim["below"]])
        missing = ", ".join(row for row in named if row not in of_row)
        above = [row for row in claim["above"] if row in of_row]
        below = [row for row in claim["below"] if row in of_row]
        if not above or (claim["below"] and not below):
            raise NotRunError(f"no run of {missing}")

        # the differences that must all be as the claim says
        metrics = _metrics_of(claim, of_row[above[0]][0])
        pairs: list[tuple[str, str, str | None]] = [*product(metrics, above, below or [None])]
        rivals, bounded = self._differences(claim, pairs, place, study)
        verdict = decide(rivals, claim.get("within", ABOVE_ZERO))

        # a method that was not run could contradict the claim
        text = verdict.text
        if missing and text == HOLDS:
            text = UNDECIDED

        # what limits the verdict
        reasons = [verdict.reason]
        if bounded:
            reasons.append(f"{', '.join(bounded)} below {self.target:g} %")
        if missing:
            reasons.append(f"without {missing}")
        reasons.append(_more_seeds(verdict, bool(missing)))

        row = _row(claim, [setting], text, "; ".join(filter(None, reasons)))
        low, high = verdict.difference.interval()
        return row | {
            "scenario": _name_of(place),
            "rival": _against(claim, *pairs[verdict.rival]),
            "difference": verdict.difference.value,
            "low": low,
            "high": high,
            "seeds": verdict.difference.seeds,
        }

    def _differences(
        self,
        claim: dict,
        pairs: list[tuple[str, str, str | None]],
        place: Place,
        study: RunsByScenario,
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
            terms = self._side(above, metric, 1, place, study)
            if any(term.at_least for term in terms):
                bounded[above] = None

            if below is not None:
                less = self._side(below, other or metric, -times, place, study)
                if any(term.at_least for term in less):
                    bounded[below] = None
                terms += less

            rivals.append(terms)
        return rivals, [*bounded]

    def _side(
        self, row: str, metric: str, weight: float, place: Place, study: RunsByScenario
    ) -> list[Term]:
        """Return the terms of one method's metric, multiplied by `weight`.

        The metric is its mean over the scenarios that the claim is about, minus its mean over the
        scenarios from which the claim starts.
        """
        terms = []
        for scenarios, way in zip(place, (weight, -weight), strict=True):
            for scenario in scenarios:
                share = way / len(scenarios)
                terms.append(self.term(study[scenario][row], metric, share, scenario))
        return terms

    def term(
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
        at_least = False
        for run in runs:
            numbers, is_bound = self._of_run(run, metric, group)
            if not numbers.size:
                raise NotRunError(f"no {metric.replace('_', ' ')} here")
            values[run.seed] = numbers
            at_least |= is_bound

        # how they become one number
        statistic = "mean"
        if metric.endswith("_worst"):
            statistic = "worst"
            if runs[0].reported.worst_of:
                statistic = "lowest"

        clients = f"{'/'.join(scenario)} {group}"
        return Term(weight, clients, statistic, values, at_least, metric in COUNTS)

    def _of_run(self, run: PlottedRun, metric: str, group: str) -> tuple[np.ndarray, bool]:
        """Return a run's numbers [R, K] (see `Term`), and whether they are only lower bounds."""
        if metric in COUNTS:
            return np.array([[sent(run)[metric]]]), False

        if metric in COSTS:
            if self.target is None:
                raise NotRunError("the table has no target")
            cost = cost_to_target(evaluation(run.evaluation), frame(run.rounds), self.target)
            return np.array([[cost[metric]]]), bool(cost[f"{metric}_above"])

        return _numbers(run, metric, group), False


def _check_names(
    chosen: dict[str, list[str]], known: Collection[str], names: Collection[str], where: KeyPath
) -> None:
    """Raise a FedLoomError if a label in `chosen` is unknown, or a name that is listed for it.

    Labels must be in `known`, and their names in `names`; `where` is the key path of `chosen`.
    """
    for label, values in chosen.items():
        where.check_known(label, known, "the study has no")
        for name in values:
            (where / label).check_known(name, names, "the claims have no")


def _metrics_of(claim: dict, run: PlottedRun) -> list[str]:
    """Return the metrics of a claim: usually one, but for `each_domain` one per trained domain."""
    if claim["metric"] != EACH_DOMAIN:
        return [claim["metric"]]

    rows = evaluation(run.evaluation)
    domains = rows.loc[rows["participating"], "domain"].dropna().unique()
    if not len(domains):
        raise NotRunError("no domains here")
    return [f"{DOMAIN_PREFIX}{name}" for name in sorted(domains)]


def _numbers(run: PlottedRun, metric: str, group: str) -> np.ndarray:
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
        return rows[["train_loss"]].to_numpy()

    # the clients of the group, or those that train on one domain
    server = rows["client_id"] == SERVER_MODEL
    trains = rows["participating"]
    groups = {"global": server, "participating": trains, "held_out": ~server & ~trains}
    if group not in groups:
        groups[group] = trains & (rows["domain"] == group.removeprefix(DOMAIN_PREFIX))

    rows = rows.assign(value=percent(rows))[groups[group]]
    return rows.pivot(index="round", columns="client_id", values="value").to_numpy()


def _places(
    claim: dict, ends: list[ScenarioLabels], starts: list[ScenarioLabels]
) -> Iterator[Place]:
    """Yield the places in which a claim is tested.

    - A claim on an average is tested in all scenarios of a backbone together.
    - Any other claim is tested in each scenario separately. If it is on a change, it starts from a
      scenario with the same dataset and backbone, but another partition.
    """
    if claim["average"]:
        for backbone in dict.fromkeys(network for *_, network in ends):
            end = [scenario for scenario in ends if scenario[2] == backbone]
            start = [scenario for scenario in starts if scenario[2] == backbone]
            if start or "from" not in claim:
                yield Place(end, start)
        return

    for end in ends:
        if "from" not in claim:
            yield Place([end], [])
        for start in starts:
            if start != end and (start[0], start[2]) == (end[0], end[2]):
                yield Place([end], [start])


def _name_of(place: Place) -> str:
    """Name a place, for example "styles/iid/vit to styles/skewed/vit and 2 more".

    It names the first scenario from which a claim starts, and the first that the claim is about;
    further scenarios are counted.
    """
    names = []
    for scenarios in (place.starts, place.ends):
        if not scenarios:
            continue
        first, *more = scenarios
        name = "/".join(first)
        if more:
            name += f" and {len(more)} more"
        names.append(name)
    return " to ".join(names)


def _more_seeds(verdict: Verdict, incomplete: bool) -> str:
    """Say how many seeds would decide a claim; "" if seeds alone cannot decide it."""
    if verdict.leaning is None or (incomplete and verdict.leaning == HOLDS):
        return ""

    count = f"about {verdict.power}"
    if verdict.power > MOST_SEEDS:
        count = f"more than {MOST_SEEDS}"

    outcome = "refute"
    if verdict.leaning == HOLDS:
        outcome = "confirm"
    return f"{count} seeds in all would {outcome} it"


def _against(claim: dict, metric: str, above: str, below: str | None) -> str | None:
    """Name the comparison on which a verdict rests, by what a claim's comparisons differ in.

    It names the higher row if there are several, the lower row, and the domain for `each_domain`.
    None if there is nothing to name.
    """
    compared = []
    if len(claim["above"]) > 1:
        compared.append(above)
    if below:
        compared.append(below)

    text = " over ".join(compared)
    if claim["metric"] == EACH_DOMAIN:
        text += f" in {metric.removeprefix(DOMAIN_PREFIX)}"
    return text.strip() or None


def _row(claim: dict, settings: list[str], verdict: str, reason: str) -> dict[str, object]:
    """Return a row of the table with the paper's numbers for these settings, but none from runs."""
    # the paper's smallest and largest differences
    ends = []
    for setting in settings:
        ends += claim["printed"].get(setting) or ()

    within = claim.get("within", ABOVE_ZERO)
    return {
        "says": claim["says"],
        "where": claim["where"],
        "metric": claim["metric"],
        "setting": ", ".join(settings),
        "printed_low": min(ends, default=None),
        "printed_high": max(ends, default=None),
        "within_low": within[0],
        "within_high": within[1],
        "bound": claim.get("bound"),
        "scenario": EMPTY,
        "rival": None,
        "difference": None,
        "low": None,
        "high": None,
        "seeds": None,
        "verdict": verdict,
        "reason": reason,
    }


def _cells(row: Mapping[Hashable, Any]) -> dict[str, str]:
    """Write a row of the table as text, by heading."""
    claim = row["says"]
    if row["bound"] == "ours":
        claim += " (bound: ours)"

    verdict = row["verdict"]
    if row["reason"]:
        verdict += f" ({row['reason']})"

    # the paper prints one number, or a range over columns
    printed = dict.fromkeys([_number(row["printed_low"]), _number(row["printed_high"])])

    difference, interval = _difference_and_interval(row["difference"], row["low"], row["high"])
    return {
        "Claim": claim,
        "In the paper": row["where"],
        "Setting": row["setting"],
        "The paper's difference": " to ".join(printed),
        "Here": row["scenario"],
        "Difference": difference,
        "95 % interval": interval,
        "Against": EMPTY if pd.isna(row["rival"]) else row["rival"],
        "Seeds": EMPTY if pd.isna(row["seeds"]) else f"{row['seeds']:.0f}",
        "Verdict": verdict,
    }


def _difference_and_interval(value: float | None, low: float, high: float) -> tuple[str, str]:
    """Write a difference and its interval.

    If the difference is only a bound, it has the sign > or <, and its interval has one end. If both
    ends are infinite, both texts are "-".
    """
    difference = _number(value)
    if low == -math.inf and high == math.inf:
        return EMPTY, EMPTY
    if high == math.inf:
        return f"> {difference}", f"above {_number(low)}"
    if low == -math.inf:
        return f"< {difference}", f"below {_number(high)}"
    if pd.isna(low):
        return difference, EMPTY
    return difference, f"[{_number(low)}, {_number(high)}]"


def _number(value: float | None) -> str:
    """Write a difference with its sign; large numbers have no decimals."""
    if value is None or pd.isna(value):
        return EMPTY
    if abs(value) < 1e4:
        return f"{value:+.2f}"
    return f"{value:+.0f}"


def _caption(citation: str, runs: list[PlottedRun], table: pd.DataFrame) -> str:
    """Describe the comparison and the intervals, and count the verdicts."""
    counts = table["verdict"].value_counts().sort_index()
    verdicts = ", ".join(f"{count} {name}" for name, count in counts.items())
    few = ""
    if UNDECIDED in counts:
        few = f" Few seeds decide little, as {counts[UNDECIDED]} here."
    return (
        f"what {citation} claims, and what these runs show, {describe_rounds(runs)} "
        f"({verdicts}). Differences "
        "are of the first-named method to that of the others which speaks most against the claim, "
        "in points where they are of accuracies, with 95 % intervals over seeds and clients. A "
        "claim holds if all its methods were run and every interval is above zero (or within the "
        "bound). It does not hold if one is below; with several others that interval is a wider "
        f"one (Bonferroni), not that shown.{few}"
    )
