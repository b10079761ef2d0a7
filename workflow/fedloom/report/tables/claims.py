"""A paper's claims, each with the difference that a study's runs show, and a verdict."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from fedloom.common.errors import check_known
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.schema import OneOrMore, Percent
from fedloom.config.output_kinds import Methods, Paper, TableKind
from fedloom.config.settings import Output, Settings
from fedloom.report.metrics import evaluation, frame, grouped, percent
from fedloom.report.tables.claim_texts import caption, texts
from fedloom.report.tables.costs import sent, until
from fedloom.report.tables.layout import EMPTY, Built
from fedloom.report.tables.paper_claims import (
    DOMAIN,
    EACH_DOMAIN,
    labels_of,
    listed,
    read_claims,
)
from fedloom.report.verdicts import (
    ABOVE_ZERO,
    HOLDS,
    MOST_SEEDS,
    UNDECIDED,
    Statistic,
    Term,
    Verdict,
    decide,
)
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import PlottedRun

NOT_RUN = "not run"
NO_SETTING = "no such setting here"
NO_COMMON = "no data set in both settings"
ANY = "any"  # setting of a claim that is tested in scenarios that stand for all of them
COUNTS = ("params_up", "params_down")  # by the method alone
COSTS = ("rounds", "million_params")  # until the table's target is reached
COURSE = "course_mean"  # over all evaluated rounds, which rise earlier where training is faster
GROUPS = {"participating": True, "held_out": False}
Scenario = tuple[str, ...]
Place = tuple[list[Scenario], list[Scenario]]  # those of `in`, and those of `from`
Grouped = dict[Scenario, dict[str, list[PlottedRun]]]  # runs by scenario and method


class NotRunError(Exception):
    """What a claim needs and the study does not have; its text says what."""


class Claims(TableKind):
    """A paper's claims on its results, each with a verdict from the study's runs.

    One seed decides nothing but numbers sent, and two rarely do. Of twenty claims on methods that
    do not differ, one is decided by chance.
    """

    methods: Methods = None
    paper: Paper
    """A file of workflow/claims, as pep_fedpt."""
    rows: dict[str, OneOrMore[str]] | None = None
    """Method label -> the paper's row or rows (rows of workflow/claims); a label left out stands
    for the row that has its plugin, options and wrappers, or its title and no other options than
    the row states."""
    stands_for: dict[str, OneOrMore[str]] | None = None
    """<dataset>/<partition>, by their labels -> the setting or settings of workflow/claims that it
    stands for; default: each for any."""
    target: Percent | None = None
    """Mean accuracy in percent, for claims on what it costs to reach one."""

    def complete(self, settings: Settings, output: Output, where: str) -> Output:
        """Return the table with the paper's claims, and the labels that stand for its rows.

        It shows no other runs than those, in the scenarios that stand for a setting: what it shows
        is trained. Where none does, it shows all its methods, or all its scenarios.
        """
        paper = read_claims(self.paper, f"{where}.paper")
        rows, stands_for = self.rows or {}, self.stands_for or {}
        # of the whole config: a study may run others than the table was written for
        pairs = [f"{d}/{p}" for d in settings.datasets for p in settings.partitions]
        for key, chosen, known, names in (
            ("rows", rows, settings.methods, paper["rows"]),
            ("stands_for", stands_for, pairs, paper["settings"]),
        ):
            for label, value in chosen.items():
                check_known(label, known, f"{where}.{key}: the study has no")
                for name in listed(value):
                    check_known(name, names, f"{where}.{key}.{label}: the claims have no")
        methods = [settings.methods[label] for label in output.methods]
        labels = labels_of(paper["rows"], methods, rows)
        compared = [label for label in output.methods if label in labels.values()]
        scenarios = [scenario for scenario in output.scenarios if str(scenario) in stands_for]
        settings_of = {pair: listed(names) for pair, names in stands_for.items()}
        about = {key: paper[key] for key in ("claims", "citation")}
        return replace(
            output,
            methods=tuple(compared or output.methods),
            scenarios=tuple(scenarios or output.scenarios),
            extra={"stands_for": settings_of, "labels": labels} | about,
        )

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a row per claim and scenario of the study that stands for one of its settings.

        Claims that no scenario can decide come last, a row each, with the reason.
        """
        by_method: Grouped = {
            scenario: {name: of_name for (name,), of_name in grouped(group, ["method"]).items()}
            for scenario, group in grouped(runs).items()
        }
        tested, rest = [], []
        for claim in job.settings["claims"]:
            rows, reasons = self._rows(claim, by_method, job.settings["labels"])
            tested += rows
            if not rows:
                if len(reasons) > 1:  # of several settings, those that are here say more
                    reasons.pop(NO_SETTING, None)
                row = _row(claim, ANY, NOT_RUN, "; ".join(reasons))
                rest.append(row | {"setting": ", ".join(claim["in"])})
        table = pd.DataFrame(tested + rest).assign(paper=self.paper)
        return Built(table, texts(table), caption(job.settings["citation"], runs, table))

    def _rows(
        self, claim: dict, study: Grouped, labels: dict[str, str]
    ) -> tuple[list[dict], dict[str, None]]:
        """Return a row for every scenario that a claim can be tested in, and why not in others.

        Without `stands_for`, a scenario stands for all settings of a claim, and is tested once.
        """
        if "untested" in claim:
            return [], {claim["untested"]: None}
        rows, reasons = [], {}
        for setting in claim["in"] if self.stands_for else [ANY]:
            ends, starts = list(study), []
            if self.stands_for:
                ends = self._scenarios(study, setting)
                starts = self._scenarios(study, *claim.get("from", ()))
            places = list(_places(claim, ends, starts))
            if not places:
                absent = not ends or ("from" in claim and not starts)
                reasons[NO_SETTING if absent else NO_COMMON] = None
            for place in places:
                try:
                    rows.append(self._tested(claim, setting, place, study, labels))
                except NotRunError as reason:
                    reasons[str(reason)] = None
        return rows, reasons

    def _scenarios(self, study: Grouped, *settings: str) -> list[Scenario]:
        """Return the scenarios of the study that stand for one of a paper's settings."""
        stood = self.stands_for or {}
        return [s for s in study if {*stood.get("/".join(s[:2]), ())} & {*settings}]

    def _tested(
        self, claim: dict, setting: str, place: Place, study: Grouped, labels: dict[str, str]
    ) -> dict:
        """Return the row of a claim in a scenario, or in the average of some, or of its change.

        Raises:
            NotRunError: the runs cannot decide it.
        """
        named = [*claim["above"], *claim["below"]]
        missing = list(dict.fromkeys(row for row in named if row not in labels))
        above, below = ([r for r in claim[side] if r in labels] for side in ("above", "below"))
        if not above or (claim["below"] and not below):
            raise NotRunError(f"no run of {', '.join(missing)}")

        def side(row: str | None, metric: str, sign: float) -> list[Term]:
            return [
                self.term(study[scenario][labels[row]], metric, way / len(scenarios), scenario)
                for scenarios, way in zip(place, (sign, -sign), strict=True)
                for scenario in scenarios
                if row is not None
            ]

        metrics = _metrics(claim, study[place[0][0]][labels[above[0]]][0])
        pairs, sides = [], []
        for metric, one, other in product(metrics, above, below or [None]):
            right = side(other, claim.get("below_metric", metric), -claim.get("times", 1))
            pairs.append((metric, one, other))
            sides.append([(one, side(one, metric, 1)), (other, right)])
        comparisons = [[*left, *right] for (_, left), (_, right) in sides]
        verdict = decide(comparisons, claim.get("within", ABOVE_ZERO))
        rows = [each for pair in sides for each in pair]
        bounded = {str(row): None for row, terms in rows if any(term.at_least for term in terms)}
        reasons = [
            verdict.reason,
            f"{', '.join(bounded)} below {self.target:g} %" if bounded else "",
            f"without {', '.join(missing)}" if missing else "",
            _more_seeds(verdict, bool(missing)),
        ]
        here = " to ".join(_named(scenarios) for scenarios in reversed(place) if scenarios)
        # methods that were not run may be above
        text = UNDECIDED if missing and verdict.text == HOLDS else verdict.text
        return _row(claim, setting, text, "; ".join(filter(None, reasons)), here) | {
            "rival": _against(claim, *pairs[verdict.rival]),
            "difference": verdict.difference.value,
            "low": verdict.difference.low,
            "high": verdict.difference.high,
            "seeds": verdict.difference.seeds,
            "corrected": verdict.corrected,
        }

    def term(self, runs: list[PlottedRun], metric: str, weight: float, scenario: Scenario) -> Term:
        """Return a method's metric in one scenario, by seed, as a summand of a difference.

        Raises:
            NotRunError: the runs have no such metric.
        """
        group = "participating" if metric == COURSE else metric
        group = group.removesuffix("_mean").removesuffix("_worst")
        values, at_least = {}, False
        for run in runs:
            if metric in COUNTS:
                values[run.seed] = np.array([[sent(run)[metric]]])
            elif metric in COSTS:
                if self.target is None:
                    raise NotRunError("the table has no target")
                cost = until(evaluation(run.evaluation), frame(run.rounds), self.target)
                values[run.seed] = np.array([[cost[metric]]])
                at_least |= bool(cost[f"{metric}_above"])
            elif metric == "train_loss":
                rows = frame(run.rounds)
                rows = rows[rows["round"].isin(run.reported.rounds)]
                if rows.empty:
                    raise NotRunError("no training here")
                values[run.seed] = rows[["train_loss"]].to_numpy()  # [R, 1]
            else:
                values[run.seed] = _by_client(run, group, metric)
        statistic: Statistic = "mean"
        if metric.endswith("_worst"):
            statistic = "lowest" if runs[0].reported.worst_of else "worst"
        clients = f"{'/'.join(scenario)} {group}"
        return Term(weight, clients, statistic, values, at_least, metric in COUNTS)


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
    count = f"about {verdict.power}" if verdict.power else f"more than {MOST_SEEDS}"
    return f"{count} seeds in all would {'confirm' if verdict.leaning == HOLDS else 'refute'} it"


