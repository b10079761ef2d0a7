"""Where the checkout lies, and what a path in the config means."""

from pathlib import Path
from shlex import quote

from fedloom.common.errors import FedLoomError

ROOT = Path(__file__).resolve().parents[3]


def resource(path: str) -> Path:
    """Resolve a path of the config: relative ones start at the checkout, `~` is the home folder."""
    if "\0" in path:
        raise FedLoomError(f"{path!r}: a path cannot hold the character NUL")
    try:
        return ROOT / Path(path).expanduser()
    except RuntimeError:
        raise FedLoomError(f"{path}: no such user, or one without a home folder") from None


def matching(patterns: str | list[str]) -> list[Path]:
    """List the files that a pattern or a list of patterns names, sorted within each pattern."""
    files = []
    for path in map(resource, [patterns] if isinstance(patterns, str) else patterns):
        try:
            files += sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        except (ValueError, IndexError, OSError) as error:
            raise FedLoomError(f"{path}: no pattern of files ({error})") from None
    return files


def in_shell(path: Path) -> str:
    """Return a path for a shell command that Snakemake formats, where braces are fields."""
    return quote(str(path)).replace("{", "{{").replace("}", "}}")
