"""Test a paper's claims: the difference that a study's runs show, and a verdict."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Percent
from fedloom.config.output_kinds import Methods, Paper, TableKind
from fedloom.config.settings import Output, Settings
from fedloom.planning.job_specs import TableJob
from fedloom.planning.output_runs import PlottedRun
from fedloom.report.metrics import evaluation, frame, grouped, percent
from fedloom.report.tables.accuracy import describe_rounds
from fedloom.report.tables.costs import cost_to_target, sent
from fedloom.report.tables.layout import EMPTY, Built, unmarked
from fedloom.report.tables.paper_claims import DOMAIN, EACH_DOMAIN, Listed, labels_of, read_claims
from fedloom.report.verdicts import ABOVE_ZERO, HOLDS, MOST_SEEDS, UNDECIDED, Term, Verdict, decide

COUNTS = ("params_up", "params_down")  # by the method alone
COSTS = ("rounds", "million_params")  # until the table's target is reached
COURSE = "course_mean"  # over all evaluated rounds, which rise earlier where training is faster
Scenario = tuple[str, ...]
Place = tuple[list[Scenario], list[Scenario]]  # those of `in`, and those of `from`
Study = dict[Scenario, dict[str, list[PlottedRun]]]  # runs by scenario and the paper's row


class NotRunError(Exception):
    """What a claim needs and the study does not have; its text says what."""


class Claims(TableKind):
    """A paper's claims on its results, each with a verdict from the study's runs.

    One seed decides nothing but numbers sent, and two rarely do. Of twenty claims on methods that
    do not differ, one is decided by chance.
    """

    methods: Methods = None
    paper: Paper
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

        It shows no other runs than those, in the scenarios that stand for a setting: what it shows
        is trained. Where none does, it shows all its methods, or all its scenarios.
        """
        paper = read_claims(self.paper, where / "paper")
        rows = self.rows or {}

        # labels of the whole config: a study may run others than the table was written for
        pairs = [f"{d}/{p}" for d in settings.datasets for p in settings.partitions]
        for key, chosen, known, names in (
            ("rows", rows, settings.methods, paper["rows"]),
            ("stands_for", self.stands_for, pairs, paper["settings"]),
        ):
            for label, values in chosen.items():
                (where / key).check_known(label, known, "the study has no")
                for name in values:
                    (where / key / label).check_known(name, names, "the claims have no")

        # what stands for the rows and the settings of the paper
        labels = labels_of(paper["rows"], [settings.methods[m] for m in output.methods], rows)
        compared = [label for label in output.methods if label in labels.values()]
        scenarios = [each for each in output.scenarios if str(each) in self.stands_for]
        return replace(
            output,
            methods=tuple(compared or output.methods),
            scenarios=tuple(scenarios or output.scenarios),
            extra={"labels": labels, "claims": paper["claims"], "citation": paper["citation"]},
        )

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a row per claim and scenario of the study that stands for one of its settings.

        Claims that no scenario can decide come last, a row each, with the reason.
        """
        study: Study = {
            scenario: {
                row: [run for run in group if run.method == label]
                for row, label in job.settings["labels"].items()
            }
            for scenario, group in grouped(runs).items()
        }

        # every claim in every scenario that stands for one of its settings
        tested = []
        rest = []
        for claim in job.settings["claims"]:
            reasons = dict[str, None]()
            count = len(tested)
            for setting in claim["in"] if "untested" not in claim else ():
                ends, starts = (self._scenarios(study, s) for s in ([setting], claim.get("from")))
                for place in _places(claim, ends, starts):
                    try:
                        tested.append(self._tested(claim, setting, place, study))
                    except NotRunError as reason:
                        reasons[str(reason)] = None
            if len(tested) == count:
                reason = claim.get("untested") or "; ".join(reasons) or "no such setting here"
                rest.append(_row(claim, [*claim["in"]], "not run", reason))

        table = pd.DataFrame(tested + rest).assign(paper=self.paper)
        texts = unmarked(pd.DataFrame(map(_cells, table.to_dict("records"))), 3)
        return Built(table, texts, _caption(job.settings["citation"], runs, table))

    def _scenarios(self, study: Study, settings: Any) -> list[Scenario]:
        """Return the scenarios of the study that stand for one of a paper's settings."""
        pairs = {pair for pair, names in self.stands_for.items() if {*names} & {*(settings or ())}}
        return [scenario for scenario in study if "/".join(scenario[:2]) in pairs]

    def _tested(self, claim: dict, setting: str, place: Place, study: Study) -> dict:
        """Return the row of a claim in a scenario, or in the average of some, or of its change."""
        of_row = study[place[0][0]]
        named = dict.fromkeys([*claim["above"], *claim["below"]])
        missing = ", ".join(row for row in named if row not in of_row)
        above, below = ([r for r in claim[side] if r in of_row] for side in ("above", "below"))
        if not above or (claim["below"] and not below):
            raise NotRunError(f"no run of {missing}")
        bounded = dict[str, None]()
        metrics = [claim["metric"]]
        if metrics == [EACH_DOMAIN]:
            rows = evaluation(of_row[above[0]][0].evaluation)
            domains = rows.loc[rows["participating"], "domain"].dropna().unique()
            metrics = [f"{DOMAIN}{name}" for name in sorted(domains)]
            if not metrics:
                raise NotRunError("no domains here")

        def side(row: str | None, metric: str, weight: float) -> list[Term]:
            terms = [
                self.term(study[scenario][row], metric, way / len(scenarios), scenario)
                for scenarios, way in zip(place, (weight, -weight), strict=True)
                for scenario in scenarios
                if row is not None
            ]
            bounded.update({f"{row}": None for term in terms if term.at_least})
            return terms

        pairs = [*product(metrics, above, below or [None])]
        other = claim.get("below_metric")
        times = claim.get("times", 1)
        verdict = decide(
            [[*side(one, m, 1), *side(rival, other or m, -times)] for m, one, rival in pairs],
            claim.get("within", ABOVE_ZERO),
        )
        reasons = [
            verdict.reason,
            f"{', '.join(bounded)} below {self.target:g} %" if bounded else "",
            f"without {missing}" if missing else "",
            _more_seeds(verdict, bool(missing)),
        ]
        # methods that were not run may be above
        text = UNDECIDED if missing and verdict.text == HOLDS else verdict.text
        low, high = verdict.difference.interval()
        here = [
            "/".join(first) + (f" and {len(more)} more" if more else "")
            for first, *more in filter(None, reversed(place))
        ]
        return _row(claim, [setting], text, "; ".join(filter(None, reasons))) | {
            "scenario": " to ".join(here),
            "rival": _against(claim, *pairs[verdict.rival]),
            "difference": verdict.difference.value,
            "low": low,
            "high": high,
            "seeds": verdict.difference.seeds,
        }

    def term(self, runs: list[PlottedRun], metric: str, weight: float, scenario: Scenario) -> Term:
        """Return a method's metric in one scenario, by seed, as a summand of a difference."""
        group = "participating" if metric == COURSE else metric
        group = group.removesuffix("_mean").removesuffix("_worst")
        values = dict[int, np.ndarray]()
        at_least = False
        statistic = "mean"
        for run in runs:
            if metric in COUNTS:
                numbers = np.array([[sent(run)[metric]]])
            elif metric in COSTS:
                if self.target is None:
                    raise NotRunError("the table has no target")
                cost = cost_to_target(evaluation(run.evaluation), frame(run.rounds), self.target)
                numbers = np.array([[cost[metric]]])
                at_least |= bool(cost[f"{metric}_above"])
            else:
                numbers = _numbers(run, metric, group)
            if not numbers.size:
                raise NotRunError(f"no {metric.replace('_', ' ')} here")
            values[run.seed] = numbers
        if metric.endswith("_worst"):
            statistic = "lowest" if runs[0].reported.worst_of else "worst"

        clients = f"{'/'.join(scenario)} {group}"
        return Term(weight, clients, statistic, values, at_least, metric in COUNTS)


