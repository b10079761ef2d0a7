"""Class-level differential privacy (PEP-FedPT, A.4.1): sensitivity and noise by the formula."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch

from fedloom.common.errors import FedLoomError
from fedloom.common.trees import stack
from fedloom.contract import driver
from fedloom.contract.tiny import tiny_task
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.state import State
from fedloom.federated.task import cohort
from fedloom.hooks import loader, manifest

WRAPPER = manifest.find_method("dp_laplace", role="wrapper")
loader.load_hooks(manifest.find_method("pep_fedpt"), wrappers=[WRAPPER])
dp = sys.modules["fedloom_plugins.dp_laplace.plugin"]


def _run(folder, **options):
    method = manifest.find_method("pep_fedpt")
    task = tiny_task(method, folder, (WRAPPER,), **options)
    return task, loader.load_hooks(method, wrappers=[WRAPPER])


def test_sensitivity_is_the_formula():
    spread = torch.tensor([[3.0, 5.0, 1.0]])
    count = torch.tensor([6, 1, 0])
    assert dp.sensitivity(spread, count).tolist() == [[1.0, 10.0, 2.0]]


def test_noise_is_laplace_of_the_given_scale():
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.5, 4.0])[:, None]
    draws = dp.to_laplace(
        scale, torch.rand(2, 20_000, generator=generator, dtype=torch.float64)
    ).numpy()
    for row, b in zip(draws, (0.5, 4.0), strict=True):
        assert scipy.stats.kstest(row, scipy.stats.laplace(scale=b).cdf).pvalue > 0.01
        assert np.abs(row).mean() == pytest.approx(b, rel=0.03)  # E|x| = b


def test_the_warm_start_is_covered(tmp_path):
    task, hooks = _run(tmp_path)
    clean = task.prototypes.mean[[4, 5, 6]]
    server = initial_state(task, hooks).server
    assert server["metrics"] == {"secret_noise": 0.0}
    noise = server["constants"]["prototypes"] - clean
    scale = dp.sensitivity(task.prototypes.spread[[4, 5, 6]], task.prototypes.count) / 0.2
    stream = task.generator("dp_laplace")
    uniform = torch.rand(clean.shape, generator=stream, dtype=torch.float64)
    expected = dp.to_laplace(scale[..., None], uniform)
    torch.testing.assert_close(noise, expected, atol=1e-5, rtol=1e-4)


def test_every_update_and_block_gets_noise_only_where_a_class_was_updated(tmp_path):
    task, hooks = _run(tmp_path, period=2)
    state = initial_state(task, hooks)
    first = state.server["constants"]["prototypes"]
    state, _ = train_round(task.at(1), hooks, state)
    assert torch.equal(state.server["constants"]["prototypes"], first)
    assert (state.server["dp_laplace"]["count"] > 0).any(), "the window goes on"
    statistics = state.server["dp_laplace"]
    state, _ = train_round(task.at(2), hooks, state)
    second = state.server["constants"]["prototypes"]
    assert ((second != first).any(-1)).any(1).all(), "all blocks"
    assert not state.server["dp_laplace"]["count"].any(), "and then begins again"
    assert statistics["spread"].max() > 0


def test_the_noise_of_an_update_is_that_of_its_window(tmp_path):
    """A window has two rounds: over both, deviations are maxima and examples are sums."""
    task, hooks = _run(tmp_path, period=2)
    plain = loader.load_hooks(manifest.find_method("pep_fedpt"))
    loud = initial_state(task, hooks)
    own = ("dp_laplace", "metrics")
    public = {key: value for key, value in loud.server.items() if key not in own}
    quiet = State(public)  # starts from the same noisy prototypes
    statistics = []
    for number in (1, 2):
        at = task.at(number)
        ids = select_for_round(at, hooks, initial_state(task, hooks))
        sent = [hooks.download(task=at, server=quiet.server, client=k) for k in ids]
        clients = cohort(at, ids, [{} for _ in ids])
        updates = plain.client_update(task=at, received=stack(sent), clients=clients)
        statistics += [u.side_channel["prototypes"] for u in updates]
        quiet, _ = train_round(at, plain, quiet)
        loud, _ = train_round(at, hooks, loud)
    spread = torch.stack([t["spread"] for t in statistics]).amax(0)
    count = torch.stack([t["count"] for t in statistics]).sum(0)
    before, after = (s.server["constants"]["prototypes"] for s in (quiet, loud))
    expected = dp.add_noise(task.at(2), before, {"spread": spread, "count": count})
    held = (count > 0)[None, :, None]
    torch.testing.assert_close(after, torch.where(held, expected, before), atol=1e-5, rtol=1e-4)
    assert (after != before).any()


def test_only_wrapped_labels_get_noise(tmp_path):
    task, _ = _run(tmp_path)
    plain = loader.load_hooks(manifest.find_method("pep_fedpt"))
    assert torch.equal(
        initial_state(task, plain).server["constants"]["prototypes"],
        task.prototypes.mean[[4, 5, 6]],
    )
    louder = SimpleNamespace(**vars(task.wrappers["dp_laplace"]) | {"eps": 0.002})
    hundred = replace(task, wrappers={"dp_laplace": louder})
    zeros = torch.zeros(3, 4, 16)
    statistics = {"spread": torch.ones(3, 4), "count": torch.ones(4)}
    torch.testing.assert_close(
        dp.add_noise(hundred, zeros, statistics), 100 * dp.add_noise(task, zeros, statistics)
    )


@pytest.mark.parametrize("name", ["fedvpt", "head_tuning", "p_pt", "fedvpt_deep"])
def test_methods_without_prototypes_are_refused_by_name(name):
    line = driver.refusal(WRAPPER, manifest.find_method(name))
    assert line == f"dp_laplace: method {name} uploads no prototypes to protect; remove the wrapper"


def test_pep_without_its_class_prompts_is_refused_too(tmp_path):
    task, hooks = _run(tmp_path, ccmp=False)
    with pytest.raises(FedLoomError, match="method pep_fedpt uploads no prototypes"):
        initial_state(task, hooks)


def test_secret_noise_is_laplace_of_the_same_scale(tmp_path):
    task = replace(_run(tmp_path)[0], secret=bytes(32))  # fixed: no failure by chance
    task.wrappers["dp_laplace"].randomness = "secret"
    statistics = {"spread": torch.ones(3, 4), "count": torch.ones(4)}
    noise = torch.cat(
        [dp.add_noise(task.at(t), torch.zeros(3, 4, 16), statistics) for t in range(1, 50)]
    )
    other = dp.add_noise(replace(task, secret=bytes([1]) * 32).at(1), 0 * noise[:3], statistics)
    assert not torch.equal(other, noise[:3]), "it follows from the secret"
    scaled = scipy.stats.laplace(scale=2 / 0.2)
    assert scipy.stats.kstest(noise.flatten().numpy(), scaled.cdf).pvalue > 1e-3
