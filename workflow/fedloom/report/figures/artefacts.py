"""Read columns of the tables that methods give, for kinds of figures that draw any of them."""

import pandas as pd

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.study.plot_inputs import ShownRun


def column(frame: pd.DataFrame, name: str, run: ShownRun) -> pd.Series:
    """Return a column of an artefact.

    Raises:
        FedLoomError: there is no such column, or it holds lists.
    """
    if name not in frame:
        hint = suggestion(name, list(map(str, frame)))
        raise FedLoomError(f"{run.artefact}: no column '{name}'; {hint}")
    if (
        frame[name]
        .map(lambda value: hasattr(value, "__len__") and not isinstance(value, str))
        .any()
    ):
        raise FedLoomError(
            f"{run.artefact}: column '{name}' holds lists, which have no place on an axis"
        )
    return frame[name]


def numbers(frame: pd.DataFrame, name: str, run: ShownRun) -> pd.Series:
    """Return a column of an artefact that holds numbers.

    Raises:
        FedLoomError: there is no such column, or it holds something else.
    """
    values = column(frame, name, run)
    if not pd.api.types.is_numeric_dtype(values):
        raise FedLoomError(f"{run.artefact}: column '{name}' must hold numbers, and holds text")
    return values
