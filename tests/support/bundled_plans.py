"""The studies that ship, and their plans."""

from functools import cache

from fedloom.cli.run import bundled_studies
from fedloom.planning.load_plan import load_plan

STUDIES = bundled_studies.all_studies()


def name_of_study(file):
    """Return the name that a study must have in `study.name`, by its file."""
    folder = file.parent.name
    stem = file.stem
    return stem if folder == "micro" else f"{folder}_{stem}"


@cache
def plan_of(path):
    return load_plan([path])
