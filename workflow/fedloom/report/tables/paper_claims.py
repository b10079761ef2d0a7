"""What papers say of their results (their claims.yaml), matched to the methods of a study."""

import math
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.schema import Distinct, Keys, Number, OneOrMore, checked
from fedloom.config.reading import CLAIMS, read_paper
from fedloom.config.settings import Method
from fedloom.hooks.manifest import find
from fedloom.report.tables.published import number

# the metric of a claim that holds in every domain
EACH_DOMAIN = "each_domain"
# how the metrics begin that it stands for
DOMAIN = "domain_"


def _listed(value: Any) -> Any:
    """Return a value that stands alone as a list of one."""
    return value if isinstance(value, list) else [value]


Listed = Annotated[
    list[str],
    BeforeValidator(_listed, json_schema_input_type=OneOrMore[str]),
    Field(min_length=1),
]
# one number is a range that reaches as far either way
Range = Annotated[
    list[Number | None],
    BeforeValidator(lambda v: [-v, v] if isinstance(v, int | float) else v),
    Field(min_length=2, max_length=2),
]
Columns = Annotated[dict[str, list[str]], Field(min_length=1)]


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
    """Its other names in numbers.yaml, tried in this order."""


class Claim(Keys):
    """A sentence of a paper on its results."""

    says: str = Field(pattern=r"^[^\n]+$")
    """The claim in one line."""
    where: str
    """Where in the paper it stands, as Table 1, Section 5.1."""
    above: Listed = Field([])
    """Row or rows whose metric is the higher one, each above each of `below`."""
    below: Listed = Field([])
    """Row or rows whose metric is lower than that of `above`."""
    metric: str = "participating_mean"
    """A metric of numbers.yaml; each_domain: the mean over clients in every domain;
    train_loss; or course_mean: participating clients, over all evaluated rounds."""
    below_metric: str | None = None
    """Metric of `below`; default: that of `above`."""
    in_: Columns = Field(alias="in")
    """Setting -> columns of the paper's table."""
    from_: Columns | None = Field(None, alias="from", max_length=1)
    """The claim is about changes from this setting to those of `in`; without `below` of `above`."""
    average: bool = False
    """It is about the average over all columns of a setting, or scenarios that stand for it."""
    times: Number | None = Field(None, gt=1)
    """`above` is higher than this many times `below`."""
    within: Range | None = None
    """The claim is that the difference is no larger than this, either way; or that it lies between
    two ends, null for none: [0, 1] is higher by no more than 1."""
    bound: Literal["paper", "ours"] | None = None
    """Whose number `within` or `times` is: ours where the paper says "slightly", or prints a
    margin, of which the claim asks half, since runs that repeat the paper scatter around it."""
    table: Annotated[list[int], BeforeValidator(_listed)] | None = None
    """Table or tables of numbers.yaml with the paper's numbers."""
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
        return self


class PaperClaims(Keys):
    """workflow/papers/<paper>/claims.yaml: what a paper says of its results."""

    rows: Annotated[dict[str, Row], Field(min_length=1)]
    """The methods that the claims are about, by the names that the paper gives them."""
    settings: Annotated[dict[str, str], Field(min_length=1)]
    """Kinds of heterogeneity that the claims are about, each with a line on what it is."""
    claims: Annotated[list[Claim], Field(min_length=1)]


def read_claims(paper: str, where: str) -> dict[str, Any]:
    """Return the rows, settings and claims of a paper, defaults filled in, and its citation.

    Every claim has `printed` by setting, see `_printed`.
    """
    name = f"workflow/papers/{paper}/claims.yaml"
    content = checked(PaperClaims, read_paper(paper, where, CLAIMS), f"{name} ").plain
    published = read_paper(paper, where)

    # the names in every claim, and what the paper prints for its settings
    for position, claim in enumerate(content["claims"]):
        at = f"{name} claims[{position}]"
        for row in (*claim["above"], *claim["below"]):
            check_known(row, content["rows"], f"{at}: no row")
        for setting in (*claim["in"], *claim.get("from", ())):
            check_known(setting, content["settings"], f"{at}: in or from: no setting")

        claim["printed"] = {
            setting: _printed(claim, columns, content["rows"], published["tables"], at)
            for setting, columns in claim["in"].items()
        }

    return content | {"citation": published["citation"]}


