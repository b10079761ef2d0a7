"""Write a summary as Markdown, LaTeX, HTML, CSV and Parquet."""

import html
import math
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import pyarrow as pa
from tabulate import LATEX_ESCAPE_RULES

from fedloom.common.files import atomic_write, write_table, write_text
from fedloom.report.tables.summary import SCENARIO_COLUMNS, differing_columns, metrics
from fedloom.report.tables.units import Unit, choose_unit

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

EMPTY = "-"
# matches before text that a spreadsheet would take for a formula; a dash, and a number with its
# sign, are none
FORMULA = r"^(?=[=+\-@\t\r])(?!-$|[+-][\d.]+(e[+-]?\d+)?$)"
# the marks that `summary_text` gives the best and the second best, and how each format shows them
BEST = "best"
SECOND = "second"
MARKDOWN = {BEST: "**{}**", SECOND: "<u>{}</u>"}
LATEX = {BEST: "textbf: --rwrap", SECOND: "underline: --rwrap", "": ""}
HTML = {BEST: "font-weight: bold", SECOND: "text-decoration: underline", "": ""}
# what the details of a table or figure are headed by
HOW_MADE = "How these numbers were made"
PREAMBLE = "% Needs \\usepackage{booktabs} in the preamble.\n"
SIGNS = {"±": r"$\pm$", "†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}"}
LATEX_TEXT = str.maketrans(LATEX_ESCAPE_RULES | SIGNS)
BELOW = "text-align: left; white-space: normal"
FOLD = "font: 15px/1.5 system-ui, sans-serif; margin: 1.5em; max-width: 45em"
STYLE = [
    ("", "border-collapse: collapse; border: solid #222; border-width: 2px 0; margin: 1.5em"),
    ("", "font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff"),
    ("caption", "text-align: left; padding-bottom: .8em"),
    ("th, td", "padding: .25em 1em; text-align: right; white-space: nowrap"),
    ("thead th", "border-bottom: 1px solid #222"),
]


class Column(NamedTuple):
    """The look of a metric's column. If `higher_is_better` is None, no number is marked as best."""

    title: str
    higher_is_better: bool | None = True
    decimals: int = 2
    # for sizes and times: the units to choose from, the usual one first
    units: tuple[Unit, ...] = ()


class TableText(NamedTuple):
    """A table as plain text."""

    # a column per label that is shown, and per metric
    cells: pd.DataFrame
    # BEST, SECOND or "" for every cell
    marks: pd.DataFrame
    # headings of the columns, which need not differ from each other
    titles: list[str]
    # number of columns with labels, which come first; all other columns have numbers
    labels: int
    # lines below the table
    notes: tuple[str, ...] = ()


class FinishedTable(NamedTuple):
    """A table: its numbers, its text, and its caption. `tables.build_table` adds to the last two.

    The caption is one sentence: what is shown, and over what. The details are whole sentences that
    say how the numbers were made. A reader unfolds them below the table.
    """

    frame: pd.DataFrame
    texts: TableText
    caption: str
    details: tuple[str, ...] = ()


def plain_text(cells: pd.DataFrame, labels: int, titles: list[str] | None = None) -> TableText:
    """Return a table that marks nothing as best; default titles are the names of its columns."""
    return TableText(cells, cells.map(lambda _: ""), titles or [*map(str, cells)], labels)


def ranks(frame: pd.DataFrame, name: str, column: Column) -> pd.Series:
    """Rank a metric within a scenario as printed, 1 for the best.

    Bounds and numbers of one seed have no rank.
    """
    if column.higher_is_better is None or (frame["seeds"] == 1).all():
        return pd.Series(float("nan"), index=frame.index)

    # numbers that are printed alike have the same rank
    printed = frame[name].round(column.decimals).mask(_signs(frame, name) != "")
    grouped = printed.groupby([frame[key] for key in SCENARIO_COLUMNS])
    return grouped.rank(method="dense", ascending=not column.higher_is_better)


