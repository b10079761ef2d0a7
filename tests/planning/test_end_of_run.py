"""The lines with which a run ends."""

from copy import deepcopy
from pathlib import Path

import pytest

from default_config import default_config
from fedloom.planning import paths
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.records import summary_of_results


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    """Work in an empty folder, where no table or figure has been made."""
    monkeypatch.chdir(tmp_path)


def _made(tables: list[str], figures: list[str]) -> Plan:
    """Return the plan of a study with these outputs, whose files are made."""
    config = deepcopy(default_config())
    config["select"] |= {"tables": tables, "figures": figures}
    plan = Plan(resolve(config))
    for file in map(Path, [*plan.tables, *plan.figures]):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content of {file.stem}")
    return plan


def test_a_run_of_figures_alone_names_every_picture():
    lines = summary_of_results(_made([], ["accuracy", "tokens"])).splitlines()
    assert lines[:2] == [
        "figure  results/figures/default/accuracy.png",
        "figure  results/figures/default/tokens.png",
    ]
    assert lines[2].startswith("runs    results/runs/") and lines[3] == f"logs    {paths.LOGS}"


def test_a_run_with_tables_shows_the_first_and_names_the_folders():
    lines = summary_of_results(_made(["main", "domains"], ["accuracy", "tokens"])).splitlines()
    assert lines[:3] == [
        "content of main",
        "tables  results/tables/default",
        "figures results/figures/default",
    ]


def test_a_run_that_made_neither_table_nor_figure_names_its_logs_alone():
    plan = _made(["main"], ["accuracy"])
    for file in [*plan.tables, *plan.figures]:
        Path(file).unlink()
    assert summary_of_results(plan) == f"logs    {paths.LOGS}"
