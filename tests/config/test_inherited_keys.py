"""What a study takes over from the default config, and from earlier files."""

from pathlib import Path

import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.config.reading import merge_configs, read_change
from fedloom.planning.load_plan import load_plan
from refusals import refused

DEFAULT = default_config()


def test_changes_are_read_as_yaml_is_and_lie_over_the_files():
    changes = ["rounds=4", "training.lr=1e-2", "select.methods=[fedvpt]", "study.tune=null"]
    settings = load_plan(overrides={"set": changes}).settings
    assert (settings.study.rounds, settings.study.training.lr) == (4, 0.01)
    assert settings.select.methods == ("fedvpt",) and settings.study.tune is None
    with refused("--set must be <key>=<value>, got 'rounds'"):
        read_change("rounds")


SHORT = "select: {datasets: [digits], partitions: [six]}\n"


INHERITED = [  # a study, and what it inherits of evaluations, clients and rounds of trials
    ("study: {rounds: 4}", (2, 15, 4)),
    ("study: {rounds: 1, name: mine}", (1, 15, None)),
    ("study: {evaluate_every: 12}", (1, 15, 6)),
    ("partitions: {six: {scheme: iid, clients: 6, protocol: {rounds: 2}}}\n" + SHORT, (1, 6, 6)),
    ("methods: {short: {plugin: fedvpt, rounds: 2}}\nselect: {methods: [short]}", (1, 15, 6)),
    ("methods: {all: {plugin: fedvpt, grid: {prompts: [1, 2]}}}\nselect: {methods: [all]}",
     (3, 15, None)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "values"), INHERITED)
def test_what_a_study_inherits_fits_what_it_sets(text, values, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    study = load_plan([tmp_path / "mine.yaml"]).settings.study
    trials = study.tune and study.tune.rounds
    assert (study.report.last_evaluations, study.clients_per_round, trials) == values


def test_what_is_capped_or_left_out_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FEDLOOM_LAUNCHER", raising=False)
    (tmp_path / "mine.yaml").write_text("study: {rounds: 4}\nselect: {methods: [fedvpt]}")
    load_plan([tmp_path / "mine.yaml"])
    notes = capsys.readouterr().err
    assert "note: study.tune.rounds is 4 in place of 6, " in notes
    assert "note: select.figures: left out, since config key figures.tokens: " in notes
    load_plan([tmp_path / "mine.yaml"], {"set": ["study.rounds=12"]})
    assert "study.tune.rounds" not in capsys.readouterr().err


def test_tables_and_figures_that_a_study_inherits_are_shown_where_they_suit_it(tmp_path):
    (tmp_path / "mine.yaml").write_text("study: {evaluate_clients: 3}\nselect: {methods: [fedvpt]}")
    select = load_plan([tmp_path / "mine.yaml"]).settings.select
    assert select.tables == ("main",), "none that looks for a target"
    assert select.figures == ("points", "accuracy", "loss", "answers", "blocks"), (
        "no other method's"
    )


def test_a_figure_of_held_out_clients_is_not_inherited_where_there_are_none(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "partitions: {all: {scheme: iid, clients: 20}}\n"
        "select: {partitions: [all], methods: [fedvpt], tables: [main]}\n"
    )
    settings = load_plan([tmp_path / "mine.yaml"]).settings
    assert "points" not in settings.select.figures
    assert any("figures.points" in note for note in settings.notes)


def test_both_files_of_a_label_with_two_meanings_are_named():
    first = {"methods": {"x": {"plugin": "a"}}}
    second = {"methods": {"x": {"plugin": "b"}}}
    with pytest.raises(FedLoomError, match=r"methods.x means .*a.yaml and another in .*b.yaml"):
        merge_configs([(Path("a.yaml"), first), (Path("b.yaml"), second)])
    assert merge_configs([(Path("a.yaml"), first), (Path("b.yaml"), first)]) == first


def test_a_study_may_redefine_the_labels_of_tables_and_figures():
    one = {"tables": {"main": {"kind": "communication", "target": 80}}}
    two = {"tables": {"main": {"kind": "accuracy"}}}
    assert merge_configs([(Path("a.yaml"), one), (Path("b.yaml"), two)]) == two


def test_labels_of_later_files_come_last_and_lists_are_replaced():
    one = {"methods": {"b": {"plugin": "b"}}, "select": {"methods": ["b"], "tables": ["t"]}}
    two = {"methods": {"a": {"plugin": "a"}}, "select": {"methods": ["a"]}}
    merged = merge_configs([(Path("1"), one), (Path("2"), two)], {"study": {"rounds": 3}})
    assert list(merged["methods"]) == ["b", "a"]
    assert merged["select"] == {"methods": ["a"], "tables": ["t"]}
    assert merged["study"] == {"rounds": 3}


def test_a_table_of_a_method_that_the_study_does_not_run_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = "tables: {t: {kind: accuracy, methods: [fedpr]}}\nselect: {tables: [t], figures: []}\n"
    (tmp_path / "config.yaml").write_text(study)
    with refused("tables.t.methods: the study does not run 'fedpr'; add it to select.methods"):
        load_plan()


def test_a_change_elsewhere_does_not_make_a_wrong_study_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = "study: {clients_per_round: 10}\npartitions: {four: {scheme: iid, clients: 4}}\n"
    (tmp_path / "config.yaml").write_text(
        f"{study}select: {{partitions: [four], tables: [main]}}\n"
    )
    for changes in ([], ["methods.fedvpt.training.lr=0.1"]):
        with refused("study.clients_per_round: must be at most 4, the participating clients"):
            load_plan(overrides={"set": changes})
