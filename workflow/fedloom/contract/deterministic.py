"""Find operations that have no deterministic form on a GPU, while a plugin runs on a CPU.

On a GPU, FedLoom asks torch for deterministic operations only, and torch raises an error in an
operation that has none. On a CPU nothing is raised, so this module watches all operations and their
backward passes, and compares their names with a list.
"""

from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from fedloom.common.errors import FedLoomError

# Operations of torch that raise an error on a GPU after `torch.use_deterministic_algorithms(True)`,
# as the documentation of that function lists them: name in aten -> name in the list
NO_DETERMINISTIC_FORM = {
    "avg_pool3d_backward": "AvgPool3d",
    "_adaptive_avg_pool2d_backward": "AdaptiveAvgPool2d",
    "_adaptive_avg_pool3d_backward": "AdaptiveAvgPool3d",
    "adaptive_max_pool2d_backward": "AdaptiveMaxPool2d",
    "fractional_max_pool2d_backward": "FractionalMaxPool2d",
    "fractional_max_pool3d_backward": "FractionalMaxPool3d",
    "max_unpool2d": "MaxUnpool2d",
    "max_unpool3d": "MaxUnpool3d",
    "upsample_linear1d_backward": "interpolate",
    "upsample_bilinear2d_backward": "interpolate",
    "_upsample_bilinear2d_aa_backward": "interpolate",
    "upsample_bicubic2d_backward": "interpolate",
    "_upsample_bicubic2d_aa_backward": "interpolate",
    "upsample_trilinear3d_backward": "interpolate",
    "reflection_pad1d_backward": "ReflectionPad1d",
    "reflection_pad2d_backward": "ReflectionPad2d",
    "reflection_pad3d_backward": "ReflectionPad3d",
    "nll_loss2d_forward": "NLLLoss",
    "_ctc_loss_backward": "CTCLoss",
    "_embedding_bag_backward": "EmbeddingBag",
    "put_": "put_",
    "put": "put_",
    "histc": "histc",
    "bincount": "bincount",
    "median.dim": "median",
    "nanmedian.dim": "median",
    "grid_sampler_2d_backward": "grid_sample",
    "grid_sampler_3d_backward": "grid_sample",
    "scatter_reduce": "scatter_reduce",
    "scatter_reduce_": "scatter_reduce",
}


class DeterministicOnly(TorchDispatchMode):
    """A context that refuses operations without a deterministic form on a GPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of torch.

        Raises:
            FedLoomError: the operation has no deterministic form on a GPU.
        """
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        overload = f"{name}.{func._overloadname}"
        if name in NO_DETERMINISTIC_FORM or overload in NO_DETERMINISTIC_FORM:
            _refuse(name, args, kwargs)
        return func(*args, **kwargs)


def _refuse(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise an error, unless the arguments make the operation deterministic after all."""
    # counts are integers, whose sums do not depend on their order
    if name == "bincount" and len(args) < 2 and kwargs.get("weights") is None:
        return
    # the reduction is the fourth argument; 0 keeps the loss of every example
    if name == "nll_loss2d_forward" and args[3] == 0:
        return
    # the reduction is the fifth argument
    if name.startswith("scatter_reduce") and args[4] in ("sum", "mean"):
        return
    # the mode is the ninth argument; 2 takes the largest value
    if name == "_embedding_bag_backward" and args[8] != 2:
        return
    raise FedLoomError(
        f"torch's {name} must not be used, because it has no deterministic form on a GPU; compute "
        "the same by products, sums or index_select"
    )
