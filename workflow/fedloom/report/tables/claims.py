"""Test a paper's claims: tabulate the differences that a study's runs show, with verdicts."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import product

import pandas as pd

from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Percent
from fedloom.config.output_kinds import Methods, PaperName, TableKind
from fedloom.config.settings import OutputEntry, Settings
from fedloom.planning.job_specs import TableJob
from fedloom.report.metrics import grouped
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.claim_numbers import (
    NotRunError,
    Place,
    RunsByScenario,
    ScenarioLabels,
    StudyNumbers,
    claim_metrics,
)
from fedloom.report.tables.claim_text import (
    caption_of_claims,
    cells_of_row,
    explain_claims,
    line_on_not_run,
    name_of_comparison,
    name_of_place,
    seeds_to_decide,
    sentence_on_reasons,
)
from fedloom.report.tables.layout import EMPTY, FinishedTable, plain_text
from fedloom.report.tables.paper_claims import Listed, label_by_row, read_claims
from fedloom.report.verdicts import ABOVE_ZERO, HOLDS, UNDECIDED, decide


class Claims(TableKind):
    """A paper's claims on its results, each with a verdict from the study's runs.

    One seed decides only claims on how many numbers clients send, and two seeds rarely decide
    other claims. Of twenty claims on methods that do not differ, one is decided by chance.
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
    verdicts: bool = True
    """Whether the table has verdicts and the paper's differences. With false, it only shows the
    differences of the runs, for runs that say nothing about the paper."""

    def complete(self, settings: Settings, output: OutputEntry, where: KeyPath) -> OutputEntry:
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
        labels = label_by_row(paper["rows"], methods, rows)
        if settings.whole is not None:
            # in a part of a study, a row's method is that of the whole study, or none
            of_whole = settings.whole.tables[output.label].extra["labels"]
            labels = {row: label for row, label in of_whole.items() if label in output.methods}
        compared = [label for label in output.methods if label in labels.values()]
        scenarios = [each for each in output.scenarios if str(each) in self.stands_for]

        return replace(
            output,
            methods=tuple(compared or output.methods),
            scenarios=tuple(scenarios or output.scenarios),
            extra={"labels": labels, "claims": paper["claims"], "citation": paper["citation"]},
        )

    def build(self, runs: list[PlottedRun], job: TableJob) -> FinishedTable:
        """Return a row per claim and scenario, if the scenario stands for a setting of the claim.

        Claims that no scenario can decide come last. Each has one row, which states the reason. The
        text of the table leaves these rows out, and has one line on them below.
        """
        # the runs of every scenario, by the paper's row that their method stands for
        by_row: RunsByScenario = {}
        for scenario, group in grouped(runs).items():
            by_row[scenario] = {}
            for row, label in job.settings["labels"].items():
                by_row[scenario][row] = [run for run in group if run.method == label]
        study = StudyNumbers(by_row, self.target)

        # the rows of claims that at least one scenario can test, and of all other claims
        claims = job.settings["claims"]
        tested = []
        rest = []
        lacking = list[str]()
        for claim in claims:
            rows, reasons = self._rows_of(claim, study)
            tested += rows
            if rows:
                continue
            lacking.append("; ".join(reasons) or "no such setting here")
            if "untested" in claim:
                lacking[-1] = "no run can decide it"
            reason = claim.get("untested", lacking[-1])
            rest.append(_row(claim, [*claim["in"]], "not run", reason))

        # the rows as text, without those that were not run
        table = pd.DataFrame(tested + rest).assign(paper=self.paper)
        if not self.verdicts:
            table = _without_verdicts(table)
        cells = pd.DataFrame(map(cells_of_row, table.to_dict("records"))).head(len(tested))
        places = [str(row["where"]) for row in rest]
        texts = plain_text(cells, 3)._replace(notes=line_on_not_run(places, len(claims)))
        citation = job.settings["citation"]
        details = explain_claims(citation, runs, table) + sentence_on_reasons(lacking)
        return FinishedTable(table, texts, caption_of_claims(citation, table), details)

    def _rows_of(self, claim: dict, study: StudyNumbers) -> tuple[list[dict], list[str]]:
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
        self, study: StudyNumbers, settings: Collection[str] | None
    ) -> list[ScenarioLabels]:
        """Return the scenarios of the study that stand for one of a paper's settings."""
        pairs = {pair for pair, names in self.stands_for.items() if {*names} & {*(settings or ())}}
        return [scenario for scenario in study.runs if "/".join(scenario[:2]) in pairs]

    def _tested(self, claim: dict, setting: str, place: Place, study: StudyNumbers) -> dict:
        """Test a claim in a place: in one scenario or the average of several, or on a change.

        Returns the row of the table. Raises a NotRunError if the place lacks runs for the claim.
        """
        # the claim's methods that were run, and those that were not
        runs_by_row = study.runs[place.ends[0]]
        named = dict.fromkeys([*claim["above"], *claim["below"]])
        missing = ", ".join(row for row in named if row not in runs_by_row)
        above = [row for row in claim["above"] if row in runs_by_row]
        below = [row for row in claim["below"] if row in runs_by_row]
        if not above or (claim["below"] and not below):
            raise NotRunError(f"no run of {missing}")

        # the differences that must all be as the claim says
        metrics = claim_metrics(claim, runs_by_row[above[0]][0])
        pairs: list[tuple[str, str, str | None]] = [*product(metrics, above, below or [None])]
        rivals, bounded = study.differences(claim, pairs, place)
        verdict = decide(rivals, claim.get("within", ABOVE_ZERO))

        # a method that was not run could contradict the claim
        text = verdict.text
        if missing and text == HOLDS:
            text = UNDECIDED

        # what limits the verdict
        reasons = [verdict.reason]
        if bounded:
            reasons.append(f"{', '.join(bounded)} did not reach {self.target:g} %")
        if missing:
            reasons.append(f"without {missing}")
        reasons.append(seeds_to_decide(verdict, bool(missing)))

        row = _row(claim, [setting], text, "; ".join(filter(None, reasons)))
        low, high = verdict.difference.interval()
        return row | {
            "scenario": name_of_place(place),
            "rival": name_of_comparison(claim, *pairs[verdict.rival]),
            "difference": verdict.difference.value,
            "low": low,
            "high": high,
            "seeds": verdict.difference.seeds,
        }


def _without_verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of claims without verdicts, their reasons, and the paper's differences."""
    judged = table["verdict"] != "not run"
    return table.assign(
        printed_low=None,
        printed_high=None,
        verdict=table["verdict"].mask(judged, "not judged"),
        reason=table["reason"].mask(judged, ""),
    )


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
