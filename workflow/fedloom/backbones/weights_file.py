"""Files of weights, and what libraries raise while they load them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.common.errors import FedLoomError


def check_file(name: str, path: Path, suffixes: tuple[str, ...] = (".safetensors",)) -> None:
    """Require a file of weights that can be read without running code.

    Args:
        name: of the backbone, for the error.

    Raises:
        FedLoomError: it is missing, or has another suffix.
    """
    if path.suffix not in suffixes:
        raise FedLoomError(
            f"backbone {name}: weights '{path}': only {' and '.join(suffixes)} are read (a pickle "
            "runs code when it is opened); convert it with safetensors.torch.save_file"
        )
    if not path.is_file():
        raise FedLoomError(f"backbone {name}: weights '{path}': no such file")


@contextmanager
def loading(name: str, weights: str) -> Iterator[None]:
    """Turn what a library, its hub or safetensors raises into a line that names the weights.

    Raises:
        FedLoomError: the block has raised.
    """
    try:
        yield
    except FedLoomError:
        raise
    except Exception as error:  # the libraries raise whatever they like
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise FedLoomError(f"backbone {name}: cannot load weights '{weights}': {reason}") from error