def _numbers(run: PlottedRun, metric: str, group: str) -> np.ndarray:
    """Return losses [R, 1], or accuracies in percent of a group's clients [R, K].

    They are of the reported rounds; those of COURSE of all evaluated ones.
    """
    rows = frame(run.rounds) if metric == "train_loss" else evaluation(run.evaluation)
    rounds = run.reported.rounds
    if metric.endswith("_worst") and run.reported.worst_of:
        rounds = run.reported.worst_of
    if metric != COURSE:
        rows = rows[rows["round"].isin(rounds)]
    if metric == "train_loss":
        return rows[["train_loss"]].to_numpy()
    server = rows["client_id"] == SERVER_MODEL
    trains = rows["participating"]
    groups = {"global": server, "participating": trains, "held_out": ~server & ~trains}
    if group not in groups:
        groups[group] = trains & (rows["domain"] == group.removeprefix(DOMAIN))
    rows = rows.assign(value=percent(rows))[groups[group]]
    return rows.pivot(index="round", columns="client_id", values="value").to_numpy()


def _places(claim: dict, ends: list[Scenario], starts: list[Scenario]) -> Iterator[Place]:
    """Yield what a claim is tested in: one scenario or all of a backbone, and those it starts from.

    A claim on one scenario starts from those that differ from it in their partition alone.
    """
    if claim["average"]:
        for backbone in dict.fromkeys(network for *_, network in ends):
            end, start = ([s for s in group if s[2] == backbone] for group in (ends, starts))
            if start or "from" not in claim:
                yield end, start
        return
    for end in ends:
        if "from" not in claim:
            yield [end], []
        for start in starts:
            if start != end and (start[0], start[2]) == (end[0], end[2]):
                yield [end], [start]


