"""Clients that never trained are evaluated with a mean of personal states, made once for all."""

from dataclasses import replace

import pytest
import torch

from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import HOST, PersonalStates, State


def test_the_mean_is_of_the_tensors_at_a_key_of_all_clients():
    drawn = torch.randn(3, 4, dtype=torch.float64)
    states = {k: {"net": {"bias": drawn[k]}, "steps": torch.tensor(k)} for k in range(3)}
    expected = (drawn[0] + drawn[1] + drawn[2]) / 3
    torch.testing.assert_close(PersonalStates(states).mean("net"), {"bias": expected})


def test_without_clients_that_trained_there_is_no_mean():
    with pytest.raises(KeyError, match="head: no client has trained"):
        PersonalStates({}).mean("head")


def test_what_stays_on_clients_lies_on_the_host_until_they_need_it():
    """The device meta, whose tensors have no numbers, stands for a GPU."""
    gpu, own = torch.device("meta"), {"head": torch.ones(2)}
    start = State.of(State({"pool": torch.ones(2, device=gpu)}).tree(), gpu)
    kept = {"top_k": {"left": torch.ones(1)}}
    state = start.after(State({"pool": torch.ones(2, device=gpu)}, {3: own}, wrappers={3: kept}))
    assert state.server["pool"].device == gpu
    assert state.clients[3]["head"].device == state.wrappers[3]["top_k"]["left"].device == HOST
    assert state.personal[3]["head"].device == state.personal.mean("head").device == gpu
    assert list(state.personal) == [3] and len(state.personal) == 1


def test_an_evaluation_computes_it_once(tiny, monkeypatch):
    """Else an evaluation would take as long as trained clients times clients that never did."""
    task, hooks = tiny("pfedpg")
    task = replace(task, clients_per_round=2)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    never = task.data.num_clients - len(state.clients)
    assert never > 1
    calls = []
    mean = PersonalStates.mean
    monkeypatch.setattr(PersonalStates, "mean", lambda *of: calls.append(mean(*of)) or calls[-1])
    evaluate(task.at(1), hooks, state)
    assert len(calls) == never
    assert all(each is calls[0] for each in calls)
