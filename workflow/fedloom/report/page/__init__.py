"""Write the report of a study: one HTML page without network access, from finished results.

`template.html` is the page, with `style.css` and `page.js` inside it. Plotly draws the curves; the
page holds it compressed, and unpacks it when the first curve comes into sight.
"""

import gzip
import io
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from fedloom.common.files import write_text
from fedloom.planning import paths
from fedloom.planning.overview import overview
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Wildcards
from fedloom.planning.runs import scenarios
from fedloom.report import tables
from fedloom.report.figures.paper import wrap_titles
from fedloom.report.figures.style import house_style
from fedloom.report.headline import draw_headline, find_headline
from fedloom.report.page import curves, machines, run_details
from fedloom.report.page.data_urls import ImageOnPage, image_on_page, in_base64
from fedloom.report.page.samples import sample_clients
from fedloom.report.plotted_runs import plotted_runs
from fedloom.report.tables.layout import HOW_MADE

FOLDER = Path(__file__).parent
# CSS pixels per inch of a figure; with 96, it would be as large as on paper
ENLARGED = 144


def write_page(plan: Plan) -> Path:
    """Write the report of a study whose tables and figures are made, and return its path."""
    from plotly.offline import get_plotlyjs

    # a name that the template misspells is an error
    settings = {"loader": FileSystemLoader(FOLDER), "undefined": StrictUndefined}
    pages = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, **settings)

    # figures are numbered in their order on the page: charts, the study's own, and partitions
    groups = run_details.run_groups(plan)
    numbers = count(1)
    page = pages.get_template("template.html").render(
        name=plan.name,
        version=version("fedloom"),
        overview=overview(plan.settings),
        headline=_headline(plan),
        tables=list(_tables(plan, groups)),
        charts=[(next(numbers), chart) for chart in curves.curves_by_scenario(groups)],
        figures=[(next(numbers), figure) for figure in _figures(plan, groups)],
        partitions=[(next(numbers), part) for part in _partitions(plan)],
        groups=groups,
        by_seed=curves.by_seed,
        machines=machines.machines_used(plan),
        how_made=HOW_MADE,
        # a link starts from the report's folder and leads to the results beside it
        link=lambda path: Path(path).relative_to(paths.RESULTS).as_posix(),
        style=Markup((FOLDER / "style.css").read_text()),
        script=Markup((FOLDER / "page.js").read_text()),
        plotly=_compressed(get_plotlyjs()),
    )

    out = paths.path_for(paths.REPORT, study=plan.name)
    write_text(out, page)
    return out


def _headline(plan: Plan) -> dict[str, object] | None:
    """Return the chart and the sentences that sum up a study; None if it has no headline."""
    headline = find_headline(plan)
    if headline is None:
        return None

    # equal numbers give equal bytes
    drawn = io.BytesIO()
    with house_style({"svg.hashsalt": "fedloom"}):
        figure = draw_headline(headline)
        wrap_titles(figure)
        width = round(figure.get_figwidth() * ENLARGED)
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return {
        "table": f"table-{headline.table}",
        "number": plan.settings.select.tables.index(headline.table) + 1,
        "paragraphs": headline.paragraphs,
        "chart": image_on_page(drawn.getvalue(), "svg+xml", width),
    }


def _tables(plan: Plan, groups: list[run_details.RunGroup]) -> Iterator[dict[str, object]]:
    """Yield every table: its cells, and the group of runs behind each row."""
    for label, file in zip(plan.settings.select.tables, map(Path, plan.tables), strict=True):
        chosen = Wildcards(label=label)
        job = plan.table_job(label)
        shown = plotted_runs(job.shown)
        built = tables.build_table(job, shown)
        of_kind = [plan.caption("table", chosen), *plan.details("table", chosen)]
        cells = built.texts.cells
        marks = built.texts.marks

        # the labels of a row lead to the runs behind it; take the labels beside the numbers if the
        # table's text has the same rows, else those in the text
        labelled = cells
        if "method" in built.frame and len(built.frame) == len(cells):
            labelled = built.frame
        behind = run_details.among(groups, shown)

        rows = []
        for row, row_cells, row_marks in zip(
            labelled.to_dict("records"),
            cells.to_numpy().tolist(),
            marks.to_numpy().tolist(),
            strict=True,
        ):
            texts = list(zip(row_cells, row_marks, strict=True))
            rows.append((run_details.find_group(behind, row), texts))
        yield {
            "id": f"table-{label}",
            "texts": built.texts,
            "caption": built.caption,
            "details": [*built.details, *of_kind],
            "files": {name: file.with_suffix(f".{name}") for name in paths.TABLE_FORMATS},
            "groups": behind,
            "rows": rows,
        }


def _figures(plan: Plan, groups: list[run_details.RunGroup]) -> Iterator[dict[str, object]]:
    """Yield every figure of the study, with the groups of runs behind it."""
    for label, file in zip(plan.settings.select.figures, map(Path, plan.figures), strict=True):
        chosen = Wildcards(label=label)
        shown = plan.figure_job(label).shown
        behind = []
        if shown:
            behind = run_details.among(groups, plotted_runs(shown))
        yield {
            "id": f"figure-{label}",
            "label": label,
            "caption": plan.caption("figure", chosen),
            "details": plan.details("figure", chosen),
            "picture": _picture(file.with_suffix(".png")),
            "files": {name: file.with_suffix(f".{name}") for name in ("pdf", "png")},
            "groups": behind,
        }


def _partitions(plan: Plan) -> Iterator[dict[str, object]]:
    """Yield every partition of the first seed, with its chart and samples of its clients."""
    seed = plan.settings.study.seeds[0]
    for scenario, chart in zip(scenarios(plan.settings), plan.partition_charts, strict=True):
        labels = vars(scenario)
        partition = paths.path_for(paths.PARTITION, **labels, seed=seed)
        store = paths.path_for(paths.STORE, dataset=scenario.dataset)

        samples = []
        if plan.settings.study.client_images:
            samples = sample_clients(partition, store)
        yield {
            "about": f"{scenario.dataset}, {scenario.partition}",
            "picture": _picture(chart),
            "files": {"pdf": Path(chart).with_suffix(".pdf"), "png": Path(chart)},
            "samples": samples,
        }


def _picture(png: Path | str) -> ImageOnPage:
    """Return the pixels of a PNG file with their width on screen.

    Lossless WebP takes a third of a PNG's bytes.
    """
    packed = io.BytesIO()
    with Image.open(png) as image:
        width = round(image.width / image.info["dpi"][0] * ENLARGED)
        image.save(packed, "WEBP", lossless=True)
    return image_on_page(packed.getvalue(), "webp", width)


def _compressed(script: str) -> str:
    """Return a script compressed by gzip, in base64; equal scripts give equal text."""
    return in_base64(gzip.compress(script.encode(), mtime=0))
