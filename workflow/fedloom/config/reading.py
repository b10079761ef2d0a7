"""Read the config's files strictly, and merge them into one mapping."""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.folders import read_text

CONFIG = "config key"  # how an error names a key of the config
MOST_VALUES = 10**5  # of a file
# sections whose labels name results that studies share, so that a label has one meaning
SHARED = ("datasets", "partitions", "backbones", "methods")


def read(path: Path) -> dict[str, Any]:
    """Read one YAML file; an error names file, line and column."""
    return deepcopy(_parsed(read_text(path), Path(path)))


@lru_cache(maxsize=256)
def _parsed(text: str, path: Path) -> dict[str, Any]:
    """Parse a file; the cache saves most of the time of a plan."""
    try:
        plain = _plain(_tree(text), path, count(1))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = one_line(error.problem or error.context)
        raise FedLoomError(f"{path}{where}: {problem}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise FedLoomError(f"{path}: {one_line(error)}") from None
    if not isinstance(plain, dict):
        kind = "nothing" if plain is None else type(plain).__name__
        raise FedLoomError(f"{path}: expected a mapping of keys, found {kind}")
    return plain


@lru_cache(maxsize=256)
def _tree(text: str) -> Any:
    """Parse a text of YAML into values that know their lines."""
    return YAML(typ="rt").load(text)


def read_all(paths: Iterable[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Read config files, each after those that its key `include` names, which is left out.

    Paths in `include` are relative to the file that names them. A file that is named several times
    is read once, where it is named first.
    """
    contents: dict[Path, tuple[Path, dict[str, Any]]] = {}

    def add(path: Path, above: tuple[Path, ...]) -> None:
        key = path.resolve()
        if key in above:
            raise FedLoomError(f"{path}: includes itself; leave it out of `include`")
        if key in contents:
            return
        content = read(path)
        included = content.pop("include", [])
        if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
            raise FedLoomError(f"{path}: include: must be a list of paths, got {included!r}")
        for name in included:
            add(path.parent / name, (*above, key))
        contents[key] = path, content

    for path in paths:
        add(Path(path), ())
    return list(contents.values())


def _plain(value: Any, path: Path | str, values: Iterator[int]) -> Any:
    """Return a value without ruamel's classes; `values` counts them, and aliases each time."""
    if next(values) > MOST_VALUES:
        line = f"more than {MOST_VALUES} values, each alias (*) written out; use fewer of them"
        raise FedLoomError(f"{path}: {line}")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise FedLoomError(f"{path}: {key!r} cannot be a key; quote it")
        return {
            int(key) if isinstance(key, int) else str(key): _plain(item, path, values)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_plain(item, path, values) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise FedLoomError(f"{path}: {value!r} holds half a character (a lone surrogate)")
    for kind in (int, float, str):  # ruamel's own classes remember how a scalar was written
        if isinstance(value, kind):
            return kind(value)
    return value


def parse(text: str, where: str) -> Any:
    """Return the value that a text of YAML stands for; errors begin with `where`."""
    try:
        return _plain(_tree(text), where, count(1))
    except (YAMLError, ValueError, RecursionError) as error:
        raise FedLoomError(f"{where}: {one_line(error)}") from None


def within(keys: Sequence[str | int], above: Sequence[str | int]) -> bool:
    """Return True if a key path begins with another."""
    return list(keys[: len(above)]) == list(above)


def locate(paths: Iterable[Path], keys: Sequence[str | int], names: Sequence[str] = ()) -> str:
    """Return " (file, line n)" of the last file that has the key path, or of its nearest parent.

    Of a list, it is the line of the first item that is one of `names`.
    """
    best, depth = "", 0
    for path in paths:
        node, line, reached = _walk(path, keys)
        if hasattr(node, "append"):  # a list
            items = [node.index(name) for name in names if name in node]
            line = node.lc.item(items[0])[0] if items else line
        if reached and reached >= depth:
            best, depth = f" ({path}, line {line + 1})", reached
    return best


def written(paths: Iterable[Path], keys: Sequence[str | int]) -> tuple[str, Any] | None:
    """Return "file, line n" of the last file that has a key, and its value; None if none has it."""
    found = None
    for path in paths:
        node, line, reached = _walk(path, keys)
        found = (f"{path}, line {line + 1}", node) if reached == len(keys) else found
    return found


def _walk(path: Path, keys: Sequence[str | int]) -> tuple[Any, int, int]:
    """Return how far a file has a key path: the value there, its line, and the number of keys."""
    node, line = _tree(read_text(path)), 0
    for reached, key in enumerate(keys):
        try:
            line = (node.lc.item if hasattr(node, "append") else node.lc.key)(key)[0]
            node = node[key]
        except (KeyError, IndexError, TypeError, AttributeError):
            return node, line, reached
    return node, line, len(keys)


def merge(files: list[tuple[Path, dict]], overrides: dict | None = None) -> dict[str, Any]:
    """Merge the contents of config files, later ones over earlier ones, as Snakemake does.

    Mappings are merged and lists replaced. A label of `tables` or `figures` is replaced as a whole.
    The `study.tune` of the first file, and of a folder's config.yaml over it, belongs to its study:
    one with another name starts without it.
    """
    merged: dict[str, Any] = {}
    origin: dict[tuple[str, str], Path] = {}
    contents = [*(content for _, content in files), overrides or {}]
    studies = [content["study"] for content in contents if isinstance(content.get("study"), dict)]
    names = [study["name"] for study in studies if "name" in study]
    for path, content in files:
        for section, value in content.items():
            if section in (*SHARED, "tables", "figures") and isinstance(value, dict):
                target = merged.setdefault(section, {})
                for label, meaning in value.items():
                    known = target.get(label, meaning)
                    if section in SHARED and known != meaning:
                        raise FedLoomError(
                            f"{section}.{label} means one thing in {origin[section, label]} and "
                            f"another in {path}; give one of them a new label"
                        )
                    origin[section, label] = path
                    target[label] = deepcopy(meaning)
            else:
                merged[section] = merge_values(merged.get(section), value)
                below = content is contents[0] or path.name == "config.yaml"
                default = section == "study" and below and isinstance(value, dict)
                if default and names and value.get("name", names[-1]) != names[-1]:
                    merged[section].pop("tune", None)
    return merge_values(merged, overrides or {})


def merge_values(old: Any, new: Any) -> Any:
    """Return `new` over `old`: mappings merged, anything else replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return deepcopy(new)
    return old | {key: merge_values(old.get(key), value) for key, value in new.items()}
