"""Read what papers claim about their results (claims.yaml), and match methods of a study to it."""

import math
from dataclasses import dataclass
from itertools import chain, product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Distinct, Keys, Number, OneOrMore, validate
from fedloom.config.reading import CLAIMS, read_paper
from fedloom.config.settings import Method
from fedloom.hooks.manifest import find_method
from fedloom.report.metrics import DOMAIN_PREFIX
from fedloom.report.tables.published import number

# the metric of a claim that must hold in every domain
EACH_DOMAIN = "each_domain"


def _listed(value: JsonValue) -> JsonValue:
    """Return a value as a list; a value that is not a list becomes a list of one."""
    return value if isinstance(value, list) else [value]


Listed = Annotated[
    list[str],
    BeforeValidator(_listed, json_schema_input_type=OneOrMore[str]),
    Field(min_length=1),
]
# one number v is the range from -v to v
Range = Annotated[
    list[Number | None],
    BeforeValidator(lambda v: [-v, v] if isinstance(v, int | float) else v),
    Field(min_length=2, max_length=2),
]
ClaimColumns = Annotated[dict[str, list[str]], Field(min_length=1)]


class ClaimRow(Keys):
    """A method that claims are about."""

    plugin: str
    """Name of the method's plugin."""
    options: JsonDict = Field({})
    """Options that differ from the plugin's defaults."""
    wrappers: list[str] = Field([])
    """Names of the plugins that wrap the method."""
    free: Distinct[str] = Field([])
    """Options that may have any value, for instance because the paper sets them by data set."""
    printed: list[str] = Field([])
    """Other names of the row in numbers.yaml, which are tried in this order."""


class Claim(Keys):
    """A sentence of a paper on its results."""

    says: str = Field(pattern=r"^[^\n]+$")
    """The claim, in one line."""
    where: str
    """Where the claim stands in the paper, such as Table 1, Section 5.1."""
    above: Listed = Field([])
    """Row or rows with the higher metric: each is above each of `below`."""
    below: Listed = Field([])
    """Row or rows with the lower metric."""
    metric: str = "participating_mean"
    """A metric of numbers.yaml; `each_domain`, the mean over clients in every domain; `train_loss`;
    or `course_mean`, the mean over participating clients and all evaluated rounds."""
    below_metric: str | None = None
    """Metric of the rows in `below`. Default: `metric`."""
    in_: ClaimColumns = Field(alias="in")
    """Maps each setting in which the claim is made to the columns of the paper's table."""
    from_: ClaimColumns | None = Field(None, alias="from", max_length=1)
    """Makes the claim one on changes, from this setting to those of `in`. It maps the setting to
    columns; `below` may then be left out."""
    average: bool = False
    """Whether the claim is about the average over all columns of a setting, or over all scenarios
    that stand for it."""
    times: Number | None = Field(None, gt=1)
    """Makes the claim that `above` is more than this many times as high as `below`."""
    within: Range | None = None
    """Makes the claim that the difference is at most this number, either way; or that it lies
    between two ends, where null means no end. [0, 1] means higher by at most 1."""
    bound: Literal["paper", "ours"] | None = None
    """Who chose the number in `within` or `times`: `paper` or `ours`. It is ours if the paper says
    "slightly". It is also ours if the paper prints a margin: the claim then asks for half of it,
    since runs that repeat the paper scatter around it."""
    table: Annotated[list[int], BeforeValidator(_listed)] | None = None
    """Number or numbers of the tables in numbers.yaml that have the paper's results."""
    by: Annotated[list[Number], Field(min_length=1)] | None = None
    """The paper's differences, where no table of numbers.yaml has them."""
    untested: str | None = None
    """Why no run can decide the claim."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if (self.bound is None) != (self.within is None and self.times is None):
            raise ValueError("bound must accompany within or times, and nothing else")
        if self.untested is None and not (self.above and (self.below or self.from_)):
            raise ValueError("must have above and below, or above and from, or untested")
        return self


class PaperClaims(Keys):
    """The keys of workflow/papers/<paper>/claims.yaml: what a paper says of its results."""

    rows: Annotated[dict[str, ClaimRow], Field(min_length=1)]
    """Maps the names that the paper gives its methods to what they are here."""
    settings: Annotated[dict[str, str], Field(min_length=1)]
    """Maps the name of each setting (a kind of heterogeneity) that claims are about to a line that
    describes it."""
    claims: Annotated[list[Claim], Field(min_length=1)]
    """The claims, an entry for each."""


def read_claims(paper: str, where: KeyPath) -> JsonDict:
    """Return the rows, settings and claims of a paper, with defaults filled in, and its citation.

    Every claim has `printed`: the paper's differences by setting (see `_printed_range`). `where` is
    the key path that names the paper, for errors.
    """
    file = KeyPath(f"workflow/papers/{paper}/claims.yaml")
    content = validate(PaperClaims, read_paper(paper, where, CLAIMS), file).plain
    published = read_paper(paper, where)

    # the names in every claim, and what the paper prints for its settings
    for position, claim in enumerate(content["claims"]):
        at = file / "claims" / position
        for row in (*claim["above"], *claim["below"]):
            at.check_known(row, content["rows"], "no row")
        for setting in (*claim["in"], *claim.get("from", ())):
            at.check_known(setting, content["settings"], "in or from: no setting")

        claim["printed"] = {
            setting: _printed_range(claim, columns, content["rows"], published["tables"], at)
            for setting, columns in claim["in"].items()
        }

    return content | {"citation": published["citation"]}


class _Place(NamedTuple):
    """The columns of one of the paper's differences."""

    columns: list[str]
    # the columns from which a change starts; none if the claim is not about changes
    starts: list[str]


