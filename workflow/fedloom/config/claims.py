"""What papers say of their results (workflow/claims), matched to the methods of a study."""

from dataclasses import replace
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedloom.common import schema
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.schema import Distinct, Keys, Number, OneOrMore
from fedloom.config.settings import Method, Output, Settings
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
    """Whose number `within` or `times` is. It is ours where the paper says "slightly"; and where it
    prints a margin; the claim asks for half of it: runs that repeat the paper scatter around all
    of it, and could not decide."""
    table: OneOrMore[int] | None = None
    """Table or tables of workflow/published with the paper's numbers."""
    by: Annotated[list[Number], Field(min_length=1)] | None = None
    """The paper's differences, where they are not of one table."""
    untested: str | None = None
    """Why no run can decide it."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Refuse a number without whose it is, and the other way about."""
        if (self.bound is None) != (self.within is None and self.times is None):
            raise ValueError("bound must stand beside within or times, and beside nothing else")
        return self


class Claims(Keys):
    """workflow/claims/<paper>.yaml: what a paper says of its results."""

    rows: Annotated[dict[str, Row], Field(min_length=1)]
    """The methods that the claims are about, by the names that the paper gives them."""
    settings: Annotated[dict[str, str], Field(min_length=1)]
    """Kinds of heterogeneity that the claims are about, each with a line on what it is."""
    claims: Annotated[list[Claim], Field(min_length=1)]


def read_claims(paper: str, where: str) -> dict[str, Any]:
    """Return the rows, settings and claims of a paper, defaults filled in.

    `above` and `below` are lists, `within` the two ends of the differences that are claimed, None
    for an end that there is not. Every claim has `printed`: the smallest and the largest difference
    by the paper's own numbers over the columns of a setting, by setting; None where it prints none.

    Raises:
        FedLoomError: no such paper, or a claim of a row or a setting that its file does not define.
    """
    file = FOLDER / f"{paper}.yaml"
    if not file.is_file():
        papers = ", ".join(sorted(path.stem for path in FOLDER.glob("*.yaml")))
        raise FedLoomError(f"{where}: no '{paper}'; known: {papers}")
    name = f"workflow/claims/{file.name}"
    content = schema.checked(Claims, schema.read_yaml(file), f"{name} ")
    rows = {row: entry.plain for row, entry in content.rows.items()}
    published = schema.read_yaml(ROOT / "workflow/published" / file.name)
    claims = []
    for number, entry in enumerate(content.claims):
        claim = entry.plain
        for side in ("above", "below"):
            names = claim[side]
            claim[side] = [names] if isinstance(names, str) else names
        if isinstance(claim.get("within"), int | float):
            claim["within"] = [-claim["within"], claim["within"]]
        at = f"{name} claims[{number}]"
        _check_names(claim, rows, content.settings, at)
        claim["printed"] = {
            setting: _printed(claim, columns, rows, published["tables"], at)
            for setting, columns in claim["in"].items()
        }
        claims.append(claim)
    citation = published["citation"]
    return {"rows": rows, "settings": content.settings, "claims": claims, "citation": citation}