def _printed(
    claim: dict, columns: list[str], rows: dict, tables: dict, where: str
) -> list[float] | None:
    """Return the smallest and largest difference of the paper's numbers over a setting's columns.

    The difference is that of the pair of rows that speaks most against the claim; where the claim
    has an upper end, those of all pairs. Return None where the paper prints none.
    """
    if "by" in claim:
        return [min(claim["by"]), max(claim["by"])]
    if "table" not in claim or not columns:
        return None

    printed = [tables[table]["rows"] for table in claim["table"]]

    def cell(row: str, column: str) -> dict:
        """Return the numbers of a row in a column, from the first table that has them."""
        for table, name in product(printed, [row, *rows[row]["printed"]]):
            if column in table.get(name, {}):
                return table[name][column]
        return {}

    def level(row: str, metric: str, columns: list[str]) -> float:
        """Return the mean of a row's numbers over some columns; 0 over none."""
        values = [number(cell(row, column).get(metric)) for column in columns]
        if any(map(math.isnan, values)):
            raise FedLoomError(
                f"{where}: table {claim['table']} has no {metric} of '{row}' in {columns}"
            )
        return sum(values) / max(len(columns), 1)

    def change(row: str, metric: str, end: list[str], start: list[str]) -> float:
        return level(row, metric, end) - level(row, metric, start)

    # the columns of each difference, and those that it starts from: all together for an average
    (starts,) = claim.get("from", {"": []}).values()
    places: list[tuple[list[str], list[str]]] = []
    if claim["average"]:
        places.append((columns, starts))
    else:
        for end, start in zip(columns, starts or [None] * len(columns), strict=True):
            places.append(([end], [start] if start else []))

    # the differences of all pairs of rows, and in each place the one that speaks most against it
    every = []
    smallest = []
    times = claim.get("times", 1)
    for place in places:
        metrics = [claim["metric"]]
        if metrics == [EACH_DOMAIN]:
            metrics = [m for m in cell(claim["above"][0], place[0][0]) if m.startswith(DOMAIN)]

        pairs = []
        for metric, above, below in product(metrics, claim["above"], claim["below"] or [None]):
            less = 0.0
            if below:
                other = claim.get("below_metric", metric)
                less = times * change(below, other, *place)
            pairs.append(change(above, metric, *place) - less)
        smallest.append(min(pairs))
        every += pairs

    # a claim with an upper end is about all pairs
    highest = max(smallest)
    if claim.get("within", [None, None])[1] is not None:
        highest = max(every)
    return [round(min(smallest), 6), round(highest, 6)]


def labels_of(rows: dict[str, dict], methods: list[Method], chosen: dict[str, list[str]]) -> dict:
    """Return {the paper's row: method label} for the rows that one of the methods stands for.

    A label that `chosen` {label: rows} does not name stands for a row of its plugin and wrappers:
    one whose options are equal; else equal except for the free ones; else one whose name is its
    title, if the options that the row states are equal.
    """
    labels = {}
    for row, entry in rows.items():
        options = find(entry["plugin"]).options(entry["options"], row)
        for option in entry["free"]:
            check_known(option, options, f"rows.{row}.free: no option")

        # the method that stands for it best, if one does
        ranks = {each.label: _rank(row, entry, options, each, chosen) for each in methods}
        best = min(ranks, key=ranks.__getitem__)
        if ranks[best] < math.inf:
            labels[row] = best
    return labels


def _rank(
    row: str, entry: dict, options: dict[str, Any], method: Method, chosen: dict[str, list[str]]
) -> float:
    """Return how well a method stands for a paper's row, lower for better; infinite if it does not.

    See `labels_of`; `options` are those of the row, with the plugin's defaults.
    """
    if method.label in chosen:
        if row in chosen[method.label]:
            return -1
        return math.inf

    wrappers = [wrapper.plugin for wrapper in method.wrappers]
    if method.plugin != entry["plugin"] or wrappers != entry["wrappers"]:
        return math.inf

    # options that are not as in the row
    other = {name for name, value in options.items() if method.options[name] != value}
    if not other:
        return 0
    if other <= set(entry["free"]):
        return 1
    if method.title == row and not other & set(entry["options"]):
        return 2
    return math.inf
