"""A paper's claims, each with the difference that a study's runs show, and a verdict."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.schema import OneOrMore, Percent
from fedloom.config.claims import DOMAIN, EACH_DOMAIN, resolve_claims
from fedloom.config.output_kinds import Methods, Paper, TableKind
from fedloom.config.settings import Output, Settings
from fedloom.report.metrics import evaluation, frame, percent
from fedloom.report.paired import Statistic, Term
from fedloom.report.tables.accuracy import at
from fedloom.report.tables.communication import until
from fedloom.report.tables.layout import EMPTY, Built, Texts
from fedloom.report.tables.parameters import measure as parameters
from fedloom.report.tables.summary import by_scenario
from fedloom.report.verdicts import ABOVE_ZERO, HOLDS, UNDECIDED, decide
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

NOT_RUN = "not run"
NO_SETTING = "no such setting here"
NO_COMMON = "no data set in both settings"
ANY = "any"  # setting of a claim that is tested in scenarios that stand for all of them
OUR_BOUND = " (bound: ours)"
DECIMALS = 2
COUNTS = ("params_up", "params_down")  # by the method alone
COSTS = ("rounds", "million_params")  # until the table's target is reached
GROUPS = {"participating": True, "held_out": False}
COURSE = "course_mean"  # over all evaluated rounds, which rise earlier where training is faster
Scenario = tuple[str, ...]
Place = tuple[list[Scenario], list[Scenario]]  # those of `in`, and those of `from`


class Claims(TableKind):
    """A paper's claims on its results, each with a verdict from the study's runs."""

    caption = (
        "Differences of the first-named method to that of the others whose interval speaks "
        "most against the claim, with 95 % intervals: Student's t over seeds, and at least as "
        "wide as a paired bootstrap over clients. A claim holds if all methods that it names "
        "were run and every interval is above zero, or within its bound; it does not hold if "
        "one is below (of several others, a wider one than is shown: Bonferroni); else it is "
        "undecided. One seed decides nothing but numbers sent, and two rarely do. Of twenty "
        "claims on methods that do not differ, one is decided by chance."
    )

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
        """Return the table with the paper's claims, and the labels that stand for its rows."""
        return resolve_claims(settings, output, where)


class NotRunError(Exception):
    """What a claim needs and the study does not have; its text says what."""


def build(runs: list[ShownRun], job: TableJob) -> Built:
    """Return a row per claim and scenario of the study that stands for one of its settings.

    Claims that no scenario can decide come last, a row each, with the reason.
    """
    claims, entry = job.settings["claims"], job.settings
    grouped: dict[Scenario, dict[str, list[ShownRun]]] = {}
    for scenario, group in by_scenario(runs).items():
        methods = dict.fromkeys(run.method for run in group)
        grouped[scenario] = {m: [run for run in group if run.method == m] for m in methods}
    tested, rest = [], []
    for claim in claims:
        rows = list(_rows(claim, grouped, job))
        decided = [row for row in rows if row["verdict"] != NOT_RUN]
        tested += decided
        if not decided:
            reasons = dict.fromkeys(row["reason"] for row in rows)
            if len(reasons) > 1:  # of several settings, those that are here say more
                reasons.pop(NO_SETTING, None)
            row = _row(claim, ANY, NOT_RUN, "; ".join(reasons))
            rest.append(row | {"setting": ", ".join(claim["in"])})
    table = pd.DataFrame(tested + rest).assign(paper=entry["paper"])
    return Built(table, texts(table), caption(job, runs, table))


def _rows(claim: dict, grouped: dict[Scenario, Any], job: TableJob):
    """Yield a row for every scenario that a claim can be tested in, or one that says why not."""
    if "untested" in claim:
        yield _row(claim, next(iter(claim["in"])), NOT_RUN, claim["untested"])
        return
    given = job.settings["stands_for"]
    # where nothing is said, a scenario stands for all settings of a claim, and is tested once
    for setting in claim["in"] if given else [ANY]:
        ends = [s for s in grouped if _stands_for(s, setting, job)]
        starts = []
        if "from" in claim:
            (origin,) = claim["from"]
            starts = [s for s in grouped if given and _stands_for(s, origin, job)]
        if not ends or ("from" in claim and not starts):
            yield _row(claim, setting, NOT_RUN, NO_SETTING)
            continue
        places = list(_places(claim, ends, starts))
        if not places:
            yield _row(claim, setting, NOT_RUN, NO_COMMON)
        for place in places:
            yield _tested(claim, setting, place, grouped, job)


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
        dataset, partition, network = end
        if "from" not in claim:
            yield [end], []
        for start in starts:
            if start[0] == dataset and start[1] != partition and start[2] == network:
                yield [end], [start]


def _stands_for(scenario: Scenario, setting: str, job: TableJob) -> bool:
    """Return True if a scenario of the study stands for a paper's setting; by default for all."""
    given = job.settings["stands_for"]
    return not given or setting in given.get("/".join(scenario[:2]), ())