@dataclass(frozen=True)
class _PaperNumbers:
    """The numbers that a paper prints for a claim."""

    # the tables that the claim names, each as {row: {column: {metric: number}}}
    tables: list[dict]
    # the rows of claims.yaml
    rows: dict
    claim: dict
    # the key path of the claim, for errors
    where: KeyPath

    def cell(self, row: str, column: str) -> dict:
        """Return the numbers of a row in a column, from the first table that has them."""
        for table, name in product(self.tables, [row, *self.rows[row]["printed"]]):
            if column in table.get(name, {}):
                return table[name][column]
        return {}

    def mean(self, row: str, metric: str, columns: list[str]) -> float:
        """Return the mean of a row's numbers over some columns; 0 if there are no columns.

        Raises:
            InvalidKeyError: the tables lack a number.
        """
        values = [number(self.cell(row, column).get(metric)) for column in columns]
        if any(map(math.isnan, values)):
            raise self.where.error(
                f"table {self.claim['table']} has no {metric} of '{row}' in {columns}"
            )
        return sum(values) / max(len(columns), 1)

    def change(self, row: str, metric: str, place: _Place) -> float:
        """Return a row's mean in the columns of a place, minus that where the change starts."""
        return self.mean(row, metric, place.columns) - self.mean(row, metric, place.starts)

    def differences(self, place: _Place) -> list[float]:
        """Return the difference of every pair of rows in a place, for every metric of the claim."""
        claim = self.claim
        metrics = [claim["metric"]]
        if metrics == [EACH_DOMAIN]:
            printed = self.cell(claim["above"][0], place.columns[0])
            metrics = [metric for metric in printed if metric.startswith(DOMAIN_PREFIX)]

        found = []
        for metric, above, below in product(metrics, claim["above"], claim["below"] or [None]):
            less = 0.0
            if below:
                other_metric = claim.get("below_metric", metric)
                less = claim.get("times", 1) * self.change(below, other_metric, place)
            found.append(self.change(above, metric, place) - less)
        return found


def _places(claim: dict, columns: list[str]) -> list[_Place]:
    """Return the columns of each difference; an average has only one difference, over all."""
    (starts,) = claim.get("from", {"": []}).values()
    if claim["average"]:
        return [_Place(columns, starts)]
    if not starts:
        return [_Place([column], []) for column in columns]
    return [_Place([column], [start]) for column, start in zip(columns, starts, strict=True)]


def _printed_range(
    claim: dict, columns: list[str], rows: dict, tables: dict, where: KeyPath
) -> list[float] | None:
    """Return the smallest and the largest difference of the paper's numbers in a setting.

    In each of the setting's columns, the difference is that of the pair of rows that speaks most
    against the claim. If the claim has an upper end, the largest difference is that of all pairs.
    Returns None if the paper prints no numbers. Raises a FedLoomError if a number is missing.
    """
    if "by" in claim:
        return [min(claim["by"]), max(claim["by"])]
    if "table" not in claim or not columns:
        return None

    # the differences of all pairs of rows, by place
    printed = [tables[table]["rows"] for table in claim["table"]]
    numbers = _PaperNumbers(printed, rows, claim, where)
    differences = [numbers.differences(place) for place in _places(claim, columns)]

    # in each place, the pair that speaks most against the claim
    smallest = [min(pairs) for pairs in differences]
    highest = max(smallest)

    # a claim with an upper end is about all pairs
    if claim.get("within", [None, None])[1] is not None:
        highest = max(chain.from_iterable(differences))
    return [round(min(smallest), 6), round(highest, 6)]


def label_by_row(
    rows: dict[str, dict], methods: list[Method], chosen: dict[str, list[str]]
) -> dict:
    """Return which method stands for each of the paper's rows, {row: method label}.

    `chosen` {label: rows} names the rows for which a label stands. Any other label can stand for a
    row with its plugin and its wrappers, if it meets one of these conditions, the best first:

    1. All options are equal.
    2. All options are equal, except for the row's free options.
    3. The row's name is the label's title, and the options that the row states are equal.

    Rows without a method are left out. Raises a FedLoomError if a row has an unknown option.
    """
    labels = {}
    for row, entry in rows.items():
        where = KeyPath("claims.yaml") / "rows" / row
        options = find_method(entry["plugin"]).complete_options(entry["options"], where / "options")
        for option in entry["free"]:
            (where / "free").check_known(option, options, "no option")

        # the method that matches the row best, if one matches
        ranks = {each.label: _rank(row, entry, options, each, chosen) for each in methods}
        best = min(ranks, key=ranks.__getitem__)
        if ranks[best] < math.inf:
            labels[row] = best
    return labels


def _rank(
    row: str, entry: dict, options: JsonDict, method: Method, chosen: dict[str, list[str]]
) -> float:
    """Return how well a method matches a paper's row: lower is better, infinity is no match.

    `label_by_row` explains the ranks. `options` are those of the row, with the plugin's defaults.
    """
    if method.label in chosen:
        if row in chosen[method.label]:
            return -1
        return math.inf

    wrappers = [wrapper.plugin for wrapper in method.wrappers]
    if method.plugin != entry["plugin"] or wrappers != entry["wrappers"]:
        return math.inf

    # the options in which the method differs from the row
    other = {name for name, value in options.items() if method.options[name] != value}
    if not other:
        return 0
    if other <= set(entry["free"]):
        return 1
    if method.title == row and not other & set(entry["options"]):
        return 2
    return math.inf
