"""Check for optional packages: extras of FedLoom install them, and the default study needs none."""

from importlib.util import find_spec

from fedloom.common.errors import FedLoomError

# maps each module to the extra that installs it
EXTRAS = {"open_clip": "clip", "tokenizers": "clip", "opacus": "privacy", "duckdb": "results"}
EXTRAS |= dict.fromkeys(("mlflow", "tensorboard", "wandb"), "trackers")


def require_extra(module: str) -> None:
    """Raise a FedLoomError, which names the extra, if a module of EXTRAS is not installed."""
    if module in EXTRAS and find_spec(module) is None:
        raise FedLoomError(f"{module}: not installed; pip install 'fedloom[{EXTRAS[module]}]'")