def _tested(
    claim: dict, setting: str, place: Place, grouped: dict[Scenario, Any], job: TableJob
) -> dict:
    """Return the row of a claim in a scenario, or in the average of some, or of its change."""
    labels = job.settings["labels"]
    here = " to ".join(_named(scenarios) for scenarios in reversed(place) if scenarios)
    above, below = ([row for row in claim[side] if row in labels] for side in ("above", "below"))
    missing = [row for row in (*claim["above"], *claim["below"]) if row not in labels]
    if not above or (claim["below"] and not below):
        names = dict.fromkeys(missing)
        return _row(claim, setting, NOT_RUN, f"no run of {', '.join(names)}", here)

    def side(row: str | None, metric: str, sign: float) -> list[Term]:
        return [
            term(grouped[scenario][labels[row]], metric, way / len(scenarios), scenario, job)
            for scenarios, way in zip(place, (sign, -sign), strict=True)
            for scenario in scenarios
            if row is not None
        ]

    times = claim.get("times", 1)
    compared: list[tuple[str, str, str | None]] = []
    sides: list[tuple[list[Term], list[Term]]] = []
    try:
        metrics = _metrics(claim, grouped[place[0][0]][labels[above[0]]][0])
        for metric, one, other in product(metrics, above, below or [None]):
            compared.append((metric, one, other))
            right = side(other, claim.get("below_metric", metric), -times)
            sides.append((side(one, metric, 1), right))
    except NotRunError as reason:
        return _row(claim, setting, NOT_RUN, str(reason), here)
    verdict = decide([left + right for left, right in sides], claim.get("within", ABOVE_ZERO))
    reasons = [verdict.reason] if verdict.reason else []
    short = {
        str(row): None
        for (_, *rows), pair in zip(compared, sides, strict=True)
        for row, terms in zip(rows, pair, strict=True)
        if any(each.at_least for each in terms)
    }
    if short:
        reasons.append(f"{', '.join(short)} below {job.settings['target']:g} %")
    if missing:
        reasons.append(f"without {', '.join(missing)}")
    found = verdict.difference
    # what was not run may be above
    text = UNDECIDED if missing and verdict.text == HOLDS else verdict.text
    return _row(claim, setting, text, "; ".join(reasons), here) | {
        "rival": _against(claim, *compared[verdict.rival]),
        "difference": found.value,
        "low": found.low,
        "high": found.high,
        "seeds": found.seeds,
        "corrected": verdict.corrected,
    }


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


def _metrics(claim: dict, run: ShownRun) -> list[str]:
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


def term(
    runs: list[ShownRun], metric: str, weight: float, scenario: Scenario, job: TableJob
) -> Term:
    """Return a method's metric in one scenario, by seed, as a summand of a difference.

    Raises:
        NotRunError: the runs have no such metric.
    """
    read, clients = _reader(metric, job)
    values = {run.seed: read(run) for run in runs}
    at_least = metric in COSTS and any(_until(run, job)[f"{metric}_above"] for run in runs)
    statistic: Statistic = "mean"
    if metric.endswith("_worst"):
        statistic = "lowest" if runs[0].reported.worst_of else "worst"
    return Term(
        weight, f"{'/'.join(scenario)} {clients}", statistic, values, at_least, metric in COUNTS
    )


def _reader(metric: str, job: TableJob) -> tuple[Callable[[ShownRun], np.ndarray], str]:
    """Return how a run's metric is read as [R, K], and whose it is."""
    if metric in COUNTS:
        return lambda run: np.array([[parameters(run, job)[metric]]]), metric
    if metric in COSTS:
        return lambda run: np.array([[_until(run, job)[metric]]]), metric

    if metric == "train_loss":
        return lambda run: _train_loss(run), metric
    group = "participating" if metric == COURSE else metric
    group = group.removesuffix("_mean").removesuffix("_worst")
    return lambda run: _by_client(run, group, metric), group


