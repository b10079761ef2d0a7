"""Uploads that are not finite: robust means reject them, others stop with one line."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from attacks import IDS, attacked_runs
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.toolbox import Update
from refusals import refused


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which two of five clients attack."""
    return attacked_runs(tmp_path)


DEFENCES = {"krum": {"byzantine": 1, "kept": 3}, "trimmed_mean": {"trim": 0.2}}


@pytest.fixture
def overflowing(run):
    """Return overflowing(*defences): a task and hooks, one client sending infinity or NaN."""

    def make(*defences, scale=1e300):
        task, hooks = run("forged_update", *defences, scale=scale, share=0.2)
        for name in defences:
            vars(task.wrappers[name]).update(DEFENCES.get(name, {}))
        return replace(task, clients_per_round=5), hooks

    return make


@pytest.mark.parametrize("name", DEFENCES)
def test_a_robust_mean_rejects_an_upload_that_is_not_finite_and_the_run_goes_on(overflowing, name):
    task, hooks = overflowing(name)
    (attacker,) = hooks.attackers(task=task)
    state = initial_state(task, hooks)
    for number in (1, 2):
        state, row = train_round(task.at(number), hooks, state)
        received = {entry.client_id: entry.received for entry in row.updates}
        assert not received.pop(attacker)
        if name == "trimmed_mean":
            assert all(received.values())
        assert state.server["params"]["head"].isfinite().all()
        assert np.isfinite(row.train_loss)
    assert evaluate(task.at(2), hooks, state, IDS)


def test_a_rejected_upload_is_one_of_the_f_of_krum(run):
    """Scores are those of five updates, of which one has infinite distances, by hand."""
    task, hooks = run("krum", byzantine=1, kept=2)
    generator = torch.Generator().manual_seed(4)
    heads = torch.randn(5, 4, 16, generator=generator)
    heads[2, 0, 0] = torch.nan
    sent = [Update({"params": {"head": head}}, {}, 1, {}, client=k) for k, head in enumerate(heads)]
    vectors = heads.flatten(1).double().numpy()
    squares = ((vectors[:, None] - vectors) ** 2).sum(-1)
    squares = np.where(np.isnan(squares), np.inf, squares)
    np.fill_diagonal(squares, 0)
    scores = np.sort(squares)[:, 1 : 1 + 5 - 1 - 2].sum(1)
    kept = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [u.client for u in kept] == sorted(np.argsort(scores)[:2].tolist())


def test_a_trimmed_mean_is_that_of_the_finite_updates(run):
    task, hooks = run("trimmed_mean", trim=0.25)
    heads = torch.randn(5, 4, 16, generator=torch.Generator().manual_seed(4))
    heads[1, 3, 3] = -torch.inf
    sent = [Update({"params": {"head": head}}, {}, 1, {}, client=k) for k, head in enumerate(heads)]
    found = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [update.client for update in found] == [0, 2, 3, 4]
    finite = np.sort(heads[[0, 2, 3, 4]].double().numpy(), 0)[1:3].mean(0)
    np.testing.assert_allclose(found[0].payload["params"]["head"].numpy(), finite, atol=1e-6)


def test_an_update_whose_loss_is_not_finite_is_rejected_too(run):
    """The round would otherwise end with an error that names the wrapper, which cannot help."""
    task, hooks = run("trimmed_mean", trim=0.25)
    heads = torch.randn(5, 4, 16, generator=torch.Generator().manual_seed(4))
    losses = [0.5, torch.inf, 0.5, 0.5, 0.5]
    sent = [
        Update({"params": {"head": head}}, {}, 1, {"train_loss": loss}, client=k)
        for k, (head, loss) in enumerate(zip(heads, losses, strict=True))
    ]
    found = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [update.client for update in found] == [0, 2, 3, 4]


@pytest.mark.parametrize("name", DEFENCES)
def test_a_round_in_which_no_upload_is_finite_has_nothing_to_average(run, name):
    task, hooks = run(name)
    heads = torch.full((3, 4, 16), torch.nan)
    sent = [Update({"params": {"head": head}}, {}, 1, {}, client=k) for k, head in enumerate(heads)]
    with refused(f"{name}: round 4 must have an update that is finite, got 3 with NaN"):
        hooks.receive(task=task.at(4), server={}, updates=sent)


def test_without_a_robust_mean_the_error_names_the_attack_and_the_client(overflowing):
    task, hooks = overflowing()
    (attacker,) = hooks.attackers(task=task)
    where = f"head_tuning with forged_update: client_update, round 1, client {attacker}: upload"
    with refused(where, "is not finite", "the client attacks: make the attack weaker", "krum"):
        train_round(task.at(1), hooks, initial_state(task, hooks))


def test_a_client_that_diverged_and_was_rejected_has_no_loss(run):
    """The client's loss is null in its row, and the round's mean is that of the others."""
    task, hooks = run("trimmed_mean")
    diverged = task.data.participating[0]
    given = {}

    class Diverging:
        takes = hooks.takes

        def __getattr__(self, name):
            return getattr(hooks, name)

        def client_update(self, **arguments):
            updates = hooks.client_update(**arguments)
            for client, update in zip(arguments["clients"].ids, updates, strict=True):
                if client == diverged:
                    update.payload["params"]["head"] *= torch.nan
                    update.metrics["train_loss"] = float("nan")
                given[client] = update.metrics["train_loss"]
            return updates

    task = replace(task, clients_per_round=5)
    state, row = train_round(task.at(1), Diverging(), initial_state(task, hooks))
    losses = pd.DataFrame([update.columns() for update in row.updates]).set_index("client_id")[
        "train_loss"
    ]
    assert losses.isna().sum() == 1 and np.isnan(losses[diverged])
    others = [loss for client, loss in given.items() if client != diverged]
    assert len(others) == 4 and row.train_loss == pytest.approx(np.mean(others))
    assert state.participation[diverged].train_loss is None
