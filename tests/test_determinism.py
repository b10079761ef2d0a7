"""No method uses an operation that torch refuses on a GPU, for want of a deterministic form."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.federated.evaluate import evaluate_clients
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import manifest

# torch.use_deterministic_algorithms lists them; by the beginnings of their names in ATen
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


class Watched(TorchDispatchMode):
    """Refuses what a GPU would, were it there."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        refused = name.startswith(REFUSED)
        refused |= name in ("cumsum", "cumsum_") and args[0].is_floating_point()
        refused |= name == "nll_loss2d_forward" and args[3] != 0  # a sum or a mean over examples
        refused |= name == "bincount" and len(args) > 1 and args[1] is not None
        assert not refused, name
        return function(*args, **kwargs)


@pytest.mark.parametrize("name", [n for n, m in manifest.discover().items() if m.kind == "method"])
def test_all_operations_have_a_deterministic_form(tiny, name):
    task, hooks = tiny(name)
    with Watched(), torch.random.fork_rng():
        state = initial_state(task, hooks)
        for number in (1, 2):
            state, _ = train_round(task.at(number), hooks, state)
        evaluate_clients(task.at(2), hooks, state)
