"""Layers with a client axis: their product, their initial draw, and names that changed."""

import pytest
import torch
from torch.nn import functional as F

import fedloom.toolbox as fl


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("between", [(5,), (5, 6), (5, 6, 2)], ids=len)
def test_a_linear_layer_has_weights_per_client_and_any_axes_between(between):
    x = drawn(3, *between, 4)
    weight = drawn(3, 7, 4)
    bias = drawn(3, 7) + 1
    found = fl.linear(x, weight, bias)
    without = fl.linear(x, weight)
    layer = fl.apply_linear(x, {"weight": weight, "bias": bias})
    for k in range(3):
        wanted = F.linear(x[k].double(), weight[k].double(), bias[k].double())
        torch.testing.assert_close(found[k].double(), wanted, atol=1e-5, rtol=1e-5)
        wanted = F.linear(x[k].double(), weight[k].double())
        torch.testing.assert_close(without[k].double(), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(layer, found)


def test_a_linear_layer_may_have_an_axis_more_as_one_per_block():
    x = drawn(3, 2, 5, 4)
    weight = drawn(3, 2, 7, 4)
    bias = drawn(3, 2, 7)
    found = fl.linear(x, weight, bias)
    for block in range(2):
        wanted = fl.linear(x[:, block], weight[:, block], bias[:, block])
        torch.testing.assert_close(found[:, block], wanted)


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: fl.init_linear(64, 500, 64, generator=generator, device="cpu"),
        lambda generator: fl.init_uniform(0.125, 500, 64, generator=generator, device="cpu"),
    ],
    ids=["init_linear", "init_uniform"],
)
def test_a_layer_starts_as_torch_draws_it(draw):
    """torch.nn.Linear draws weight and bias from U(-1, 1) / sqrt(inputs)."""
    values = draw(torch.Generator().manual_seed(1))
    assert values.shape == (500, 64)
    assert 0.124 < values.abs().max() <= 0.125
    assert abs(values.mean()) < 0.002
    assert values.std().item() == pytest.approx(0.125 / 3**0.5, rel=0.02)
    assert torch.equal(values, draw(torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(
    ("old", "new"),
    [("split_known", "split_by_received"), ("init_reader", "init_cross_attention")],
)
def test_an_old_name_ends_in_an_error_with_the_new_one(old, new):
    with pytest.raises(ImportError, match=f"^fedloom.toolbox.{old} is now {new}; use that$"):
        getattr(fl, old)
    with pytest.raises(ImportError, match=f"is now {new}"):
        exec(f"from fedloom.toolbox import {old}")


def test_a_name_that_the_toolbox_never_had_is_missing_as_in_any_module():
    assert not hasattr(fl, "split")
