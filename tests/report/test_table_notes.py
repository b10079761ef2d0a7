"""The notes on rows: losses of guessing, strangers, what is trained."""

import math

import pandas as pd
import pytest

from fedloom.hooks import manifest
from fedloom.report import tables
from fedloom.report.metrics import loss_not_below_guessing
from fedloom.report.tables import notes
from shown_runs import shown, table_files, table_job
from table_cases import evaluation_table, rounds_table


def written(tmp_path, runs):
    """Write a table, and return the text of three formats, and the frames of the other two."""
    outputs = table_files(tmp_path)
    tables.write_table(table_job(), runs, outputs)
    text = {kind: outputs[kind].read_text() for kind in ("md", "tex", "html")}
    return text, pd.read_parquet(outputs["parquet"]), pd.read_csv(outputs["csv"])


def measured(tmp_path, name, losses=(1.0,), **more):
    evaluation, rounds = (tmp_path / f"{name}.{file}.parquet" for file in "er")
    evaluation_table(evaluation, {1: (10, 20, 5)}, rounds=(1,))
    files = {"evaluation": evaluation, "rounds": rounds_table(rounds, losses)}
    return shown(method=name, title=name, **files, **more)


def test_every_format_says_that_a_loss_is_not_below_that_of_guessing(tmp_path):
    runs = [measured(tmp_path, "good", [3.0, 2.0]), measured(tmp_path, "bad", [2.0, 15.0, 19.0])]
    text, *frames = written(tmp_path, runs)
    line = f"{notes.GUESSING.sign} {notes.GUESSING.text}."
    assert "| bad ‡ " in text["md"] and f"\n\n{line}\n" in text["md"]
    assert "bad $\\ddagger$ &" in text["tex"] and "good &" in text["tex"]
    after = text["tex"].split("\\end{tabular}")[1]
    assert notes.GUESSING.text in after and after.rstrip().endswith("\\end{table}")
    assert ">bad ‡</td>" in text["html"] and f">{line}</td></tr>\n</tfoot>" in text["html"]
    for frame in frames:
        assert frame["marks"].fillna("").tolist() == ["", notes.GUESSING.text]


def test_a_method_that_trains_nothing_is_not_told_that_its_loss_is_high(tmp_path):
    runs = [measured(tmp_path, "a", [9.0], trains="nothing"), measured(tmp_path, "b", [9.0])]
    text, *frames = written(tmp_path, runs)
    assert "| a  " in text["md"] and "| b ‡ " in text["md"]
    for frame in frames:
        assert frame["marks"].fillna("").tolist() == ["", notes.GUESSING.text]


@pytest.mark.parametrize(
    ("losses", "bad"),
    [
        ([9.0, 9.0, 2.0, 1.0], False),  # it began badly
        ([2.0, 2.0, 9.0, 9.0], True),  # it diverged
        ([2.0, 9.0, 1.0, 1.0], False),
        ([2.3], False),
        ([math.log(10)], True),
        ([3.0, 3.0, 3.0, 1.0, 1.0, 99.0], False),  # the median, which a single round does not move
    ],
)
def test_the_last_half_of_the_rounds_says_whether_a_loss_is_that_of_guessing(losses, bad, tmp_path):
    frame = pd.read_parquet(rounds_table(tmp_path / "r.parquet", losses))
    assert loss_not_below_guessing(frame.sample(frac=1, random_state=0)) == bad


def test_held_out_clients_whose_images_a_server_has_are_no_strangers(tmp_path):
    runs = [measured(tmp_path, "a"), measured(tmp_path, "b", sees_held_out=True)]
    text, *_ = written(tmp_path, runs)
    assert "| b † " in text["md"] and f"† {notes.STRANGERS.text}." in text["md"]
    for run in runs:
        frame = pd.read_parquet(run.evaluation)
        frame[frame["participating"]].to_parquet(run.evaluation)
    text, *_ = written(tmp_path, runs)
    assert "†" not in text["md"], "without held-out clients there is nothing to say"


def test_a_table_says_what_is_trained_where_that_differs(tmp_path):
    parts = {"a": "prompts + head", "b": "whole model", "c": ""}
    runs = [measured(tmp_path, n, trains=trains) for n, trains in parts.items()]
    text, *frames = written(tmp_path, runs)
    lines = [line for line in text["md"].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines]
    assert [rows[0], *rows[2:]] == [
        ["Method", "Trains"], ["a", "prompts + head"], ["b", "whole model"], ["c", "-"],
    ]  # fmt: skip
    assert "{llrrrr}" in text["tex"], "both columns are labels"
    assert "border-top" not in text["html"], "rows of one scenario"
    for frame in frames:
        assert frame["trains"].fillna("").tolist() == list(parts.values())
    text, *_ = written(tmp_path, runs[:1])
    assert "Trains" not in text["md"] and not any(mark.sign in text["md"] for mark in notes.MARKS)


def test_every_method_that_ships_says_what_it_trains():
    plugins = [p for p in manifest.discover_methods().values() if p.kind == "method"]
    said = {p.name: p.trained_part(p.complete_options({})) for p in plugins}
    assert all(said.values()), "method.toml needs `trains`"
    found = [said[name] for name in ("ditto", "fedavg", "head_tuning", "zero_shot_clip")]
    assert found == ["prompts + head", "whole model", "head", "nothing"]
    fedavg = manifest.find_method("fedavg")
    for train, part in (("head", "head"), ("bias$", "some weights + head")):
        assert fedavg.trained_part(fedavg.complete_options({"train": train})) == part
    assert [p.name for p in plugins if p.server_sees_held_out] == ["fedic"]
