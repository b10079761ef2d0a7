"""The main table: accuracy by method, mean and standard deviation over seeds."""

from pathlib import Path

import pandas as pd

from fedloom.evaluation.metrics import accuracies, read
from fedloom.files import replacing, write_text

COLUMNS = {
    "participating_mean": "Mean",
    "participating_worst": "Worst",
    "held_out_mean": "Held-out mean",
    "held_out_worst": "Held-out worst",
}
GROUP = ["dataset", "partition", "backbone"]


def summarise(runs: list[dict], rounds: list[int]) -> pd.DataFrame:
    """One row per method, partition, dataset and backbone.

    Args:
        runs: labels of each run, its method's `title`, and the path of its `evaluation`.
        rounds: the evaluated rounds to average.

    Returns:
        GROUP, `title`, `seeds`, and for every metric its mean and `<metric>_std` over seeds
        (sample standard deviation; missing for a single seed).
    """
    records = [
        {key: run[key] for key in (*GROUP, "method", "title")}
        | accuracies(read(run["evaluation"]).to_pandas(), rounds)
        for run in runs
    ]
    frame = pd.DataFrame(records)
    metrics = [name for name in COLUMNS if name in frame]
    grouped = frame.groupby([*GROUP, "method", "title"], sort=False)
    mean, std = grouped[metrics].mean(), grouped[metrics].std().add_suffix("_std")
    return grouped.size().rename("seeds").to_frame().join(mean).join(std).reset_index()


def _ranks(values: pd.Series) -> pd.Series:
    """1 for the best as printed, 2 for the second; equal figures share a rank."""
    return values.round(2).rank(method="dense", ascending=False)


def escape(text: str) -> str:
    """Text with LaTeX's special characters made plain."""
    return text.translate(str.maketrans({c: f"\\{c}" for c in "&%$#_{}"}))


def render(summary: pd.DataFrame, marks: dict[int, str], between: str) -> pd.DataFrame:
    """The table as text: mean and deviation, the best and second of each group marked.

    Args:
        marks: format of rank 1 and 2, e.g. {1: "**{}**"}.
        between: joins mean and deviation.
    """
    metrics = [name for name in COLUMNS if name in summary]
    labels = [key for key in GROUP if summary[key].nunique() > 1]
    table = summary[[*labels, "title"]].rename(columns={"title": "method"})
    table = table.rename(columns=str.capitalize)
    for name in metrics:
        ranks = summary.groupby(GROUP)[name].transform(_ranks)
        cells = []
        for value, std, rank in zip(summary[name], summary[f"{name}_std"], ranks, strict=True):
            text = f"{value:.2f}" if pd.isna(std) else f"{value:.2f}{between}{std:.2f}"
            cells.append("-" if pd.isna(value) else marks.get(rank, "{}").format(text))
        table[COLUMNS[name]] = cells
    return table


def caption(study: dict, summary: pd.DataFrame, rounds: list[int]) -> str:
    """What the table shows, in two sentences."""
    seeds, names = int(summary["seeds"].min()), ", ".join(map(str, rounds))
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    at = f"round {names}" if len(rounds) == 1 else f"mean of rounds {names}"
    return (
        f"Study {study['name']}: test accuracy in % over participating and held-out clients, "
        f"{spread}; {at}. Best bold, second underlined."
    )


def write(study: dict, runs: list[dict], rounds: list[int], outputs: dict[str, Path]) -> None:
    """Write the table as Markdown `md`, CSV `csv`, LaTeX `tex` (booktabs) and `parquet`."""
    summary = summarise(runs, rounds)
    words = caption(study, summary, rounds)
    with replacing(outputs["parquet"]) as temporary:
        summary.to_parquet(temporary, index=False)
    with replacing(outputs["csv"]) as temporary:
        summary.to_csv(temporary, index=False, float_format="%.4f", lineterminator="\n")
    markdown = render(summary, {1: "**{}**", 2: "<u>{}</u>"}, " ± ")
    write_text(outputs["md"], f"{words}\n\n{markdown.to_markdown(index=False)}\n")
    latex = render(summary, {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}, r" $\pm$ ")
    words_only = [name for name in latex if name not in COLUMNS.values()]
    latex[words_only] = latex[words_only].map(escape)
    text = latex.style.hide(axis="index").to_latex(
        hrules=True,
        column_format="l" * (latex.shape[1] - sum(n in summary for n in COLUMNS))
        + "r" * sum(n in summary for n in COLUMNS),
        caption=escape(words).replace("±", r"$\pm$"),
        label=f"tab:{study['name']}-main",
    )
    write_text(outputs["tex"], text)
