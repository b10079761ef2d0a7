"""Methods suit a GPU: no training step waits for it, and every operation is deterministic there.

What a step needs of the host is made ahead. An operation without a deterministic form is one that
torch refuses on a GPU.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.data.federation import Federation
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import manifest
from first_round import module
from three_blocks import backbone

WAITS = {
    getattr(torch.Tensor, name)
    for name in (
        *("item", "tolist", "numpy", "cpu", "nonzero", "unique", "equal", "masked_select"),
        *("__bool__", "__int__", "__float__", "__index__", "__array__"),
    )
} | {torch.nonzero, torch.unique, torch.equal, torch.masked_select, torch.argwhere}
COPIES = {torch.tensor, torch.from_numpy, torch.as_tensor, torch.asarray}
INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}


# beginnings of the names in ATen of the operations that torch.use_deterministic_algorithms lists
REFUSED = (
    *("adaptive_avg_pool", "adaptive_max_pool", "avg_pool3d_backward", "fractional_max_pool"),
    *("max_unpool", "upsample_linear1d_backward", "upsample_bilinear2d_backward"),
    *(
        "upsample_bicubic2d_backward",
        "upsample_trilinear3d_backward",
        "_upsample_bicubic2d_aa_back",
    ),
    *("_upsample_bilinear2d_aa_back", "reflection_pad", "_ctc_loss_backward", "put", "histc"),
    *("median", "kthvalue", "grid_sampler", "scatter_reduce", "index_reduce"),
)


class Deterministic(TorchDispatchMode):
    """A mode that refuses the operations that torch would refuse on a GPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        refused = name.startswith(REFUSED)
        refused |= name in ("cumsum", "cumsum_") and args[0].is_floating_point()
        refused |= name == "nll_loss2d_forward" and args[3] != 0  # a sum or a mean over examples
        refused |= name == "bincount" and len(args) > 1 and args[1] is not None
        assert not refused, name
        return function(*args, **kwargs)


class Watched(TorchFunctionMode):
    """A mode that, while `on`, refuses operations that would wait for a GPU, and copies to it."""

    on = False
    steps = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.on:
            return function(*args, **kwargs)
        if function in WAITS | COPIES:
            raise AssertionError(f"{function.__name__} in a training step")
        if function in INDEXING:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(i, list) for i in index):
                raise AssertionError("an index from the host in a training step")
            if any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in index):
                raise AssertionError("a mask as an index in a training step")
        return function(*args, **kwargs)


@pytest.fixture
def watched(monkeypatch):
    """Return a mode to enter, which is on from a training's first batch to its last step's end."""
    mode = Watched()

    def batches(self, steps, fill=None):
        mode.on = False
        for batch in original(self, steps, fill):
            mode.on = len(steps) > 1  # a pass has one step
            mode.steps += mode.on
            yield batch
        mode.on = False

    def unwatched(step):
        def run(*args, **kwargs):  # an optimiser's counts are on the host
            on = mode.on
            mode.on = False
            step(*args, **kwargs)
            mode.on = on

        return run

    original = Federation.batches
    monkeypatch.setattr(Federation, "batches", batches)
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        monkeypatch.setattr(kind, "step", unwatched(kind.step))
    return mode


METHODS = [
    (method.name, {}) for method in manifest.discover_methods().values() if method.kind == "method"
]
VARIANTS = [
    ("sgpt", {"variant": "released", "group_blocks": [5, 6, 7]}),
    ("fedpha", {"random_lengths": [3, 9]}),
    ("pfpt", {"variant": "released"}),
    # FedPHA's released code is left out: torch asks the device whether its SVD succeeded
]
FEW = {"fedic": {"server_steps": 2}}


@pytest.mark.parametrize(("name", "options"), [*METHODS, *VARIANTS])
def test_a_method_suits_a_gpu(tiny, watched, name, options, monkeypatch):
    task, hooks = tiny(name, backbone=backbone(name), **options, **FEW.get(name, {}))
    if name == "fedotp":
        monkeypatch.setitem(module(name, "transport").ASKED_EVERY, "cpu", 1000)
    with Deterministic(), torch.random.fork_rng():
        state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))  # fills caches
        evaluate(task.at(1), hooks, state)
    with watched:
        train_round(task.at(2), hooks, state)
    assert bool(watched.steps) is manifest.find_method(name).trained
