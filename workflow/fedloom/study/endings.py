"""The last lines of a study: its first table, or the errors of its jobs."""

from pathlib import Path

from fedloom.study import paths
from fedloom.study.plan import Plan


def summary(plan: Plan) -> str:
    """Return the first table and the places of all results, for the end of a run."""
    labels = plan.settings.select.tables
    if not labels or not Path(plan.tables[0]).is_file():
        return f"logs    {paths.LOGS}"  # other targets than the study's tables
    table = Path(plan.tables[0])
    figures = paths.at(paths.FIGURE, study=plan.name, label="<label>").with_suffix("")
    return "\n".join(
        [
            table.read_text(),
            f"tables  {table.parent}/{{{','.join(labels)}}}.{{{','.join(paths.TABLE_FORMATS)}}}",
            *([f"figures {figures}.{{pdf,png}}"] if plan.figures else []),
            f"runs    {paths.RUN.replace('{', '<').replace('}', '>')}/",
            "        evaluation.parquet: per client; rounds, clients.parquet: per round",
            f"logs    {paths.LOGS}",
        ]
    )


def failures(since: float) -> str:
    """Return the error lines of the jobs that failed since then, with their logs."""
    lines = []
    for log in sorted(Path(paths.LOGS).rglob("*.log")):
        if log.stat().st_mtime >= since:
            text = log.read_text(errors="replace")
            errors = [line for line in text.splitlines() if line.startswith("error: ")]
            lines += [f"\n{line}\n  in {log}" for line in errors]
    return "\n".join(lines)
