"""Write a summary as Markdown, LaTeX, HTML, CSV and Parquet."""

import contextlib
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import pyarrow as pa
from tabulate import LATEX_ESCAPE_RULES

from fedloom.common.io import replacing, write_table, write_text
from fedloom.report.tables.summary import GROUP, metrics, varied

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

EMPTY = "-"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which what a spreadsheet computes begins
# The marks that `texts` gives the best and the second best, and how each format shows them.
BEST, SECOND = "best", "second"
MARKDOWN = {BEST: "**{}**", SECOND: "<u>{}</u>"}
LATEX = {BEST: "textbf: --rwrap", SECOND: "underline: --rwrap", "": ""}
HTML = {BEST: "font-weight: bold", SECOND: "text-decoration: underline", "": ""}
PREAMBLE = "% Needs \\usepackage{booktabs} in the preamble.\n"
SIGNS = {"±": r"$\pm$", "†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}"}
LATEX_TEXT = str.maketrans(LATEX_ESCAPE_RULES | SIGNS)
STYLE = [
    ("", "border-collapse: collapse; border: solid #222; border-width: 2px 0; margin: 1.5em"),
    ("", "font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff"),
    ("caption", "text-align: left; padding-bottom: .8em"),
    ("th, td", "padding: .25em 1em; text-align: right; white-space: nowrap"),
    ("thead th", "border-bottom: 1px solid #222"),
]


class Column(NamedTuple):
    """How a metric is shown; `higher_is_better` None: none of its numbers is best."""

    title: str
    higher_is_better: bool | None = True
    decimals: int = 2


class Texts(NamedTuple):
    """A table as plain text.

    Attributes:
        cells: a column per label that is shown, and per metric.
        marks: BEST, SECOND or "" of every cell.
        titles: headings of the columns, which need not differ from each other.
        labels: number of columns that are labels; the others, behind them, are numbers.
        notes: lines below the table.
    """

    cells: pd.DataFrame
    marks: pd.DataFrame
    titles: list[str]
    labels: int
    notes: tuple[str, ...] = ()


class Built(NamedTuple):
    """A table: its numbers, its text, and its caption, to which `tables.build` adds the title."""

    frame: pd.DataFrame
    texts: Texts
    caption: str


def unmarked(cells: pd.DataFrame, titles: list[str], labels: int) -> Texts:
    """Return a table that marks nothing as best."""
    marks = pd.DataFrame("", index=cells.index, columns=cells.columns)
    return Texts(cells, marks, titles, labels)


def ranks(frame: pd.DataFrame, name: str, column: Column) -> pd.Series:
    """Rank a metric within GROUP, 1 for the best as printed, 2 for the second.

    Equal figures share a rank; bounds and missing numbers have none, nor has anything of one seed.
    """
    if column.higher_is_better is None or (frame["seeds"] == 1).all():
        return pd.Series(float("nan"), index=frame.index)
    printed = frame[name].round(column.decimals).mask(_flags(frame, f"{name}_above"))
    grouped = printed.groupby([frame[key] for key in GROUP])
    return grouped.rank(method="dense", ascending=not column.higher_is_better)


def cell(value: float, std: float, sign: str, decimals: int) -> str:
    """Write one number with its deviation; with its sign ">" or "<" a bound, "-" if missing."""
    if pd.isna(value):
        return EMPTY
    text = f"{value:.{decimals}f}"
    if sign:
        return f"{sign} {text}"
    return text if pd.isna(std) else f"{text} ± {std:.{decimals}f}"


def _flags(frame: pd.DataFrame, name: str) -> pd.Series:
    """Return a column of flags, all False where the frame has no such column."""
    return frame[name] if name in frame else pd.Series(False, index=frame.index)


def _numbers(frame: pd.DataFrame, name: str, decimals: int) -> list[str]:
    """Write a metric's column as text."""
    above, below = (_flags(frame, f"{name}_{end}") for end in ("above", "below"))
    signs = above.map({True: ">", False: ""}) + below.map({True: "<", False: ""})
    rows = zip(frame[name], frame[f"{name}_std"], signs, strict=True)
    return [cell(value, deviation, sign, decimals) for value, deviation, sign in rows]


def texts(frame: pd.DataFrame, column: Callable[[str], Column]) -> Texts:
    """Return the labels that tell rows apart, then every metric, published numbers beside theirs.

    Args:
        frame: of `summarise`.
    """
    keys, trains = varied(frame), varied(frame, ["trains"])
    titles = [*map(str.capitalize, keys), "Method", *map(str.capitalize, trains)]
    cells, marks = frame[[*keys, "title", *trains]].astype(str).replace("", EMPTY), {}
    for name in metrics(frame):
        shown = column(name)
        cells[name] = _numbers(frame, name, shown.decimals)
        marks[name] = ranks(frame, name, shown).map({1: BEST, 2: SECOND})
        titles.append(shown.title)
        published = f"{name}_published"
        if published in frame:
            numbers = _numbers(frame, published, shown.decimals)
            verdicts = frame[f"{published}_verdict"]
            cells[published] = [
                f"{number} ({verdict})" if verdict else number
                for number, verdict in zip(numbers, verdicts, strict=True)
            ]
            titles.append(f"Published {shown.title[0].lower()}{shown.title[1:]}")
    marked = pd.DataFrame(marks, index=cells.index).reindex(columns=cells.columns).fillna("")
    return Texts(cells, marked, titles, len(keys) + 1 + len(trains))


