"""Packages that an extra of FedLoom installs, since the default study needs none of them."""

from importlib.util import find_spec

from fedloom.common.errors import FedLoomError

# the extra of each module
EXTRAS = {"open_clip": "clip", "opacus": "privacy", "duckdb": "results"}
EXTRAS |= dict.fromkeys(("mlflow", "tensorboard", "wandb"), "trackers")


def require(module: str) -> None:
    """Raise an error that names the extra, if the module is one of EXTRAS and not installed."""
    if module in EXTRAS and find_spec(module) is None:
        line = f"{module}: not installed; pip install 'fedloom[{EXTRAS[module]}]'"
        raise FedLoomError(line)
