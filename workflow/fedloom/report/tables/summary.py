"""Summarise the numbers of runs as one row per method: mean and deviation over seeds."""

import pandas as pd

from fedloom.study.plot_inputs import ShownRun

GROUP = ["dataset", "partition", "backbone"]
LABELS = [*GROUP, "method", "title", "trains"]  # of a row; trains: what clients train
SUFFIXES = (
    "_std", "_above", "_published", "_published_std", "_published_above", "_published_below",
    "_published_verdict",
)  # fmt: skip


def summarise(runs: list[ShownRun], measured: list[dict]) -> pd.DataFrame:
    """Return one row per method, partition, dataset and backbone, in the order of `runs`.

    Args:
        runs: give the labels of a row, see LABELS.
        measured: metrics of each run. `<metric>_above`, a bool, says that the number is only a
            lower bound ("> 20 rounds").

    Returns:
        LABELS, `seeds`, and for every metric its mean and `<metric>_std` over
        seeds (sample standard deviation; missing for a single seed). If the number of any seed is
        a bound, `<metric>_above` is true: the mean is a bound too, and has no deviation.
    """
    records = [
        {key: getattr(run, key) for key in LABELS[:-1]} | {"trains": run.plugin.trains} | numbers
        for run, numbers in zip(runs, measured, strict=True)
    ]
    frame = pd.DataFrame(records)
    grouped = frame.groupby(LABELS, sort=False)
    result = grouped.size().rename("seeds").to_frame()
    for name in metrics(frame):
        result[name] = grouped[name].mean()
        result[f"{name}_std"] = grouped[name].std()
        if f"{name}_above" in frame:
            above = grouped[f"{name}_above"].any()
            result[f"{name}_above"] = above
            result.loc[above, f"{name}_std"] = float("nan")
    return result.reset_index()


def by_scenario(runs: list[ShownRun]) -> dict[tuple[str, ...], list[ShownRun]]:
    """Group runs by dataset, partition and backbone, in their order."""
    groups: dict[tuple[str, ...], list[ShownRun]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.partition, run.backbone), []).append(run)
    return groups


def metrics(frame: pd.DataFrame) -> list[str]:
    """List the columns that hold numbers of runs."""
    labels = {*LABELS, "seeds"}
    return [name for name in map(str, frame) if name not in labels and not _belongs(name, frame)]


def _belongs(name: str, frame: pd.DataFrame) -> bool:
    """Return True if a column says more of a metric; a domain's name may end like one of those."""
    return any(name.endswith(end) and name.removesuffix(end) in frame for end in SUFFIXES)