def _named(scenarios: list[Scenario]) -> str:
    """Name the scenario, or the first of some and how many more there are."""
    more = f" and {len(scenarios) - 1} more" if len(scenarios) > 1 else ""
    return "/".join(scenarios[0]) + more


def _against(claim: dict, metric: str, above: str, below: str | None) -> str | None:
    """Name the comparison that a verdict rests on, as far as the claim's others differ from it."""
    rows = [*([above] if len(claim["above"]) > 1 else []), *([below] if below else [])]
    text = " over ".join(rows)
    if claim["metric"] == EACH_DOMAIN:
        text += f" in {metric.removeprefix(DOMAIN)}"
    return text.strip() or None


def _metrics(claim: dict, run: PlottedRun) -> list[str]:
    """Return the metrics of a claim: one, or that of every domain with clients that train.

    Raises:
        NotRunError: the run has no domains.
    """
    if claim["metric"] != EACH_DOMAIN:
        return [claim["metric"]]
    rows = evaluation(run.evaluation)
    domains = rows.loc[rows["participating"], "domain"].dropna().unique()
    if not len(domains):
        raise NotRunError("no domains here")
    return [f"{DOMAIN}{name}" for name in sorted(domains)]


def _by_client(run: PlottedRun, group: str, metric: str) -> np.ndarray:
    """Return accuracies in percent [R, K] of the clients of a group at the reported rounds.

    Those of COURSE are of all evaluated rounds.
    """
    rows, reported = evaluation(run.evaluation), run.reported
    rounds = reported.rounds
    if metric.endswith("_worst") and reported.worst_of:
        rounds = reported.worst_of
    if metric != COURSE:
        rows = rows[rows["round"].isin(rounds)]
    server = rows["client_id"] == SERVER_MODEL
    if group == "global":
        rows = rows[server]
    elif group.startswith(DOMAIN):
        here = rows["domain"] == group.removeprefix(DOMAIN)
        rows = rows[~server & rows["participating"] & here]
    else:
        rows = rows[~server & (rows["participating"] == GROUPS[group])]
    if rows.empty:
        raise NotRunError(f"no {metric.replace('_', ' ')} here")
    table = rows.assign(value=percent(rows))
    return table.pivot(index="round", columns="client_id", values="value").to_numpy()


def _row(claim: dict, setting: str, verdict: str, reason: str, here: str = EMPTY) -> dict[str, Any]:
    """Return a row of the table without numbers from runs.

    The paper's differences are the smallest and the largest of the setting, or of all settings.
    """
    settings = claim["printed"] if setting == ANY else [setting]
    ends = [end for each in settings for end in claim["printed"].get(each) or ()]
    within = claim.get("within", ABOVE_ZERO)
    return {
        "says": claim["says"],
        "where": claim["where"],
        "metric": claim["metric"],
        "setting": setting,
        "printed_low": min(ends, default=None),
        "printed_high": max(ends, default=None),
        "within_low": within[0],
        "within_high": within[1],
        "bound": claim.get("bound"),
        "scenario": here,
        "above": ", ".join(claim["above"]),
        **dict.fromkeys(("rival", "difference", "low", "high", "seeds")),
        "corrected": False,
        "verdict": verdict,
        "reason": reason,
    }
