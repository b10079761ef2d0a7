"""The list of the bundled studies, from their files."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from rich.filesize import decimal

from fedloom.cli.inspect.describe import duration
from fedloom.cli.inspect.studies import header
from fedloom.cli.run import bundled_studies
from fedloom.config.reading import read_all
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.resources.cost import RATES, study_cost


def entry(path: Path, shared: set[tuple[str, str]]) -> str:
    """Return the paragraph of one study, without what all studies of its paper say."""
    plan = load_plan([path])
    settings = plan.settings
    used = dict.fromkeys(run.method for run in plan.runs)
    grids = [settings.methods[label].member for label in used]
    labels = dict.fromkeys(g.grid if g else m for m, g in zip(used, grids, strict=True))
    methods = ", ".join(f"`{label}`" for label in labels)
    seeds = len({run.seed for run in plan.runs})
    facts = f"{len(plan.runs)} runs, {seeds} seed{'s' * (seeds > 1)}; {methods}."
    facts = facts if plan.runs else "Nothing is trained."
    parts = [f"### {path.parent.name}/{path.stem}", text(header(path)), facts, price(plan)]
    parts += sentences("Different from the paper", settings.study.deviations, shared)
    parts += sentences("Left open by the paper", settings.study.open_questions, shared)
    return "\n\n".join(parts)


def price(plan: Plan) -> str:
    """Return the cost of a study, from the first job to the last, in a sentence."""
    cost = study_cost(plan)
    rate = RATES[plan.settings.study.precision]
    jobs = sum(cost.jobs.values())
    disk = decimal(int(1e6 * sum(cost.disk.values())))
    if not cost.operations:
        return f"{jobs} jobs."
    return (
        f"{jobs:,} jobs; {duration(cost.gpu_hours(rate))} on one GPU, the longest run"
        f" {duration(cost.longest / rate / 3600)}; {disk} of disk."
    )


def text(words: str) -> str:
    """Escape what Markdown would take for markup."""
    return words.replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*")


def sentences(heading: str, said: Mapping[str, str], shared: set[tuple[str, str]]) -> list[str]:
    """Return the sentences as a list below a heading; no heading if the list is empty."""
    own = [f"- {text(line)}" for key, line in said.items() if (key, line) not in shared]
    return [f"{heading}:\n\n" + "\n".join(own)] if own else []


def chapter(folder: str, paths: list[Path]) -> str:
    """Return the studies of a folder, after the facts that all studies of a paper share."""
    protocol = paths[0].parent / bundled_studies.PROTOCOL
    if folder in bundled_studies.TITLES:
        title = bundled_studies.TITLES[folder]
        parts = []
        known = set[tuple[str, str]]()
    else:
        ((_, content),) = read_all([protocol])
        keys = ("deviations", "open_questions")
        deviations, questions = (content["study"].get(key, {}) for key in keys)
        known = {*deviations.items(), *questions.items()}
        title = text(folder)
        parts = ["These apply to all its studies unless overridden:"]
        parts += sentences("Different from the paper", deviations, set())
        parts += sentences("Left open by the paper", questions, set())
    return "\n\n".join([f"## {title}", *parts, *(entry(path, known) for path in paths)])


def studies_page() -> str:
    """Return the page of all studies that ship."""
    intro = (
        "# Bundled studies\n\nEach is one file: `workflow/papers/<paper>/<name>.yaml`, or"
        " `workflow/studies/<folder>/<name>.yaml`. Those in"
        " the folder `micro` need no download and run in minutes on two cores. Those in `real`"
        " train a ViT-S/14 on photographs, with a GPU; `make real` runs them smaller on two cores."
        " Every other study is a table or a figure of a paper at its scale: it needs the paper's"
        " data, a real backbone and a GPU, and we have only done dry runs of it.\n\nHours are"
        " estimates: operations counted by `fedloom plan`, at the rate that it assumes for a GPU."
        " States take additional disk space."
    )
    groups = groupby(bundled_studies.all_studies(), lambda path: path.parent.name)
    return "\n\n".join([intro, *(chapter(folder, list(paths)) for folder, paths in groups)])