def _until(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return what a run costs until the table's target is reached, see `until`."""
    target = job.settings.get("target")
    if target is None:
        raise NotRunError("the table has no target")
    return until(evaluation(run.evaluation), frame(run.rounds), target)


def _train_loss(run: ShownRun) -> np.ndarray:
    """Return the mean training loss over selected clients [R, 1] at the reported rounds."""
    rows = frame(run.rounds)
    rows = rows[rows["round"].isin(run.reported.rounds)]
    if rows.empty:
        raise NotRunError("no training here")
    return rows[["train_loss"]].to_numpy()


def _by_client(run: ShownRun, group: str, metric: str) -> np.ndarray:
    """Return accuracies in percent [R, K] of the clients of a group at the reported rounds.

    Those of COURSE are of all evaluated rounds.
    """
    rows = evaluation(run.evaluation)
    reported = run.reported
    rounds = (
        reported.worst_of if metric.endswith("_worst") and reported.worst_of else reported.rounds
    )
    if metric != COURSE:
        rows = rows[rows["round"].isin(rounds)]
    server = rows["client_id"] == SERVER_MODEL
    if group == "global":
        rows = rows[server]
    elif group in GROUPS:
        rows = rows[~server & (rows["participating"] == GROUPS[group])]
    elif group.startswith(DOMAIN):
        here = rows["domain"] == group.removeprefix(DOMAIN)
        rows = rows[~server & rows["participating"] & here]
    else:
        raise NotRunError(f"no metric '{metric}' here")
    if rows.empty:
        raise NotRunError(f"no {metric.replace('_', ' ')} here")
    columns = {"round": rows["round"], "client": rows["client_id"], "value": percent(rows)}
    table = pd.DataFrame(columns)
    return table.pivot(index="round", columns="client", values="value").to_numpy()


def _row(claim: dict, setting: str, verdict: str, reason: str, here: str = EMPTY) -> dict:
    """Return a row of the table without numbers of its own."""
    printed = _all_printed(claim) if setting == ANY else claim["printed"].get(setting)
    within = claim.get("within", ABOVE_ZERO)
    return {
        "says": claim["says"],
        "where": claim["where"],
        "metric": claim["metric"],
        "setting": setting,
        "printed_low": printed[0] if printed else None,
        "printed_high": printed[1] if printed else None,
        "within_low": within[0],
        "within_high": within[1],
        "bound": claim.get("bound"),
        "scenario": here,
        "above": ", ".join(claim["above"]),
        "rival": None,
        "difference": None,
        "low": None,
        "high": None,
        "seeds": None,
        "corrected": False,
        "verdict": verdict,
        "reason": reason,
    }


def _all_printed(claim: dict) -> list[float] | None:
    """Return the smallest and the largest of the paper's differences over all settings."""
    ends = [end for printed in claim["printed"].values() if printed for end in printed]
    return [min(ends), max(ends)] if ends else None


def texts(table: pd.DataFrame) -> Texts:
    """Return the rows as text: the claim, where it stands, what the paper and the runs show."""
    rows = [
        {
            "claim": row["says"] + (OUR_BOUND if row["bound"] == "ours" else ""),
            "where": row["where"],
            "setting": row["setting"],
            "printed": _range(row["printed_low"], row["printed_high"]),
            "scenario": row["scenario"],
            "difference": _difference(row["difference"], row["low"], row["high"]),
            "interval": _interval(row["low"], row["high"]),
            "rival": EMPTY if pd.isna(row["rival"]) else row["rival"],
            "seeds": EMPTY if pd.isna(row["seeds"]) else f"{row['seeds']:.0f}",
            "verdict": row["verdict"] + (f" ({row['reason']})" if row["reason"] else ""),
        }
        for row in table.to_dict("records")
    ]
    cells = pd.DataFrame(rows)
    titles = [
        "Claim", "In the paper", "Setting", "The paper's difference", "Here", "Difference",
        "95 % interval", "Against", "Seeds", "Verdict",
    ]  # fmt: skip
    marks = pd.DataFrame("", index=cells.index, columns=cells.columns)
    return Texts(cells, marks, titles, 3)


def _number(value: float | None) -> str:
    """Write a difference with its sign; large numbers in full."""
    if value is None or pd.isna(value):
        return EMPTY
    return f"{value:+.{DECIMALS}f}" if abs(value) < 1e4 else f"{value:+.0f}"


def _difference(value: float | None, low: float | None, high: float | None) -> str:
    """Write a difference, after a sign if its interval, which has one end, says it is a bound."""
    if low == -math.inf and high == math.inf:
        return EMPTY
    side = "> " if high == math.inf else "< " if low == -math.inf else ""
    return side + _number(value)


def _range(low: float | None, high: float | None) -> str:
    """Write the smallest and the largest of the paper's differences, as one if they are equal."""
    first, last = _number(low), _number(high)
    return first if first == last else f"{first} to {last}"


def _interval(low: float | None, high: float | None) -> str:
    """Write the ends of an interval, those that it has."""
    if low is None or high is None or pd.isna(low) or (math.isinf(low) and math.isinf(high)):
        return EMPTY
    if math.isinf(high):
        return f"above {_number(low)}"
    return f"below {_number(high)}" if math.isinf(low) else f"[{_number(low)}, {_number(high)}]"


def caption(job: TableJob, runs: list[ShownRun], table: pd.DataFrame) -> str:
    """Say what is compared, how an interval comes about, and how many verdicts there are."""
    counts = table["verdict"].value_counts()
    found = ", ".join(f"{counts[name]} {name}" for name in sorted(counts.index))
    undecided = int((table["verdict"] == UNDECIDED).sum())
    corrected = int(table["corrected"].sum())
    title = job.title or f"Study {job.study}"
    text = (
        f"{title}: what {job.settings['citation']} claims, and what these runs show, "
        f"{at(runs)} ({found}). Differences are of the first-named method to that of the others "
        "which speaks most against the claim, in points where they are of accuracies; their 95 % "
        "intervals are of Student's t "
        "over seeds, and at least as wide as a paired bootstrap over clients. A claim holds if all "
        "methods that it names were run and every interval is above zero (or within the bound). It "
        "does not hold if one is below; "
        "with several others that interval is a wider one (Bonferroni), not that shown. Else it is "
        "undecided"
    )
    if corrected:
        text += f", {corrected} only since there are several others"
    return text + (f"; few seeds decide little, as {undecided} here." if undecided else ".")
