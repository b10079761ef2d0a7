"""Transport between patches and prompts, and FedOTP, which is built on it."""

import numpy as np
import pytest
import torch

import clip_by_hand
from fedloom.common.errors import FedLoomError
from first_round import first_cohort, module

transport = module("fedotp", "transport")
transport_plan = transport.transport_plan

SHAPE = (2, 3, 2, 6, 2)  # [K, B, C, M, N]


def _costs(seed=0, least=0.0, most=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    cost = least + (most - least) * torch.rand(SHAPE, generator=generator, dtype=dtype)
    return cost, torch.ones(SHAPE[:2], dtype=torch.bool)


def _as_authors(cost, mass, eps, iterations, threshold, balanced):
    """Return one client's plans [B, C, M, N] and the iterations, by FedOTP's two loops.

    `entropic_COT_fast` caps the rows' scalings at 1 and watches the columns'; `Sinkhorn` does not
    cap, and watches the rows'. Both average the change over all problems of the batch.
    """
    cost = cost.double().numpy()
    rows, columns = cost.shape[-2:]
    kernel = np.exp(-cost / eps)
    u = np.ones(cost.shape[:-1])
    v = np.ones((*cost.shape[:-2], columns))
    count = 0
    running = True
    while running and count < iterations:
        old = u if balanced else v
        u = (1 / rows) / np.einsum("bcmn,bcn->bcm", kernel, v)
        u = u if balanced else np.minimum(u, 1)
        v = (mass / columns) / np.einsum("bcmn,bcm->bcn", kernel, u)
        running = np.abs((u if balanced else v) - old).mean() >= threshold
        count += 1
    return u[..., None] * kernel * v[..., None, :], count


# ---- solutions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("eps", "logarithms"), [(0.0465, False), (0.0450, True)])
def test_logarithms_begin_where_a_product_of_two_kernels_would_leave_the_range(
    monkeypatch, eps, logarithms
):
    """The square of exp(-2 / eps), at a cost of 2, is float32's smallest number at eps 0.0458."""
    calls = []
    scale = transport._Logarithmic.scale
    monkeypatch.setattr(
        transport._Logarithmic, "scale", lambda *given: calls.append(1) or scale(*given)
    )
    cost, mask = _costs(dtype=torch.float32)
    transport_plan(cost, mask, 0.8, eps, iterations=2)
    assert bool(calls) == logarithms


@pytest.mark.parametrize("eps", [0.1, 0.002])
@pytest.mark.parametrize("mass", [0.3, 0.8, 0.95, None])
def test_the_plan_is_that_of_pot(mass, eps):
    """A plan without a mass is balanced; otherwise every prompt receives its bound, mass / N."""
    import ot  # the import takes seconds, and every worker imports every file

    cost, mask = _costs(least=0.7, most=0.7 + 8 * eps)
    limits = {"iterations": 5000, "threshold": 0.0, "balanced": mass is None}
    plan = transport_plan(cost, mask, mass or 1.0, eps, **limits)
    patches = np.full(6, 1 / 6)
    prompts = np.full(2, (mass or 1) / 2)
    limits = {"numItermax": 5000, "stopThr": 1e-15}
    for place in np.ndindex(2, 3, 2):
        arguments = patches, prompts, cost[place].numpy() - 0.7, eps  # a constant changes no plan
        if mass is None:
            expected = ot.sinkhorn(*arguments, **limits)
        else:
            solve = ot.partial.entropic_partial_wasserstein
            expected = solve(*arguments, m=mass, **limits)
        np.testing.assert_allclose(plan[place].numpy(), expected, atol=1e-12)


# ---- iterations -----------------------------------------------------------------------------


@pytest.mark.parametrize(("mass", "balanced"), [(0.8, False), (1.0, False), (1.0, True)])
@pytest.mark.parametrize("eps", [0.1, 0.005])  # the second needs logarithms
def test_iterations_are_the_authors_and_stop_where_theirs_do(mass, balanced, eps):
    cost, mask = _costs(most=8 * eps)
    for iterations, threshold in ((1, 0.0), (2, 0.0), (7, 0.0), (5000, 1e-2), (5000, 1e-3)):
        plan = transport_plan(cost, mask, mass, eps, iterations, threshold, balanced=balanced)
        for k in range(2):
            arguments = (mass, eps, iterations, threshold, balanced)
            expected, count = _as_authors(cost[k], *arguments)
            np.testing.assert_allclose(plan[k].numpy(), expected, rtol=0, atol=1e-12)
            if threshold:
                assert 7 < count < 5000, "the threshold stops them"
                for other in (count - 1, count + 1):
                    elsewhere, _ = _as_authors(cost[k], mass, eps, other, 0.0, balanced)
                    assert np.abs(elsewhere - expected).max() > 1e-9, "one more would be seen"


def test_the_default_limits_of_iterations_and_threshold():
    """The defaults are FedOTP's MAX_ITER and THRESH."""
    for most, stopped in ((2.0, False), (1.0, True)):
        cost, mask = _costs(most=most)
        plan = transport_plan(cost, mask, 0.8, 0.1)
        for k in range(2):
            expected, count = _as_authors(cost[k], 0.8, 0.1, 100, 1e-3, False)
            assert (count < 100) == stopped
            np.testing.assert_allclose(plan[k].numpy(), expected, rtol=0, atol=1e-12)
            for other in ((98, 1e-3), (102, 1e-3), (100, 5e-4), (100, 2e-3)):
                elsewhere, count_there = _as_authors(cost[k], 0.8, 0.1, *other, False)
                differs = np.abs(elsewhere - expected).max() > 1e-9
                assert differs == (count_there != count), "another limit would be seen"


def test_a_client_stops_by_itself_and_padding_has_no_say():
    for eps in (0.1, 0.001):  # the second needs logarithms
        cost, mask = _costs()
        cost[1] *= 30  # this client needs many more iterations
        mask[0, 2] = False
        together = transport_plan(cost, mask, 0.8, eps)
        for k in range(2):
            alone = transport_plan(cost[[k]], mask[[k]], 0.8, eps)
            torch.testing.assert_close(together[[k]], alone, rtol=0, atol=0)
        short = transport_plan(cost[[0]][:, :2], mask[[0]][:, :2], 0.8, eps)
        torch.testing.assert_close(together[[0]][:, :2], short, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("mass", "balanced"), [(0.8, False), (1.0, True)])
def test_plans_of_a_small_eps_are_finite_in_single_precision(mass, balanced):
    """FedOTP has eps 0.01 for few shots, where exp(-cost / eps) is 0 from a cost of 1.04 on."""
    cost, mask = _costs(least=1.0, most=1.3, dtype=torch.float32)
    assert (torch.exp(-cost / 0.01).amax((-2, -1)) == 0).any(), "whole problems would vanish"
    plan = transport_plan(cost, mask, mass, 0.01, balanced=balanced)
    exact = transport_plan(cost.double(), mask, mass, 0.01, balanced=balanced)
    torch.testing.assert_close(plan.double(), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(plan.sum((-2, -1)), torch.full(SHAPE[:3], mass))


# ---- FedOTP ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"mass": 1.0}, {"mass": 1.0, "balanced": True}, {"eps": 0.5}]
)
def test_fedotp_logits_are_similarities_under_the_plan(tiny, options):
    task, hooks = tiny("fedotp", **options)
    received, clients, batch = first_cohort(task, hooks)
    found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    clip = task.backbone.model
    names = task.data.classes
    mass, eps, balanced = (options.get(k, d) for k, d in DEFAULTS.items())
    for k in range(len(clients)):
        contexts = received["params"]["context"][k], clients.state["local"][k]
        text = torch.stack([clip_by_hand.features(clip, x, names) for x in contexts])  # [N, C, d]
        similarity = torch.einsum("bmd,ncd->bcmn", batch.patches[k], text).detach()
        plan, _ = _as_authors(1 - similarity, mass, eps, 100, 1e-3, balanced)
        expected = (plan * similarity.numpy()).sum((-2, -1)) * float(clip.logit_scale.exp())
        np.testing.assert_allclose(found[k].numpy(), expected, atol=1e-3)


DEFAULTS = {"mass": 0.8, "eps": 0.1, "balanced": False}


def test_fedotp_refuses_balanced_transport_of_a_part(tiny):
    task, hooks = tiny("fedotp", balanced=True, mass=0.8)
    with pytest.raises(FedLoomError, match=r"moves all mass, but mass is 0\.8; set it to 1"):
        hooks.init_server(task=task)