def _more_seeds(verdict: Verdict, incomplete: bool) -> str:
    """Say how many seeds would decide, unless methods that were not run prevent that."""
    if verdict.leaning is None or (incomplete and verdict.leaning == HOLDS):
        return ""
    few = verdict.power <= MOST_SEEDS
    count = f"about {verdict.power}" if few else f"more than {MOST_SEEDS}"
    return f"{count} seeds in all would {'confirm' if verdict.leaning == HOLDS else 'refute'} it"


def _against(claim: dict, metric: str, above: str, below: str | None) -> str | None:
    """Name the comparison that a verdict rests on, as far as the claim's others differ from it."""
    text = " over ".join(([above] if len(claim["above"]) > 1 else []) + ([below] if below else []))
    if claim["metric"] == EACH_DOMAIN:
        text += f" in {metric.removeprefix(DOMAIN)}"
    return text.strip() or None


def _row(claim: dict, settings: list[str], verdict: str, reason: str) -> dict[str, Any]:
    """Return a row of the table without numbers from runs, with the paper's of all settings."""
    ends = [end for each in settings for end in claim["printed"].get(each) or ()]
    within = claim.get("within", ABOVE_ZERO)
    return {
        **{key: claim[key] for key in ("says", "where", "metric")},
        "setting": ", ".join(settings),
        "printed_low": min(ends, default=None),
        "printed_high": max(ends, default=None),
        "within_low": within[0],
        "within_high": within[1],
        "bound": claim.get("bound"),
        "scenario": EMPTY,
        **dict.fromkeys(("rival", "difference", "low", "high", "seeds")),
        "verdict": verdict,
        "reason": reason,
    }


def _cells(row: dict[Any, Any]) -> dict[str, str]:
    """Write a row by heading; a difference that is a bound has a sign, its interval one end."""
    low = row["low"]
    high = row["high"]
    printed = dict.fromkeys(map(_number, (row["printed_low"], row["printed_high"])))

    # a difference that is a bound has a sign
    difference = _number(row["difference"])
    interval = f"[{_number(low)}, {_number(high)}]"
    if low == -math.inf and high == math.inf:
        difference = interval = EMPTY
    elif high == math.inf:
        difference = f"> {difference}"
        interval = f"above {_number(low)}"
    elif low == -math.inf:
        difference = f"< {difference}"
        interval = f"below {_number(high)}"
    elif pd.isna(low):
        interval = EMPTY
    return {
        "Claim": row["says"] + (" (bound: ours)" if row["bound"] == "ours" else ""),
        "In the paper": row["where"],
        "Setting": row["setting"],
        "The paper's difference": " to ".join(printed),
        "Here": row["scenario"],
        "Difference": difference,
        "95 % interval": interval,
        "Against": EMPTY if pd.isna(row["rival"]) else row["rival"],
        "Seeds": EMPTY if pd.isna(row["seeds"]) else f"{row['seeds']:.0f}",
        "Verdict": row["verdict"] + (f" ({row['reason']})" if row["reason"] else ""),
    }


def _number(value: float | None) -> str:
    """Write a difference with its sign; large numbers in full."""
    if value is None or pd.isna(value):
        return EMPTY
    return f"{value:+.2f}" if abs(value) < 1e4 else f"{value:+.0f}"


def _caption(citation: str, runs: list[PlottedRun], table: pd.DataFrame) -> str:
    """Describe the comparison and the intervals, and count the verdicts."""
    counts = table["verdict"].value_counts().sort_index()
    verdicts = ", ".join(f"{count} {name}" for name, count in counts.items())
    few = f" Few seeds decide little, as {counts[UNDECIDED]} here." if UNDECIDED in counts else ""
    return (
        f"what {citation} claims, and what these runs show, {describe_rounds(runs)} "
        f"({verdicts}). Differences "
        "are of the first-named method to that of the others which speaks most against the claim, "
        "in points where they are of accuracies, with 95 % intervals over seeds and clients. A "
        "claim holds if all its methods were run and every interval is above zero (or within the "
        "bound). It does not hold if one is below; with several others that interval is a wider "
        f"one (Bonferroni), not that shown.{few}"
    )
