"""Kinds of table and figure as plugins, in plugins/ or in a package; the examples by hand."""

import shutil
from pathlib import Path
from types import SimpleNamespace as Wildcards

import numpy as np
import pandas as pd
import pytest

from command_line import invoked
from default_config import default_config
from fedloom.cli.inspect import describe
from fedloom.config import config_schema
from fedloom.config.settings import ReportedRounds
from fedloom.machine.install import ROOT
from fedloom.planning import staleness
from fedloom.planning.load_plan import load_plan, resolve
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.report import figures, tables
from refusals import refused
from shown_runs import draw, figure_job, filled, shown, table_files, table_job, table_kind

EXAMPLES = {"reach": "figure", "spread": "table"}
FIGURE = """from fedloom.report.output_toolbox import RunsFigure
class Own(RunsFigure):
    "Mine."
    def draw(self, series):
        {}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder `plugins` of the current folder, with the examples in it."""
    for name, kind in EXAMPLES.items():
        shutil.copytree(ROOT / f"examples/{kind}s/{name}", tmp_path / "plugins" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "plugins"


def write(folder, kind, code, name="own"):
    (folder / "own").mkdir(parents=True)
    (folder / "own" / f"{kind}.toml").write_text(f'name = "{name}"\n')
    (folder / "own" / "plugin.py").write_text(code)


def plan(section, **entry):
    """Return the plan of the default study with an output of this entry alone."""
    config = default_config()
    config["select"] |= {"tables": [], "figures": []} | {section: ["mine"]}
    config[section]["mine"] = entry
    return Plan(resolve(config))


@pytest.mark.parametrize(
    ("section", "entry", "words"),
    [
        ("figures", {"kind": "reech"}, ["figures.mine.kind", "did you mean 'reach'?"]),
        ("figures", {"kind": "spread"}, ["figures.mine.kind", "no kind 'spread'"]),
        ("figures", {"kind": "reach", "personalised": 1}, ["mine.personalised", "personalized"]),
        ("tables", {"kind": "spread", "share": 51}, ["tables.mine.share", "50", "51"]),
    ],
)
def test_a_config_is_checked_against_the_keys_of_plugins(folder, section, entry, words):
    with refused(*words):
        plan(section, **entry)


@pytest.mark.parametrize(
    ("raised", "place"),
    [
        ('(where / "levels").error("must be two")', "tables.mine.levels: must be two"),
        # without the key path, the error is about the entry
        ('FedLoomError(f"{where}: must be more")', "tables.mine: must be more"),
    ],
)
def test_an_error_in_complete_names_the_file_and_line_of_its_key(folder, tmp_path, raised, place):
    write(
        folder,
        "table",
        "from fedloom.common.errors import FedLoomError\n"
        "from fedloom.report.output_toolbox import RunsTable\n"
        "class Own(RunsTable):\n"
        "    'Mine.'\n"
        "    levels: int = 2\n"
        "    def column(self, metric): pass\n"
        "    def measure(self, run): pass\n"
        "    def describe(self, runs): pass\n"
        "    def complete(self, settings, output, where):\n"
        f"        raise {raised}\n",
    )
    study = tmp_path / "mine.yaml"
    study.write_text("tables:\n  mine: {kind: own, levels: 3}\nselect: {tables: [mine]}\n")
    with refused(f"config key {place} ({study}, line 2)"):
        load_plan([study])


def test_fedloom_kinds_and_the_schema_have_them(folder):
    text = describe.describe_kinds(tables="table", figures="figure")
    for words in (
        "table: spread",
        "  share (number, default 10.0)",
        "figure: reach",
        "table: sizes",
    ):
        assert words in text
    schema = config_schema.kind_schema("figures", "reach")
    assert schema["properties"]["kind"] == {"const": "reach"}


def test_an_edit_reruns_what_uses_the_plugin_and_nothing_else(folder):
    def files(entry):
        job = plan("figures", **entry).job("figure", Wildcards(label="mine"))
        return {Path(f).resolve() for f in staleness.source_files(*RULES["figure"].code(job))}

    own = files({"kind": "reach"})
    assert {folder / "reach/plugin.py", folder / "reach/figure.toml"} <= own
    assert ROOT / "workflow/fedloom/report/figures/style.py" in own, "by way of the toolbox"
    others = own | files({"kind": "convergence"})
    assert not any(path.is_relative_to(folder / "spread") for path in others)
    assert not any(path.is_relative_to(folder) for path in files({"kind": "convergence"}))


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("figure", "x = 1", ["plugin.py", "one class derived from FigureKind, got 0"]),
        ("table", FIGURE.format("pass"), ["one class derived from TableKind, got 0"]),
        ("figure", FIGURE.format("pass").replace("draw", "drow"), ["Own", "the method draw"]),
        (
            "figure",
            FIGURE.format("pass") + "    artefact_name = 'timings'\n",
            ["plugin.py", "artefact_name", "spec = KindSpec(artefact='timings')"],
        ),
        ("figure", "import nothing_of_that_name", ["own", "plugin.py:1", "nothing_of_that_name"]),
        ("figure", FIGURE.format("pass") + "    n: int = 'x' / 2\n", ["plugin.py:6", "TypeError"]),
    ],
)
def test_a_class_that_is_no_kind_is_one_line_of_the_plan(folder, kind, code, words):
    write(folder, kind, code)
    with refused(f"{kind}s.mine.kind", *words):
        plan(f"{kind}s", kind="own")


