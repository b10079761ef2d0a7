"""Operations that have no deterministic form on a GPU are found on a CPU."""

import re

import pytest
import torch
import torch.nn.functional as F

from changed_plugin import plugin_with
from fedloom.common.errors import FedLoomError
from fedloom.contract import checks
from fedloom.contract.deterministic import NO_DETERMINISTIC_FORM, DeterministicOnly
from fedloom.contract.tiny_run import TinyRun

# entries of torch's list that FedLoom's plugins cannot meet: sparse or quantised tensors, and
# devices of Apple
ELSEWHERE = {"resize_", "index_put", "index_reduce", "kthvalue", "Embedding", "MaxPool2d"}
# they are deterministic on CUDA, or the same operation as another entry
OTHERWISE = {"MaxPool3d", "MaxUnpool1d"}


def image(size=4, channels=2):
    return torch.randn(1, channels, size, size, requires_grad=True)


def cube():
    return torch.randn(1, 1, 4, 4, 4, requires_grad=True)


def row():
    return torch.randn(1, 2, 6, requires_grad=True)


def interpolated(x, mode, **options):
    return F.interpolate(x, scale_factor=2, mode=mode, **options).sum().backward()


def ctc():
    scores = torch.randn(5, 1, 3, requires_grad=True).log_softmax(2)
    return F.ctc_loss(scores, torch.tensor([[1, 2]]), (5,), (2,)).backward()


def bag(mode):
    table = torch.randn(5, 3, requires_grad=True)
    bags = F.embedding_bag(torch.tensor([1, 2]), table, torch.tensor([0]), mode=mode)
    return bags.sum().backward()


def unpooled():
    pooled, places = F.max_pool2d(image(), 2, return_indices=True)
    return F.max_unpool2d(pooled, places, 2)


FOUND = {
    "avg_pool3d": lambda: F.avg_pool3d(cube(), 2).sum().backward(),
    "adaptive_avg_pool1d": lambda: F.adaptive_avg_pool1d(row(), 4).sum().backward(),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(image(), 3).sum().backward(),
    "adaptive_avg_pool3d": lambda: F.adaptive_avg_pool3d(cube(), 3).sum().backward(),
    "adaptive_max_pool2d": lambda: F.adaptive_max_pool2d(image(), 3).sum().backward(),
    "fractional_max_pool2d": lambda: (
        F.fractional_max_pool2d(image(), 2, output_size=2).sum().backward()
    ),
    "max_unpool2d": unpooled,
    "linear": lambda: interpolated(row(), "linear"),
    "bilinear": lambda: interpolated(image(), "bilinear"),
    "bilinear, antialias": lambda: interpolated(image(), "bilinear", antialias=True),
    "bicubic": lambda: interpolated(image(), "bicubic"),
    "trilinear": lambda: interpolated(cube(), "trilinear"),
    "reflection_pad1d": lambda: F.pad(row(), (1, 1), "reflect").sum().backward(),
    "reflection_pad2d": lambda: F.pad(image(), (1, 1, 1, 1), "reflect").sum().backward(),
    "nll_loss2d": lambda: F.nll_loss(image(), torch.zeros(1, 4, 4, dtype=torch.long)),
    "ctc_loss": ctc,
    "embedding_bag": lambda: bag("max"),
    "put_": lambda: torch.zeros(3).put_(torch.tensor([0]), torch.ones(1), accumulate=True),
    "histc": lambda: torch.histc(torch.rand(9)),
    "bincount": lambda: torch.bincount(torch.tensor([0, 1]), torch.rand(2)),
    "median": lambda: torch.rand(3, 3).median(dim=0),
    "grid_sample": lambda: (
        F.grid_sample(image(), torch.rand(1, 3, 3, 2), align_corners=False).sum().backward()
    ),
    "scatter_reduce": lambda: torch.ones(3).scatter_reduce(
        0, torch.tensor([0]), torch.ones(1), "prod"
    ),
}

ALLOWED = {
    "nll_loss2d, every loss": lambda: F.nll_loss(
        image(), torch.zeros(1, 4, 4, dtype=torch.long), reduction="none"
    ),
    "embedding_bag, mean": lambda: bag("mean"),
    "bincount of integers": lambda: torch.bincount(torch.tensor([0, 1])),
    "median of everything": lambda: torch.rand(3, 3).median(),
    "scatter_reduce, sum": lambda: torch.ones(3).scatter_reduce(
        0, torch.tensor([0]), torch.ones(1), "sum"
    ),
    "nearest": lambda: interpolated(image(), "nearest"),
    "max_pool2d": lambda: F.max_pool2d(image(), 2).sum().backward(),
    "adaptive_avg_pool2d without gradients": lambda: F.adaptive_avg_pool2d(image().detach(), 3),
}


POOLED = """

def pooled(scores: Tensor) -> Tensor:
    return torch.nn.functional.adaptive_avg_pool1d(scores, scores.shape[-1])


import torch
"""


@pytest.mark.parametrize("name", FOUND)
def test_an_operation_without_a_deterministic_form_is_refused(name):
    with (
        pytest.raises(FedLoomError, match=r"^torch's .* has no deterministic form on a GPU"),
        DeterministicOnly(),
    ):
        FOUND[name]()


@pytest.mark.parametrize("name", ALLOWED)
def test_deterministic_forms_are_allowed(name):
    with DeterministicOnly():
        ALLOWED[name]()


def test_every_operation_that_torch_lists_is_known():
    text = torch.use_deterministic_algorithms.__doc__
    listed = text[text.rindex("will throw a") : text.index("In addition")]
    names = set(re.findall(r":(?:class|func):`(?:\w+\.)*(\w+)`", listed)) - {"RuntimeError"}
    assert names <= {*NO_DETERMINISTIC_FORM.values(), *ELSEWHERE, *OTHERWISE}


def test_every_operation_of_the_list_exists_in_torch():
    for name in NO_DETERMINISTIC_FORM:
        operation, _, overload = name.partition(".")
        overloads = getattr(torch.ops.aten, operation).overloads()
        assert not overload or overload in overloads


def test_the_contract_names_the_operation_of_a_method(tmp_path):
    method = plugin_with(
        tmp_path,
        'fl.linear(batch.features, params["head"]), batch',
        'pooled(fl.linear(batch.features, params["head"])), batch',
    )
    plugin = method.folder / "plugin.py"
    plugin.write_text(f"{plugin.read_text()}{POOLED}")
    run = TinyRun(method, tmp_path)
    with pytest.raises(FedLoomError, match=r"_adaptive_avg_pool2d_backward"):
        checks.trains_on_a_gpu(run)