def cell(value: float, decimals: int = 2, std: float = math.nan, sign: str = "") -> str:
    """Write a number with its deviation, a bound with its `sign` ">" or "<", or "-" if missing."""
    if pd.isna(value):
        return EMPTY
    text = f"{value:.{decimals}f}"
    if sign:
        return f"{sign} {text}"
    if pd.isna(std):
        return text
    return f"{text} ± {std:.{decimals}f}"


def _signs(frame: pd.DataFrame, name: str) -> pd.Series:
    """Return the sign of every number in a metric's column: ">" or "<" for a bound, else ""."""
    signs = pd.Series("", index=frame.index)
    for end, sign in (("above", ">"), ("below", "<")):
        if f"{name}_{end}" in frame:
            signs = signs.mask(frame[f"{name}_{end}"], sign)
    return signs


def _numbers(frame: pd.DataFrame, name: str, decimals: int) -> pd.Series:
    """Write a metric's column as text."""
    rows = zip(frame[name], frame[f"{name}_std"], _signs(frame, name), strict=True)
    return pd.Series([cell(value, decimals, std, sign) for value, std, sign in rows], frame.index)


def summary_text(frame: pd.DataFrame, column: Callable[[str], Column]) -> TableText:
    """Write a summary as text: labels in which rows differ, metrics, and the paper's numbers."""
    keys = differing_columns(frame)
    trains = differing_columns(frame, ["trains"])
    titles = [*map(str.capitalize, keys), "Method", *map(str.capitalize, trains)]
    cells = frame[[*keys, "title", *trains]].astype(str).replace("", EMPTY)

    # a column per metric, and one beside it for the paper's number
    marks = {}
    for name in metrics(frame):
        shown = column(name)
        if shown.units:
            frame, shown = _in_readable_unit(frame, name, shown)
        cells[name] = _numbers(frame, name, shown.decimals)
        marks[name] = ranks(frame, name, shown).map({1: BEST, 2: SECOND})
        titles.append(shown.title)

        published = f"{name}_published"
        if published in frame:
            verdicts = frame[f"{published}_verdict"].map(lambda text: f" ({text})" if text else "")
            cells[published] = _numbers(frame, published, shown.decimals) + verdicts
            titles.append(f"{shown.title}, published")

    # labels and published numbers have no marks
    marked = pd.DataFrame(marks, index=cells.index).reindex(columns=cells.columns).fillna("")
    return TableText(cells, marked, titles, len(keys) + 1 + len(trains))


def _in_readable_unit(
    frame: pd.DataFrame, name: str, column: Column
) -> tuple[pd.DataFrame, Column]:
    """Return the summary with a metric in the unit of its largest value, and the column with it.

    A column beside published numbers keeps the paper's unit, so that their digits stay as printed.
    """
    unit = column.units[0]
    if f"{name}_published" not in frame:
        unit = choose_unit(frame[name], column.units)

    title = column.title
    if unit.sign:
        title = f"{title} ({unit.sign})"
    changed = {each: frame[each] * unit.per_usual for each in (name, f"{name}_std")}
    return frame.assign(**changed), column._replace(title=title)


def write_formats(table: FinishedTable, label: str, outputs: dict[str, Path]) -> None:
    """Write every format; all but CSV and Parquet have caption and details, LaTeX has the label."""
    frame = table.frame
    write_table(outputs["parquet"], pa.Table.from_pandas(frame, preserve_index=False))

    # put ' before text that a spreadsheet would take for a formula
    with atomic_write(outputs["csv"]) as temporary:
        safe = frame.rename(columns=lambda name: re.sub(FORMULA, "'", name))
        safe = safe.replace(FORMULA, "'", regex=True)
        safe.to_csv(temporary, index=False, float_format="%.4f", lineterminator="\n")

    write_text(outputs["md"], markdown(table))
    write_text(outputs["tex"], latex(table, label))
    write_text(outputs["html"], page(table))


