"""List the studies that ship, as text: all of them in a line each, or those of a folder with costs.

The list of all reads the comment at the head of each file, and no config. That takes a tenth of the
time in which a plan is made of every study.
"""

import re
from collections import Counter
from itertools import takewhile
from pathlib import Path

from click import HelpFormatter
from tabulate import tabulate

from fedloom.cli.run import bundled_studies
from fedloom.common.errors import FedLoomError, check_known
from fedloom.planning.load_plan import read_plan
from fedloom.planning.plan import Plan
from fedloom.planning.resources.cost import RATES, study_cost
from fedloom.planning.settings_of_run import transfer_targets

TEXT_WIDTH = 100


def header(study: Path) -> str:
    """Return the comment at the head of a study's file: what the study shows, and what it needs."""
    comment = takewhile(lambda line: line.startswith("#"), study.read_text().splitlines())
    return " ".join(line.lstrip("# ") for line in comment)


def first_sentence(study: Path) -> str:
    """Return the first sentence of the comment at the head of a study's file, without its stop.

    A question and its answer count as one, and the stops of "Fig." and "Eq." end none.
    """
    return re.split(r"(?<=\.)(?<!Fig\.)(?<!Eq\.) ", header(study))[0].rstrip(".")


def list_studies() -> str:
    """Return a line for each study that ships, below a heading for each paper or folder."""
    folders = bundled_studies.studies_by_folder()
    names = map(bundled_studies.study_name, bundled_studies.all_studies())
    widest = max(map(len, names))

    text = HelpFormatter(width=TEXT_WIDTH)
    for folder, files in folders.items():
        text.write_text(bundled_studies.folder_title(folder))
        with text.indentation():
            # equally wide names, so that the texts of all folders begin in one column
            names = [bundled_studies.study_name(file).ljust(widest) for file in files]
            shown = map(first_sentence, files)
            text.write_dl([*zip(names, shown, strict=True)], col_max=widest)
        text.write_paragraph()
    text.write_text(
        "`fedloom studies FOLDER`, as in `fedloom studies pep_fedpt`, prints data, methods, runs "
        "and hours of a GPU. `fedloom run STUDY --smoke` runs a study shrunk, in minutes."
    )
    return text.getvalue().rstrip()


def list_costs(folder: str) -> str:
    """Return a line for each study of a folder, such as "pep_fedpt": data, methods, runs, hours.

    Raises:
        FedLoomError: no folder of studies has this name.
    """
    folders = bundled_studies.studies_by_folder()
    check_known(folder, [*folders], "no studies of")
    rows = [study_facts(file) for file in folders[folder]]
    heads = ["study", "shows", "data", "methods", "runs", "GPU hours"]
    widths = [None, 20, 22, 40, None, None]
    table = tabulate(rows, heads, maxcolwidths=widths, floatfmt=",.1f", missingval="?")
    return (
        f"{bundled_studies.folder_title(folder)}\n\n{table}\n\n"
        f"GPU hours are estimates for one GPU, at {RATES['float32']:.0e} operations per second in "
        "float32; ? stands for a study of CLIP, which needs pip install 'fedloom[clip]'."
    )


def study_facts(file: Path) -> list[str | int | float | None]:
    """Return a study's name, what it shows, its data sets, methods, runs, and hours of a GPU.

    The hours are None if a package that the study's backbone needs is not installed.
    """
    plan = read_plan([file])

    shows = ", ".join(plan.settings.study.shows)
    if not shows:
        shows = first_sentence(file)

    try:
        gpu_hours = study_cost(plan).gpu_hours()
    except FedLoomError:
        gpu_hours = None

    return [
        bundled_studies.study_name(file),
        shows,
        ", ".join(_datasets_used(plan)),
        ", ".join(_methods_run(plan)),
        len(plan.runs),
        gpu_hours,
    ]


def _datasets_used(plan: Plan) -> list[str]:
    """Return the labels of the datasets that the runs train on or are tested on, in their order."""
    labels = dict[str, None]()
    for run in plan.runs:
        for label in (run.dataset, *transfer_targets(plan.settings, run)):
            labels[label] = None
    return list(labels) or [*plan.settings.select.datasets]


def _methods_run(plan: Plan) -> list[str]:
    """Return the labels of the methods that run; a grid is one label with its number of members."""
    counts = Counter[str]()
    for label in dict.fromkeys(run.method for run in plan.runs):
        member = plan.settings.methods[label].member
        if member is not None:
            counts[member.grid] += 1
        else:
            counts[label] += 1

    shown = list[str]()
    for label, count in counts.items():
        if count > 1:
            shown.append(f"{label} ({count})")
        else:
            shown.append(label)
    return shown
