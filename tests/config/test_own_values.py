"""A changed key of `study` names the partitions and methods that keep values of their own."""

from pathlib import Path

import pytest

from fedloom.planning.load_plan import load_plan

STUDY = """\
partitions:
  short: {scheme: iid, clients: 18, protocol: {rounds: 6, training: {lr: 0.5}}}
  few: {scheme: iid, clients: 18, protocol: {clients_per_round: 3}}
  lists: {scheme: iid, grid: {clients: [18, 19]}, protocol: {rounds: 8}}
  unused: {scheme: iid, clients: 18, protocol: {rounds: 7}}
methods:
  long: {plugin: fedvpt, rounds: 20, training: {lr: 0.2}}
  rates: {plugin: head_tuning, grid: {training.momentum: [0, 0.5]}, rounds: 9}
select:
  {datasets: [digits], partitions: [short, few, lists], methods: [long, rates, fedvpt],
   tables: [main], figures: []}
"""


@pytest.fixture
def notes(tmp_path, monkeypatch, capsys):
    """Return a function, which returns the notes that a plan of STUDY prints after changes."""
    monkeypatch.delenv("FEDLOOM_LAUNCHER", raising=False)
    (tmp_path / "mine.yaml").write_text(STUDY)

    def printed(*changes: str, only: tuple[str, ...] = ()) -> list[str]:
        capsys.readouterr()
        load_plan([Path(tmp_path / "mine.yaml")], {"set": [*changes], "only": [*only]})
        lines = capsys.readouterr().err.splitlines()
        return [line for line in lines if " does not change " in line]

    return printed


def test_partitions_and_methods_with_rounds_of_their_own_are_named(notes):
    (line,) = notes("rounds=4")
    assert line == (
        "note: rounds=4 does not change partitions.short.protocol.rounds=6, "
        "partitions.lists.protocol.rounds=8, methods.long.rounds=20, methods.rates.rounds=9; to "
        "change these too, add partitions.short.protocol.rounds=4 "
        "partitions.lists.protocol.rounds=4 methods.long.rounds=4 methods.rates.rounds=4"
    )


def test_the_changes_that_a_note_names_are_those_that_it_lacks(notes):
    (line,) = notes("study.rounds=4")
    more = line.partition("; to change these too, add ")[2].split()
    assert notes("study.rounds=4", *more) == []


def test_every_key_that_a_protocol_or_a_method_may_have_is_looked_up(notes):
    (line,) = notes("clients_per_round=2")
    assert "clients_per_round=2 does not change partitions.few.protocol.clients_per_round=3" in line
    (line,) = notes("training.lr=0.1")
    assert "partitions.short.protocol.training.lr=0.5, methods.long.training.lr=0.2;" in line
    assert notes("evaluate_every=2", "partitions.short.clients=20") == []


def test_what_the_study_does_not_run_is_not_named(notes):
    (line,) = notes("rounds=4", only=("partitions=few", "methods=long,fedvpt"))
    assert "does not change methods.long.rounds=20; to" in line
    assert notes("rounds=4", only=("partitions=few", "methods=fedvpt")) == []


def test_a_change_of_a_whole_mapping_is_no_change_of_a_key():
    """`--set study={rounds: 4}` names no single key that a partition could override."""
    plan = load_plan([], {"set": ["study={rounds: 4}"]})
    assert plan.settings.study.rounds == 4