def markdown(finished: FinishedTable) -> str:
    """Write a table as Markdown: the caption above it, and its notes and details below it."""
    table = finished.texts
    cells = table.cells.map(_in_a_row)
    for mark, look in MARKDOWN.items():
        cells = cells.mask(table.marks == mark, cells.map(look.format))
    headers = [_in_a_row(title) for title in table.titles]
    rows = cells.to_markdown(index=False, headers=headers, disable_numparse=True)
    below = "".join(f"\n{_in_a_line(text)}\n" for text in _below(finished))
    return f"{_in_a_line(finished.caption)}\n\n{rows}\n{below}"


def _below(finished: FinishedTable) -> list[str]:
    """Return the paragraphs below a table: its notes, and one with all its details."""
    paragraphs = [*finished.texts.notes]
    if finished.details:
        paragraphs.append(f"{HOW_MADE}: {' '.join(finished.details)}")
    return paragraphs


def _in_a_row(text: str) -> str:
    """Escape what would end a cell of a Markdown table."""
    return _in_a_line(text).replace("|", "\\|")


def _in_a_line(text: str) -> str:
    """Put a text into one line of Markdown without HTML tags; bounds such as < 5 stay."""
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", " ".join(text.split()))


def latex(finished: FinishedTable, label: str) -> str:
    """Write a table as LaTeX, with the rules of the package booktabs."""
    table = finished.texts
    cells = table.cells.map(lambda text: text.translate(LATEX_TEXT))
    titles = [title.translate(LATEX_TEXT) for title in table.titles]
    columns = "l" * table.labels + "r" * (len(table.titles) - table.labels)
    text = _styler(cells, table.marks, LATEX, titles).to_latex(
        hrules=True,
        caption=finished.caption.translate(LATEX_TEXT),
        label=label,
        column_format=columns,
    )

    # notes and details follow after the rows
    below = "".join(rf"\par {line.translate(LATEX_TEXT)}" + "\n" for line in _below(finished))
    return PREAMBLE + text.replace("\\end{tabular}\n", f"\\end{{tabular}}\n{below}")


def page(finished: FinishedTable) -> str:
    """Write a table as an HTML page, in which the details are folded away."""
    table = finished.texts
    styler = _styler(table.cells, table.marks, HTML, list(map(html.escape, table.titles)))

    # numbers are aligned to the right, labels to the left
    left = [(f".col{number}", "text-align: left") for number in range(table.labels)]
    styler.set_table_styles([{"selector": part, "props": css} for part, css in [*STYLE, *left]])
    styler.format(escape="html").set_caption(html.escape(finished.caption))
    text = styler.to_html(doctype_html=True, table_uuid="table", encoding="utf-8")

    # the notes are rows below the others
    if table.notes:
        start = f'<tr><td colspan="{len(table.titles)}" style="{BELOW}">'
        notes = "".join(f"{start}{html.escape(note)}</td></tr>\n" for note in table.notes)
        text = text.replace("</tbody>\n", f"</tbody>\n<tfoot>\n{notes}</tfoot>\n")

    # the details follow after the table
    if not finished.details:
        return text
    sentences = "".join(f"<p>{html.escape(sentence)}</p>\n" for sentence in finished.details)
    fold = f'<details style="{FOLD}"><summary>{HOW_MADE}</summary>\n{sentences}</details>\n'
    return text.replace("</table>\n", f"</table>\n{fold}")


def _styler(
    cells: pd.DataFrame, marks: pd.DataFrame, look: dict[str, str], titles: list[str]
) -> "Styler":
    """Return a pandas Styler of the cells without row numbers; best and second best are marked."""
    # imported here: the import takes a while, and plans do not need it
    from pandas.io.formats.style import Styler

    headings: dict[Hashable, str] = dict(zip(cells, titles, strict=True))
    styler = Styler(cells, cell_ids=False).hide(axis="index")
    styler.format_index(lambda column: headings[column], axis="columns")
    return styler.apply(lambda _: marks.map(look.get), axis=None)
