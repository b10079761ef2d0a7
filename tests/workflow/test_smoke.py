"""`fedloom run STUDY --smoke` runs all of a study, shrunk and apart, and says what became of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.planning.load_plan import load_plan
from fedloom.report.smoke_check import check_outputs

pytestmark = pytest.mark.slow

# studies with few runs; together they have every family of backbones, a grid, a data set of
# several, divisions by class, by domain and by a distribution, and tables and figures of most sorts
STUDIES = (
    "sgpt/table5",
    "pep_fedpt/figure10",
    "pfpt/figure4",
    "pfpt/table9",
    "fedpha/table3",
    "fedpha/table6",
)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """Run `fedloom` in a folder; return its exit status and what it printed."""
    command = [sys.executable, "-m", "fedloom", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_of_a_paper_runs_shrunk(tmp_path, study):
    done = run(tmp_path, "run", study, "--smoke", "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    name = study.replace("/", "_")

    # a line for each table and figure, and where the pictures are
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("  table ", "  figure "))
    ]
    assert lines
    assert all(line.endswith(" ok") for line in lines)
    assert done.stdout.endswith(f"are below results/smoke/{name}\n")

    # the study's own results are elsewhere
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["smoke"]


def test_a_missing_or_empty_output_fails(tmp_path, monkeypatch):
    """The check names a figure that is not there, and a table without a row."""
    done = run(tmp_path, "run", "pfpt/table9", "--smoke", "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.chdir(tmp_path / "results/smoke/pfpt_table9")
    plan = load_plan([Path("study.yaml")])
    assert [each.problem for each in check_outputs(plan)] == [""]

    # a table with a NaN, and one that is missing
    csv = Path(plan.tables[0]).with_suffix(".csv")
    heading, *rows = csv.read_text().splitlines()
    csv.write_text("\n".join([heading, *rows, "nan" + "," * heading.count(",")]))
    assert ["NaN" in each.problem for each in check_outputs(plan)] == [True]
    Path(plan.tables[0]).with_suffix(".parquet").unlink()
    assert ["is missing" in each.problem for each in check_outputs(plan)] == [True]


def test_smoke_finds_the_plugins_of_the_folder(tmp_path):
    """A method in the folder's own plugins/ is part of the shrunk study."""
    assert run(tmp_path, "init", "mine").returncode == 0
    folder = tmp_path / "mine"
    assert run(folder, "new", "my_method").returncode == 0
    (folder / "study.yaml").write_text(
        "study: {name: own, seeds: [0]}\n"
        "select: {methods: [my_method], tables: [main], figures: []}\n"
    )
    done = run(folder, "run", "study.yaml", "--smoke", "-n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "results/smoke/own/plugins/my_method").is_dir()
