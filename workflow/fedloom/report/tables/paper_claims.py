"""What papers say of their results (workflow/claims), matched to the methods of a study."""

from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.schema import Distinct, Keys, Number, OneOrMore, checked
from fedloom.config.published import read_paper
from fedloom.config.settings import Method
from fedloom.hooks.manifest import find

FOLDER = ROOT / "workflow/claims"
Ends = (
    Annotated[Number, Field(gt=0)]
    | Annotated[list[Number | None], Field(min_length=2, max_length=2)]
)
Columns = Annotated[dict[str, list[str]], Field(min_length=1)]
EACH_DOMAIN, DOMAIN = "each_domain", "domain_"  # metric of a claim, and what it stands for


class Row(Keys):
    """A method that claims are about."""

    plugin: str
    options: dict[str, Any] = Field({})
    """Other than the plugin's defaults."""
    wrappers: list[str] = Field([])
    """Names of plugins."""
    free: Distinct[str] = Field([])
    """Options that may have any value, as one that the paper sets by data set."""
    printed: list[str] = Field([])
    """Its other names in workflow/published, tried in this order."""


class Claim(Keys):
    """A sentence of a paper on its results."""

    says: str = Field(pattern=r"^[^\n]+$")
    """The claim in one line."""
    where: str
    """Where in the paper it stands, as Table 1, Section 5.1."""
    above: OneOrMore[str] = Field([])
    """Row or rows whose metric is the higher one, each above each of `below`."""
    below: OneOrMore[str] = Field([])
    """Row or rows whose metric is lower than that of `above`."""
    metric: str = "participating_mean"
    """A metric of workflow/published; each_domain: the mean over clients in every domain; or
    train_loss (at the reported rounds), course_mean (participating clients, over all evaluated
    rounds)."""
    below_metric: str | None = None
    """Metric of `below`; default: that of `above`."""
    in_: Columns = Field(alias="in")
    """Setting -> columns of the paper's table."""
    from_: Columns | None = Field(None, alias="from")
    """The claim is about changes from this setting (one) to those of `in`; without `below` about
    that of `above` alone."""
    average: bool = False
    """The claim is about the average over all columns of a setting, and over all scenarios that
    stand for it."""
    times: Number | None = Field(None, gt=1)
    """`above` is higher than this many times `below`."""
    within: Ends | None = None
    """The claim is that the difference is no larger than this, either way; or that it lies between
    two ends, null for none: [0, 1] is higher by no more than 1."""
    bound: Literal["paper", "ours"] | None = None
    """Whose number `within` or `times` is. It is ours where the paper says "slightly", and where it
    prints a margin. The claim then asks for half of the margin: runs that repeat the paper scatter
    around the whole margin, and could not decide."""
    table: OneOrMore[int] | None = None
    """Table or tables of workflow/published with the paper's numbers."""
    by: Annotated[list[Number], Field(min_length=1)] | None = None
    """The paper's differences, where they are not of one table."""
    untested: str | None = None
    """Why no run can decide it."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if (self.bound is None) != (self.within is None and self.times is None):
            raise ValueError("bound must accompany within or times, and nothing else")
        if self.untested is None and not (self.above and (self.below or self.from_)):
            raise ValueError("must have above and below, or above and from, or untested")
        if self.from_ is not None and len(self.from_) != 1:
            raise ValueError("from: must be one setting")
        within = self.within if isinstance(self.within, list) else [0.0, None]
        ends = [end for end in within if end is not None]
        if not ends or (len(ends) == 2 and ends[0] >= ends[1]):
            raise ValueError("within: must be two ends, the lower one first, or one and null")
        return self


class PaperClaims(Keys):
    """workflow/claims/<paper>.yaml: what a paper says of its results."""

    rows: Annotated[dict[str, Row], Field(min_length=1)]
    """The methods that the claims are about, by the names that the paper gives them."""
    settings: Annotated[dict[str, str], Field(min_length=1)]
    """Kinds of heterogeneity that the claims are about, each with a line on what it is."""
    claims: Annotated[list[Claim], Field(min_length=1)]


def read_claims(paper: str, where: str) -> dict[str, Any]:
    """Return the rows, settings and claims of a paper, defaults filled in.

    `above` and `below` are lists, `within` the two ends of the differences that are claimed, None
    for an open end. Every claim has `printed`: the smallest and the largest difference by the
    paper's own numbers over the columns of a setting, by setting; None where it prints none.
    """
    name = f"workflow/claims/{paper}.yaml"
    content = checked(PaperClaims, read_paper(paper, where, FOLDER), f"{name} ")
    rows = {row: entry.plain for row, entry in content.rows.items()}
    published = read_paper(paper, where)
    claims = []
    for number, entry in enumerate(content.claims):
        claim, at = entry.plain, f"{name} claims[{number}]"
        for side in ("above", "below"):
            claim[side] = listed(claim[side])
            for row in claim[side]:
                check_known(row, rows, f"{at}.{side}: no row")
        for setting in (*claim["in"], *claim.get("from", ())):
            check_known(setting, content.settings, f"{at}: in or from: no setting")
        if isinstance(claim.get("within"), int | float):
            claim["within"] = [-claim["within"], claim["within"]]
        claim["printed"] = {
            setting: _printed(claim, columns, rows, published["tables"], at)
            for setting, columns in claim["in"].items()
        }
        claims.append(claim)
    citation = published["citation"]
    return {"rows": rows, "settings": content.settings, "claims": claims, "citation": citation}


def listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _printed(
    claim: dict, columns: list[str], rows: dict, tables: dict, where: str
) -> list[float] | None:
    """Return the smallest and the largest difference of the paper's numbers over some columns.

    The difference is that of the pair of rows that speaks most against the claim; where the claim
    has an upper end, those of all pairs.
    """
    if "by" in claim:
        return [min(claim["by"]), max(claim["by"])]
    if "table" not in claim or not columns:
        return None
    numbers = claim["table"] if isinstance(claim["table"], list) else [claim["table"]]
    printed = [tables[number]["rows"] for number in numbers]

    def cell(row: str, column: str) -> dict:
        names = [row, *rows[row]["printed"]]
        return next((t[n][column] for t in printed for n in names if column in t.get(n, {})), {})

    def level(row: str, metric: str, columns: list[str]) -> float:
        total = 0.0
        for column in columns:
            value = cell(row, column).get(metric)
            if value is None:
                text = ", ".join(map(str, numbers))
                line = f"{where}: Table {text} has no {metric} of '{row}' in '{column}'"
                raise FedLoomError(line)
            total += float(next(iter(value.values())) if isinstance(value, dict) else value[0])
        return total / max(len(columns), 1)

    def change(row: str, metric: str, place: tuple[list[str], list[str]]) -> float:
        return level(row, metric, place[0]) - level(row, metric, place[1])

    (starts,) = claim["from"].values() if "from" in claim else ([],)
    places = [(columns, starts)]
    if not claim["average"]:
        before = [[start] for start in starts] or [[] for _ in columns]
        places = list(zip(([column] for column in columns), before, strict=True))
    lowest, highest = [], []
    for place in places:
        metrics = [claim["metric"]]
        if metrics == [EACH_DOMAIN]:
            first = cell(claim["above"][0], place[0][0])
            metrics = [name for name in first if name.startswith(DOMAIN)]
        pairs = []
        for metric, above, row in product(metrics, claim["above"], claim["below"] or [None]):
            other = claim.get("below_metric", metric)
            less = claim.get("times", 1) * change(row, other, place) if row else 0.0
            pairs.append(change(above, metric, place) - less)
        lowest.append(min(pairs))
        highest.append(max(pairs))
    bounded = claim.get("within", [None, None])[1] is not None
    return [round(min(lowest), 6), round(max(highest if bounded else lowest), 6)]


def labels_of(rows: dict[str, dict], methods: list[Method], chosen: dict[str, Any]) -> dict:
    """Return {the paper's row: method label} for the rows that one of the methods stands for.

    A label that `chosen` does not name stands for a row of its plugin and wrappers: one whose
    options are equal; else one whose options are equal except for the free ones; else one whose
    name is its title, if the options that the row states are equal.

    Args:
        methods: of the table.
        chosen: {label: row or list of rows}, what the config says.
    """
    labels = {}
    for row, entry in rows.items():
        options = find(entry["plugin"]).options(entry["options"], row)
        for option in entry["free"]:
            check_known(option, options, f"rows.{row}.free: no option")
        ranks = {}
        for method in methods:
            rank = _rank(row, entry, options, method)
            if method.label in chosen:
                rank = 0 if row in listed(chosen[method.label]) else None
            if rank is not None:
                ranks[method.label] = rank
        if ranks:
            labels[row] = min(ranks, key=ranks.__getitem__)
    return labels


def _rank(row: str, entry: dict, options: dict[str, Any], method: Method) -> int | None:
    """Return how well a method stands for a row of these options, 1 best; None: not at all."""
    wrappers = [wrapper.plugin for wrapper in method.wrappers]
    if method.plugin != entry["plugin"] or wrappers != entry["wrappers"]:
        return None
    other = {name for name, value in options.items() if method.options[name] != value}
    if not other:
        return 1
    if other <= set(entry["free"]):
        return 2
    return 3 if method.title == row and not other & set(entry["options"]) else None