def _check_names(claim: dict, rows: dict, settings: dict, where: str) -> None:
    """Refuse rows and settings that the file does not define, and a claim that compares nothing."""
    for key, names, known in (
        ("above or below", [*claim["above"], *claim["below"]], rows),
        ("in or from", [*claim["in"], *claim.get("from", ())], settings),
    ):
        for name in names:
            if name not in known:
                hint = suggestion(name, list(known))
                raise FedLoomError(f"{where}: {key}: no '{name}' there; {hint}")
    if "untested" in claim:
        return
    if not claim["above"] or not (claim["below"] or "from" in claim):
        raise FedLoomError(f"{where}: give above and below, or above and from, or untested")
    low, high = claim.get("within", (None, None))
    if "within" in claim and (low is high or (None not in (low, high) and low >= high)):
        raise FedLoomError(f"{where}.within: give two ends, the lower one first, or one and null")
    if len(claim.get("from", "x")) != 1:
        raise FedLoomError(f"{where}.from: give one setting")


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

    A label that `chosen` does not name stands for a row of its plugin and wrappers: whose options
    are its own; else whose options but for the free ones are; else whose name is its title, if the
    options that the row states are its own.

    Args:
        methods: of the table.
        chosen: {label: row or list of rows}, what the config says.

    Raises:
        FedLoomError: a row has an option that its plugin does not have.
    """
    found = {}
    for row, entry in rows.items():
        options = find(entry["plugin"]).options(entry["options"], row)
        for option in entry["free"]:
            if option not in options:
                hint = suggestion(option, list(options))
                raise FedLoomError(f"rows.{row}.free: no option '{option}'; {hint}")
        ranks = {}
        for method in methods:
            named = chosen.get(method.label, ())
            named = [named] if isinstance(named, str) else named
            if row in named:
                ranks[method.label] = 0
            elif method.label not in chosen and _same_plugins(entry, method):
                rank = _rank(row, entry, options, method)
                ranks |= {} if rank is None else {method.label: rank}
        if ranks:
            found[row] = min(ranks, key=ranks.__getitem__)
    return found


def _same_plugins(entry: dict, method: Method) -> bool:
    """Return True if a method has the plugin and the wrappers of a row."""
    wrappers = [wrapper.plugin for wrapper in method.wrappers]
    return method.plugin == entry["plugin"] and wrappers == entry["wrappers"]


def _rank(row: str, entry: dict, options: dict[str, Any], method: Method) -> int | None:
    """Return how well a method of the row's plugin stands for it, 1 best; None: not at all.

    Args:
        options: of the row, the plugin's defaults filled in.
    """
    other = {name for name, value in options.items() if method.options[name] != value}
    if not other:
        return 1
    if other <= set(entry["free"]):
        return 2
    return 3 if method.title == row and not other & set(entry["options"]) else None


def resolve_claims(settings: Settings, output: Output, where: str) -> Output:
    """Return a table of claims with the paper's claims, and the labels that stand for its rows.

    It shows no other runs than those, in the scenarios that stand for a setting: what it shows is
    trained. Where none does, it shows all that it was given.

    Raises:
        FedLoomError: a label, row, scenario or setting that is not there.
    """
    entry = output.keys.own
    paper = read_claims(entry["paper"], f"{where}.paper")
    chosen, stands_for = entry.get("rows", {}), entry.get("stands_for", {})
    # of the whole config: a study may run others than the table was written for
    pairs = [f"{d}/{p}" for d in settings.datasets for p in settings.partitions]
    for key, given, known in (
        ("rows", chosen, list(settings.methods)),
        ("stands_for", stands_for, pairs),
    ):
        names = paper["rows"] if key == "rows" else paper["settings"]
        for label, value in given.items():
            if label not in known:
                hint = suggestion(label, known)
                raise FedLoomError(f"{where}.{key}: no '{label}' here; {hint}")
            for name in [value] if isinstance(value, str) else value:
                if name not in names:
                    hint = suggestion(name, list(names))
                    raise FedLoomError(f"{where}.{key}.{label}: no '{name}' in the claims; {hint}")
    methods = [settings.methods[label] for label in output.methods]
    labels = labels_of(paper["rows"], methods, chosen)
    given = {
        pair: [names] if isinstance(names, str) else list(names)
        for pair, names in stands_for.items()
    }
    compared = [label for label in output.methods if label in labels.values()]
    scenarios = [scenario for scenario in output.scenarios if str(scenario) in given]
    return replace(
        output,
        methods=tuple(compared or output.methods),
        scenarios=tuple(scenarios or output.scenarios),
        extra={
            "stands_for": given,
            "labels": labels,
            "claims": paper["claims"],
            "citation": paper["citation"],
        },
    )