def test_the_names_of_fedlooms_kinds_stay_theirs(folder):
    write(folder, "figure", FIGURE.format("pass"), name="convergence")
    with refused("own/figure.toml: name: FedLoom has its own figure 'convergence'; rename this"):
        plan("figures", kind="convergence")


@pytest.mark.parametrize(
    ("code", "words"),
    [("1 / 0", ["plugin.py:5", "ZeroDivisionError"]), ("pass", ["draw must return", "NoneType"])],
)
def test_a_figure_that_misbehaves_is_one_line(folder, tmp_path, code, words):
    write(folder, "figure", FIGURE.format(code))
    with refused("own: figure: ", *words):
        figures.write_figure(figure_job("own"), [], {"pdf": tmp_path / "own.pdf"})
    assert not (tmp_path / "own.pdf").exists()


def test_a_failing_table_of_an_installed_package_is_one_line(tmp_path, monkeypatch):
    code = (ROOT / "examples/tables/spread/plugin.py").read_text()
    code = code.replace("rows = metrics", "rows = 1 / 0 or metrics")
    write(tmp_path / "their_tables", "table", code)
    (tmp_path / "their_tables/own/__init__.py").touch()
    about = tmp_path / "their_tables-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their_tables\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedloom.tables]\nown = their_tables.own\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plan("tables", kind="own").tables == ["results/tables/default/mine.md"]
    with refused("own: table: ", "their_tables/own/plugin.py:", "ZeroDivisionError"):
        tables.build_table(table_job("own", share=10.0, personalized=True), [shown()])


def test_the_command_of_its_kind_reads_a_plugin(folder, capsys):
    (folder / "spread/table.toml").write_text("name = 3")
    assert invoked("kinds", "reach") == 0
    with refused("spread/table.toml: name: "):
        invoked("kinds", "spread")


# ---- the examples, by hand -----------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """Return a run of four clients whose means over rounds 2 and 3 are 10, 40, 60 and 90 %."""
    correct = {1: (0, 0, 0, 0, 0), 2: (5, 40, 50, 90, 1), 3: (15, 40, 70, 90, 1)}
    rows = [
        {"round": r, "client_id": k, "participating": k < 4, "num_test": 100, "num_correct": n}
        for r, numbers in correct.items()
        for k, n in enumerate(numbers)
    ]
    filled(rows, "evaluation").to_parquet(tmp_path / "evaluation.parquet")
    rounds = pd.DataFrame({"round": [1, 2, 3], "train_loss": 1.0, "guessing_loss": 2.0})
    filled(rounds, "rounds").to_parquet(tmp_path / "rounds.parquet")
    files = {name: tmp_path / f"{name}.parquet" for name in ("evaluation", "rounds")}
    return shown(**files, reported=ReportedRounds((2, 3)))


def test_reach_draws_the_share_of_clients_that_are_at_least_so_accurate(folder, run):
    figure = draw("reach", [run, shown(**vars(run) | {"seed": 1})], personalized=True)
    (line,) = figure.axes[0].lines
    accuracies, shares = line.get_data()
    assert accuracies.tolist() == list(np.repeat([10, 40, 60, 90], 2))
    assert shares.tolist() == [100 - 12.5 * n for n in range(8)]
    assert line.get_drawstyle() == "steps-pre", "between two accuracies it is the higher's share"


def test_spread_shows_the_worst_and_the_best_share_of_clients(folder, run):
    measured = table_kind("spread", share=50.0, personalized=True).measure(run)
    assert measured == {
        "worst": 25, "median": 50, "best": 75,
        "deviation": pytest.approx(np.std([10, 40, 60, 90])),
    }  # fmt: skip
    assert table_kind("spread", share=10.0, personalized=True).measure(run)["worst"] == 10, "one"
    tables.write_table(
        table_job("spread", share=10.0, personalized=True), [run], table_files(folder)
    )
    assert (
        "| M        | 10.00   | 50.00    | 90.00  | 29.15       |" in (folder / "t.md").read_text()
    )
