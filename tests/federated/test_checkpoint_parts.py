"""The checkpoint's parts: the files of a round, and those left when a job dies between writes."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from before_aggregation import BeforeAggregation
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import checkpoint, training_job
from fedloom.federated.answer_counts import AnswerCounts
from fedloom.federated.checkpoint import Checkpoint
from fedloom.federated.rows import Rows
from fedloom.federated.state import State
from fedloom.hooks import manifest
from made_rows import evaluation_row, round_row

METHOD = "singleset_head"  # its clients keep their heads


class _Killed(BaseException):
    pass


@pytest.fixture
def train(tiny, tmp_path):
    """Return train(folder, last=..., fingerprint=...), a job that ends and evaluates at `last`."""
    task, hooks = tiny(METHOD)
    task = replace(task, seed=1)  # with seed 1, rounds 1 and 2 have different clients

    def run(name, last=4, fingerprint="same", after=0, before_aggregation=lambda task: None):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        job = replace(tiny_job(manifest.find_method(METHOD), after, last), evaluated_rounds=(last,))
        start = tiny_outputs(folder, after).state if after else None
        outputs = tiny_outputs(folder, last)
        around = BeforeAggregation(before_aggregation, hooks)
        training_job.train_rounds(task, around, job, start, outputs, fingerprint)
        return outputs

    return run


def _parts(outputs):
    """Return the contents of the parts on disk, by the parts' names."""
    folder = outputs.checkpoint.with_suffix("")
    return {file.stem: tensor_files.load(file)[0] for file in sorted(folder.iterdir())}


def _named(outputs):
    return list(tensor_files.load(outputs.checkpoint)[1]["parts"])


def _selected(outputs):
    """Return the clients of every round."""
    rows = read_table(outputs.clients).to_pandas()
    return {f"{number:04}": sorted(own["client_id"]) for number, own in rows.groupby("round")}


def _same(one, other):
    kinds = ("state", "evaluation", "clients")
    return all(getattr(one, k).read_bytes() == getattr(other, k).read_bytes() for k in kinds)


def test_a_part_holds_the_states_of_a_rounds_clients_alone(train):
    outputs = train("run", 2)
    found = {name: list(State.from_tree(part).clients) for name, part in _parts(outputs).items()}
    assert found == _selected(outputs)
    assert any(ids != [1, 2, 3, 4, 5] for ids in found.values())


