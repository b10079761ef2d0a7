"""Packages that an extra of FedLoom installs, since the default study needs none of them."""

from importlib.util import find_spec

from fedloom.common.errors import FedLoomError

# the extra of each module
EXTRAS = {"open_clip": "clip", "opacus": "privacy", "duckdb": "results"}
EXTRAS |= dict.fromkeys(("mlflow", "tensorboard", "wandb"), "trackers")


def require_extra(module: str) -> None:
    """Require that a module of EXTRAS is installed; the error names the extra."""
    if module in EXTRAS and find_spec(module) is None:
        raise FedLoomError(f"{module}: not installed; pip install 'fedloom[{EXTRAS[module]}]'")
