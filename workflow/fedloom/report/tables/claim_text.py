"""Write the rows of a table of claims as text, and its caption."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping
from string import ascii_lowercase
from typing import Any

import pandas as pd

from fedloom.report.metrics import DOMAIN_PREFIX
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.accuracy import describe_rounds
from fedloom.report.tables.claim_numbers import Place
from fedloom.report.tables.layout import EMPTY
from fedloom.report.tables.paper_claims import EACH_DOMAIN
from fedloom.report.verdicts import HOLDS, MOST_SEEDS, UNDECIDED, Verdict

# tables or figures in the place of a claim, such as "Tables 3 and 13" or "Fig. 4, 7 to 9"
OUTPUTS = re.compile(r"(Table|Fig\.)s? ((?:\d+[a-z]?(?:, | and | to |-)?)+)")
NUMBERS = re.compile(r"\d+[a-z]?(?: to \d+)?")


def name_of_place(place: Place) -> str:
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


def seeds_to_decide(verdict: Verdict, incomplete: bool) -> str:
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


def name_of_comparison(claim: dict, metric: str, above: str, below: str | None) -> str | None:
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


def cells_of_row(row: Mapping[Hashable, Any]) -> dict[str, str]:
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


def line_on_not_run(places: list[str], claims: int) -> tuple[str, ...]:
    """Return a line that counts the claims that were not run, and names their tables; () if none.

    `places` says of each of them where it stands in the paper, such as "Table 1, Section 5.1". The
    paper has `claims` claims in all.
    """
    if not places:
        return ()
    line = (
        f"Not run: {len(places)} of {claims} claims, which are about {name_outputs(places)}. The "
        "CSV and Parquet files of this table have a row for each."
    )
    return (line,)


def name_outputs(places: list[str]) -> str:
    """Name the paper's tables and figures in some places, each once, and places without any.

    For "Tables 3 and 13, Section 5", "Fig. 2, Section 4" and "Section 6", this returns
    "Tables 3, 13; Fig. 2; Section 6".
    """
    numbers: dict[str, set[str]] = {"Table": set(), "Fig.": set()}
    others = dict[str, None]()
    for place in places:
        found = OUTPUTS.findall(place)
        for output, listed in found:
            numbers[output].update(NUMBERS.findall(listed.replace("-", " to ")))
        if not found:
            others[place] = None

    parts = []
    for output, each in numbers.items():
        in_order = sorted(each, key=_leading_number)
        heading = output
        is_single = len(each) == 1 and " to " not in in_order[0]
        if output == "Table" and not is_single:
            heading = "Tables"
        if each:
            parts.append(f"{heading} {', '.join(in_order)}")
    return "; ".join([*parts, *others])


def _leading_number(text: str) -> tuple[int, str]:
    """Return the number at the start of a text such as "6b" or "7 to 9", and the text."""
    return int(text.split()[0].rstrip(ascii_lowercase)), text


def sentence_on_reasons(reasons: list[str]) -> tuple[str, ...]:
    """Return a sentence on why claims were not run, the most frequent reasons first; () if none.

    `reasons` has an entry for each of these claims.
    """
    if not reasons:
        return ()
    counted = [f"{reason} ({count})" for reason, count in Counter(reasons).most_common()]
    return (f"Claims were not run because of: {'; '.join(counted)}.",)


def caption_of_claims(citation: str, table: pd.DataFrame) -> str:
    """Name the paper by its authors, and count the verdicts."""
    authors = citation.split(",")[0]
    counts = table["verdict"].value_counts().sort_index()
    verdicts = ", ".join(f"{name} ({count})" for name, count in counts.items())
    return f"claims of {authors}, with these verdicts: {verdicts}."


def explain_claims(citation: str, runs: list[PlottedRun], table: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences on the paper, the comparison, the intervals and the verdicts."""
    sentences = [
        f"The claims are those of {citation}.",
        f"Accuracies are from {describe_rounds(runs)}.",
        "Of the differences that a claim is about, the table shows the one that speaks most "
        "against the claim, with its 95 % interval over seeds and clients; the column Against "
        "names what is compared.",
        "Differences of accuracies are in points.",
        "A claim holds if all its methods were run and every interval is above zero (or within "
        "the claim's bound).",
        "It does not hold if one interval lies outside.",
        "If a claim has several differences, this test uses wider intervals (Bonferroni) than the "
        "one shown.",
    ]
    undecided = (table["verdict"] == UNDECIDED).sum()
    if undecided:
        sentences.append(f"Few seeds decide few claims: {undecided} are undecided.")
    return tuple(sentences)