def write(table: Built, label: str, outputs: dict[str, Path]) -> None:
    """Write every format; those of text show the caption, LaTeX also has the label."""
    frame, texts, caption = table
    write_table(outputs["parquet"], pa.Table.from_pandas(frame, preserve_index=False))
    with replacing(outputs["csv"]) as temporary:
        safe = frame.rename(columns=_no_formula).map(_no_formula)
        safe.to_csv(temporary, index=False, float_format="%.4f", lineterminator="\n")
    write_text(outputs["md"], markdown(texts, caption))
    write_text(outputs["tex"], latex(texts, caption, label))
    write_text(outputs["html"], page(texts, caption))


def _no_formula(value: object) -> object:
    """Return a cell of a CSV file: text that a spreadsheet would compute gets a quote before it."""
    if not isinstance(value, str) or value == EMPTY or not value.startswith(FORMULA):
        return value
    with contextlib.suppress(ValueError):
        float(value)
        return value  # a negative number, which an option's value may be as text
    return f"'{value}"


def markdown(table: Texts, caption: str) -> str:
    """Write the table as Markdown, the caption above it."""
    cells = table.cells.map(_in_a_row)
    for mark, look in MARKDOWN.items():
        cells = cells.mask(table.marks == mark, cells.map(look.format))
    headers = [_in_a_row(title) for title in table.titles]
    rows = cells.to_markdown(index=False, headers=headers, disable_numparse=True)
    notes = "".join(f"\n{_in_a_line(note)}\n" for note in table.notes)
    return f"{_in_a_line(caption)}\n\n{rows}\n{notes}"


def _in_a_row(text: str) -> str:
    """Escape what would end a cell of a Markdown table."""
    return _in_a_line(text).replace("|", "\\|")


def _in_a_line(text: str) -> str:
    """Put a text into one line of Markdown, in which no HTML begins; bounds such as < 5 stay."""
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", " ".join(text.split()))


def latex(table: Texts, caption: str, label: str) -> str:
    """Write the table as LaTeX, with the rules of the package booktabs."""
    cells = table.cells.map(lambda text: text.translate(LATEX_TEXT))
    columns = "l" * table.labels + "r" * (len(table.titles) - table.labels)
    titles = [title.translate(LATEX_TEXT) for title in table.titles]
    text = _styler(cells, table.marks, LATEX, titles).to_latex(
        hrules=True,
        column_format=columns,
        caption=caption.translate(LATEX_TEXT),
        label=label,
    )
    notes = "".join(rf"\par {note.translate(LATEX_TEXT)}" + "\n" for note in table.notes)
    return PREAMBLE + text.replace("\\end{tabular}\n", f"\\end{{tabular}}\n{notes}")


def page(table: Texts, caption: str) -> str:
    """Write the table as an HTML page for the report, with a line between groups of rows."""
    styler = _styler(table.cells, table.marks, HTML, list(map(html.escape, table.titles)))
    labels = [name for name in table.cells.columns[: table.labels] if name != "trains"]
    groups = table.cells[labels[:-1]].agg("\0".join, axis=1) if len(labels) > 1 else None
    if groups is not None:
        first = groups.ne(groups.shift(fill_value=groups.iloc[0]))
        styler.set_properties(subset=pd.IndexSlice[first, :], **{"border-top": "1px solid #bbb"})
    left = [(f".col{number}", "text-align: left") for number in range(table.labels)]
    styler.set_table_styles([{"selector": part, "props": css} for part, css in [*STYLE, *left]])
    styler.format(escape="html").set_caption(html.escape(caption))
    text = styler.to_html(doctype_html=True, table_uuid="table", encoding="utf-8")
    start = f'<tr><td colspan="{len(table.titles)}" style="text-align: left; white-space: normal">'
    notes = "".join(f"{start}{html.escape(note)}</td></tr>\n" for note in table.notes)
    return text.replace("</tbody>\n", f"</tbody>\n<tfoot>\n{notes}</tfoot>\n") if notes else text


def _styler(
    cells: pd.DataFrame, marks: pd.DataFrame, look: dict[str, str], titles: list[str]
) -> "Styler":
    """Return pandas' Styler of the cells, without row numbers, the best and second best marked."""
    from pandas.io.formats.style import Styler  # which takes a while, and plans need none

    headings = dict(zip(cells, titles, strict=True))
    styler = Styler(cells, cell_ids=False).hide(axis="index")
    styler.format_index(lambda name: headings[name], axis="columns")
    return styler.apply(lambda _: marks.map(lambda mark: look[mark]), axis=None)
