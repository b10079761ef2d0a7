"""State on disk, and jobs that are killed, resumed, extended."""

import logging
import math
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.hooks import manifest
from fedloom.machine import packages

SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)


@given(st.lists(st.tuples(SHAPES, st.integers(0, 20)), min_size=1, max_size=6))
def test_loaded_tensors_lie_and_count_as_made_ones(given_shapes):
    """States that a method makes are also tested: `unflatten` returns pieces of a longer vector."""
    made = {
        f"{n}": torch.randn(first + math.prod(shape))[first:].view(shape)
        for n, (shape, first) in enumerate(given_shapes)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        tensor_files.save(path, made)
        loaded, _ = tensor_files.load(path)
    state = State.from_tree({"server": made, "seen": torch.empty(0)})
    for name, value in made.items():
        new = torch.empty(value.shape).copy_(value)
        for found in (loaded[name], state.server[name]):
            assert found.data_ptr() % 64 == new.data_ptr() % 64 == 0
            assert found.stride() == new.stride()
            assert torch.equal(found, new)
            rows, wide = (t.reshape(-1, t.shape[-1]) for t in (found, new))
            assert torch.equal(rows @ rows[0], wide @ wide[0])
            assert torch.equal(found.flatten() @ found.flatten(), new.flatten() @ new.flatten())


def test_a_foreign_safetensors_file_is_no_checkpoint(tmp_path):
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(FedLoomError, match="is damaged or incomplete"):
        tensor_files.load(tmp_path / "x.safetensors")


class _Killed(BaseException):
    pass


def _train(task, hooks, folder, fingerprint="same", last=4, evaluate=(2, 3, 4)):
    folder.mkdir(exist_ok=True)
    evaluate = tuple(number for number in evaluate if number <= last)
    tiny = replace(tiny_job(manifest.find_method(task.method), 0, last), evaluated_rounds=evaluate)
    training_job.train_rounds(task, hooks, tiny, None, tiny_outputs(folder), fingerprint)


def _assert_same_bytes(one, other, kinds=("state", "evaluation", "clients")):
    """Require that the outputs in two folders have the same bytes."""
    for kind in kinds:
        files = [getattr(tiny_outputs(folder), kind) for folder in (one, other)]
        assert files[0].read_bytes() == files[1].read_bytes(), kind


class _Odd:
    """Hooks of a method whose state has unsorted keys, and tensors that are not contiguous."""

    def __init__(self, hooks):
        self._hooks = hooks

    def __getattr__(self, name):
        return getattr(self._hooks, name)

    def _add(self, server):
        return {"z": torch.arange(6.0).view(2, 3).T.requires_grad_(), **server, "a": 1}

    def init_server(self, **known):
        return self._add(self._hooks.init_server(**known))

    def aggregate(self, **known):
        return self._add(self._hooks.aggregate(**known))


def test_a_state_is_as_a_file_gives_it_back(tiny, tmp_path):
    """A job that writes a state and one that resumes from it must add in the same order."""
    task, hooks = tiny("scaffold_pt")
    hooks = _Odd(hooks)
    first = initial_state(task, hooks)
    after, _ = train_round(task.at(1), hooks, first)
    for found in (first, after):
        tensor_files.save(tmp_path / "x", found.tree())
        again = State.from_tree(tensor_files.load(tmp_path / "x")[0])
        assert list(found.server) == ["a", *sorted(list(found.server)[1:])]
        assert _order(found.server) == _order(again.server)
        assert {k: _order(v) for k, v in found.clients.items()} == {
            k: _order(v) for k, v in again.clients.items()
        }
        assert list(found.clients) == list(again.clients)
        assert not found.server["z"].requires_grad


def _order(tree):
    """Return keys and strides in the order of the tree."""
    return [
        (key, _order(value) if isinstance(value, dict) else getattr(value, "stride", int)())
        for key, value in tree.items()
    ]


def test_a_longer_job_goes_on_from_a_shorter_ones_checkpoint(tiny, tmp_path, caplog):
    """Extending 30 rounds to 40 at 20 per job must not train rounds 21 to 30 again."""
    task, hooks = tiny("fedvpt")
    _train(task, hooks, tmp_path / "whole")
    _train(task, hooks, tmp_path / "extended", last=3)
    caplog.set_level(logging.INFO)
    _train(task, hooks, tmp_path / "extended", last=4)
    assert "resumed after round 3" in caplog.text
    _assert_same_bytes(tmp_path / "whole", tmp_path / "extended")


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ({"evaluate": (3, 4)}, "holds no evaluation, or one of other clients, after round 2"),
        ({"last": 5, "evaluate": (2, 3, 4)}, "is of round 5, after the job's last"),
    ],
)
def test_a_checkpoint_without_an_evaluation_or_beyond_the_end_is_not_resumed(
    tiny, tmp_path, caplog, first, reason
):
    task, hooks = tiny("fedvpt")
    _train(task, hooks, tmp_path / "whole")
    _train(task, hooks, tmp_path / "other", **first)
    caplog.set_level(logging.INFO)
    _train(task, hooks, tmp_path / "other")
    assert f"{reason}; starting after round 0" in caplog.text
    _assert_same_bytes(tmp_path / "whole", tmp_path / "other")


def test_evaluations_of_a_checkpoint_that_nobody_asked_for_are_not_reported(tiny, tmp_path, caplog):
    task, hooks = tiny("fedvpt")
    _train(task, hooks, tmp_path / "whole", evaluate=(3,))
    _train(task, hooks, tmp_path / "other", evaluate=(2, 3, 4))
    caplog.set_level(logging.INFO)
    _train(task, hooks, tmp_path / "other", evaluate=(3,))
    assert "resumed after round 4" in caplog.text
    _assert_same_bytes(tmp_path / "whole", tmp_path / "other", ["evaluation"])


def test_the_fingerprint_holds_inputs_sources_and_spec_but_not_the_end(tmp_path, monkeypatch):
    source = tmp_path / "plugin.py"
    source.write_text("a")
    one = tiny_job(manifest.find_method("fedvpt"))
    cpu = torch.device("cpu")
    known = training_job.job_fingerprint(one, [source], cpu)
    assert (
        training_job.job_fingerprint(replace(one, last=20, evaluated_rounds=()), [source], cpu)
        == known
    )
    other = replace(one, spec=replace(one.spec, clients_per_round=2))
    assert training_job.job_fingerprint(other, [source], cpu) != known
    found = {known}
    for name in ("H100", "H200"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)  # noqa: B023
        found.add(training_job.job_fingerprint(one, [source], torch.device("cuda")))
    assert len(found) == 3
    for package in ("torch", "open_clip_torch"):
        newer = packages.versions() | {package: "99"}
        with monkeypatch.context() as patch:
            patch.setattr(packages, "versions", lambda: newer)  # noqa: B023
            assert training_job.job_fingerprint(one, [source], cpu) != known
    source.write_text("b")
    assert training_job.job_fingerprint(one, [source], cpu) != known


def test_two_jobs_of_a_run_take_turns(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = tmp_path / "deep" / "run"
    entered = threading.Event()
    line = "another job is at work"

    def second():
        with training_job.exclusive_run_folder(folder):
            entered.set()

    with training_job.exclusive_run_folder(folder):
        thread = threading.Thread(target=second)
        thread.start()
        deadline = time.monotonic() + 30
        while line not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not entered.is_set()
    thread.join(30)
    assert entered.is_set() and caplog.text.count(line) == 1
    with training_job.exclusive_run_folder(folder):
        assert caplog.text.count(line) == 1, "nobody is at work here any more"