def test_parts_that_are_mostly_replaced_are_written_as_one(train):
    """Three of five clients train in a round; after four rounds, most states were replaced."""
    outputs = train("run")
    assert list(_parts(outputs)) == _named(outputs)
    assert len(_named(outputs)) < 4


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"fold": 99}, ["0001", "0002", "0003", "0004"]),
        ({"fold": 99, "most_parts": 2}, ["0003", "0004"]),
        ({"fold": 1}, ["0004"]),
    ],
)
def test_a_checkpoint_holds_the_same_in_many_parts_and_in_few(tmp_path, limits, kept):
    head = tmp_path / "checkpoint.safetensors"
    states = {}
    counts = AnswerCounts()
    written = Checkpoint(head, "same", **limits)
    for number in range(1, 5):
        ids = [number % 3, 3 + number % 2]  # some states are replaced
        states |= {k: {"head": torch.full((50,), 10.0 * number + k)} for k in ids}
        rows = Rows.from_round(round_row(number), [evaluation_row(number)], counts)
        written.write(number, State({"params": torch.ones(1)}, states), ids, rows)
    saved = checkpoint.read_checkpoint(head, "same", 0)
    assert list(saved.digests) == kept
    assert {k: own["head"][0].item() for k, own in saved.changes.clients.items()} == {
        0: 30, 1: 41, 2: 22, 3: 43, 4: 34,
    }  # fmt: skip
    assert saved.rows.rounds["round"].to_pylist() == [1, 2, 3, 4]
    assert saved.rows.evaluation["round"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize("done", [False, True])
def test_a_job_that_dies_at_any_write_goes_on_to_the_same_bytes(train, monkeypatch, done):
    """A job dies before or after a write; a round that folds also removes the parts it replaces."""
    whole = train("whole")
    real = Path.replace
    writes = 0
    assert len(_named(whole)) < 4, "a round has folded"

    def dies(path, target):
        nonlocal writes
        writes += Path(target).suffix in (".safetensors", ".state")
        if writes == at and not done:
            raise _Killed
        real(path, target)
        if writes == at:
            raise _Killed

    for at in range(1, 10):  # each of four rounds writes a part and a head, the end a state
        writes = 0
        monkeypatch.setattr(Path, "replace", dies)
        with pytest.raises(_Killed):
            train(f"{at}")
        monkeypatch.setattr(Path, "replace", real)
        resumed = train(f"{at}")
        assert _same(whole, resumed), at
        assert set(_named(resumed)) == set(_parts(resumed)), f"{at}: a part that nobody needs"


def test_two_jobs_that_nobody_disturbs_say_nothing_of_the_checkpoint(train, caplog):
    caplog.set_level(logging.INFO)
    train("chain", 2, "one")
    train("chain", 4, "two", after=2)
    assert "checkpoint" not in caplog.text


def test_the_next_job_goes_on_from_its_start_and_what_it_changed(train):
    """A job's parts hold only the clients that it selected; other clients come from its start."""
    whole = train("whole", 4)
    asked = []
    train("chain", 2, "one")

    def dies(task):
        asked.append(task.round)
        if task.round == 4:
            raise _Killed

    with pytest.raises(_Killed):
        train("chain", 4, "two", after=2, before_aggregation=dies)
    resumed = train("chain", 4, "two", after=2)
    assert resumed.state.read_bytes() == whole.state.read_bytes()
    assert list(_parts(resumed)) == ["0003", "0004"], "those of the job before are removed"
    assert asked == [3, 4]


def test_a_checkpoint_of_another_job_is_never_mixed_with_new_parts(train, monkeypatch, caplog):
    """The first part of a new job may replace a part that the old checkpoint's head names."""
    train("run", 2, "one")
    real = Path.replace

    def dies(path, target):
        if Path(target).name == "checkpoint.safetensors":
            raise _Killed
        return real(path, target)

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(_Killed):
        train("run", 2, "two")
    monkeypatch.setattr(Path, "replace", real)
    caplog.set_level(logging.INFO)
    train("run", 2, "one")
    assert "resumed" not in caplog.text


def test_a_part_that_is_not_the_one_that_the_head_names_is_refused(train):
    part = train("run", 2).checkpoint.with_suffix("") / "0002.safetensors"
    part.write_bytes(part.with_name("0001.safetensors").read_bytes())
    line = r"0002.safetensors: .* run again$"
    with pytest.raises(FedLoomError, match=line):
        train("run", 2)


def test_a_damaged_part_is_named_and_training_starts_again_without_it(train, caplog):
    outputs = train("run", 2)
    before = outputs.state.read_bytes()
    part = outputs.checkpoint.with_suffix("") / "0002.safetensors"
    data = bytearray(part.read_bytes())
    data[-3] ^= 1
    part.write_bytes(data)
    with pytest.raises(FedLoomError, match=r"0002.safetensors: .*delete it and run again"):
        train("run", 2)
    part.unlink()
    caplog.set_level(logging.INFO)
    outputs.state.unlink()
    train("run", 2)
    assert f"lacks its part {part}; starting after round 0" in caplog.text
    assert outputs.state.read_bytes() == before


def test_rows_do_not_lengthen_the_header_of_a_file(tmp_path):
    """safetensors refuses headers of more than 100 MB, which 700,000 rows would take."""
    counts = AnswerCounts()
    headers = []
    for count in (1, 10_000):
        rows = Rows.from_round(round_row(), [evaluation_row(loss=0.1 + 0.2)] * count, counts)
        folder = tmp_path / str(count)
        folder.mkdir()
        written = Checkpoint(folder / "checkpoint.safetensors", "same")
        written.write(1, State({}), [], rows)
        files = sorted(folder.rglob("*.safetensors"))
        headers.append([int.from_bytes(file.read_bytes()[:8], "little") for file in files])
        saved = checkpoint.read_checkpoint(files[-1], "same", 0)
        assert saved.rows.evaluation.equals(rows.evaluation)
        assert saved.rows.rounds.equals(rows.rounds) and saved.rows.size > 30 * count
    few, many = headers
    assert all(b <= a + 16 for a, b in zip(few, many, strict=True)), "a number may have more digits"
