"""Where a run lies in a grid, for the kinds of figures that show one grid."""

from typing import Any

from fedloom.plan import grids
from fedloom.plan.settings import GridMember
from fedloom.plan.shown import ShownRun


def member(run: ShownRun) -> GridMember:
    """Return the position of a run in its grid."""
    assert run.member is not None, "the kind shows a grid, and the run is of none"
    return run.member


def varied_lists(run: ShownRun) -> dict[str, list[Any]]:
    """Return the options of a run that are lists and that its grid varies entry by entry."""
    return grids.varied_lists(member(run))
