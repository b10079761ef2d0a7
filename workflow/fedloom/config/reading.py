"""Read and merge the config's files and changes of single keys; find where a value was written."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.folders import read_text
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import InvalidKeyError, KeyPath
from fedloom.common.schema import read_yaml
from fedloom.config.bounded_yaml import parse_bounded
from fedloom.config.study import Config, Study
from fedloom.machine.install import ROOT

# the most bits that a whole number may have, without its sign
MOST_BITS = 64
# Labels of these sections name results that studies share, so a label has one meaning for all.
SHARED = ("datasets", "partitions", "backbones", "methods")
# holds a folder for each paper, with its numbers, claims and studies
PAPERS = ROOT / "workflow/papers"
# the file of a paper's published numbers
NUMBERS = "numbers.yaml"
# the file of a paper's sentences on its results
CLAIMS = "claims.yaml"


def read(path: Path) -> JsonDict:
    """Read one YAML file; an error names file, line and column."""
    content = parse(read_text(path), str(path))
    if not isinstance(content, dict):
        type_name = type(content).__name__ if content is not None else "nothing"
        raise FedLoomError(f"{path}: must be a mapping of keys to values, got {type_name}")
    return content


def parse(text: str, where: str) -> JsonValue:
    """Return the value of a YAML text; errors begin with `where`.

    Raises:
        FedLoomError: the text is not valid YAML, or has a value that no key may have.
    """
    try:
        return _plain(_tree(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise FedLoomError(f"{where}{place}: {one_line(error.problem or error.context)}") from None
    except (YAMLError, ValueError) as error:
        raise FedLoomError(f"{where}: {one_line(error)}") from None


# the cache saves most of the time of a plan
@lru_cache(maxsize=256)
def _tree(text: str) -> Any:
    """Parse a text of YAML into values that know their lines."""
    return parse_bounded(text)


def _plain(value: object) -> Any:
    """Return a value without ruamel's classes, which remember how a scalar was written.

    Raises:
        ValueError: no key of the config may have this value. It is a date, a number of too many
            bits, or text with a NUL or a lone surrogate. No file name and no table can hold these
            two.
    """
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        _check_characters(value)
    # ruamel's class for true or false with an anchor is derived from int, not from bool
    if isinstance(value, ScalarBoolean):
        return bool(value)
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"a whole number must fit into {MOST_BITS} bits; take a smaller one")

    # bool comes before int, since True is an int
    for plain_type in (bool, int, float, str):
        if isinstance(value, plain_type):
            return plain_type(value)
    if value is None:
        return None
    raise ValueError(f"{value!s} must be text, a number, true, false or null; put it in quotes")


def _plain_key(key: object) -> str | int:
    """Return a key of a mapping without ruamel's classes; it must be text or a whole number."""
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ValueError(f"a key must be text or a whole number, got {key!r}; put it in quotes")
    return _plain(key)


def _check_characters(text: str) -> None:
    """Refuse text that cannot be written to a file, or be a file's name."""
    if "\0" in text:
        raise ValueError(f"{text!r} must be without the character NUL (\\0); take it out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{text!r} must be whole characters, got a lone surrogate (half of one); take it out"
        ) from None


def read_all(paths: Iterable[Path]) -> list[tuple[Path, JsonDict]]:
    """Read config files; return the path and the content of each.

    A file comes after the files that its key `include` names. Its paths are relative to the file
    that names them. A file that is named several times is read once, where it is named first. The
    keys `include` and `inherit` are left out of the contents.

    Raises:
        FedLoomError: a file cannot be read, or includes itself.
    """
    contents: dict[Path, tuple[Path, JsonDict]] = {}

    def add(path: Path, above: tuple[Path, ...]) -> None:
        key = path.resolve()
        if key in above:
            raise FedLoomError(f"{path}: includes itself; leave it out of `include`")
        if key in contents:
            return
        content = read(path)
        if above and "inherit" in content:
            raise FedLoomError(f"{path}: inherit: must be in the study's own file; remove it here")
        inherits(path)
        content.pop("inherit", None)
        included = content.pop("include", [])
        if not isinstance(included, list) or not all(isinstance(name, str) for name in included):
            raise FedLoomError(f"{path}: include: must be a list of paths, got {included!r}")
        for name in included:
            add(path.parent / name, (*above, key))
        contents[key] = path, content

    for path in paths:
        add(Path(path), ())
    return list(contents.values())


def inherits(path: Path) -> bool:
    """Return whether a config file inherits keys of other files that it does not include.

    Raises:
        FedLoomError: the file cannot be read, or its key `inherit` is neither true nor false.
    """
    value = read(path).get("inherit", True)
    if not isinstance(value, bool):
        raise FedLoomError(f"{path}: inherit: must be true or false, got {value!r}")
    return value


def read_paper(paper: str, where: KeyPath, file: str = NUMBERS) -> JsonDict:
    """Return the content of a paper's file; the file NUMBERS has the keys `citation` and `tables`.

    `where` is the key path that names the paper; an InvalidKeyError about it says that the paper is
    unknown.
    """
    papers = [path.parent.name for path in PAPERS.glob(f"*/{file}")]
    where.check_known(paper, papers, "no")
    return read_yaml(PAPERS / paper / file)


class Change(NamedTuple):
    """A changed key of the config; `text` is the argument on the command line that changes it."""

    keys: list[str]
    value: JsonValue
    text: str


def read_change(text: str) -> Change:
    """Read a change such as "study.rounds=4"; the keys of `study` may be named without `study.`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise FedLoomError(f"--set must be <key>=<value>, got '{text}'")
    keys = key.split(".")
    close = get_close_matches(keys[0], [*Config.model_fields, *Study.model_fields], n=1)
    if close and close[0] not in Config.model_fields:
        keys = ["study", *keys]
    return Change(keys, parse(value, f"--set {key}"), text)


def locate_error(error: InvalidKeyError, files: Iterable[Path], changes: Iterable[Change]) -> str:
    """Return where a wrong value was written: " (file, line n)", or " (--set key=value)".

    If no file has the key, this is the place of the nearest parent that a file has. If the error is
    about an item of a list, it is the line of the item. Return "" if the place is unknown, or if
    the value is not from the config.
    """
    # a label may hold points, which also separate the keys of `--set`
    keys = ".".join(map(str, error.path.in_config())).split(".")
    if keys == [""]:
        return ""
    for change in changes:
        if has_prefix(keys, change.keys) or has_prefix(change.keys, keys):
            return f" (--set {change.text})"

    # the file that has most of the keys, and the line of the last of them
    best = ""
    depth = 1
    for path in files:
        node, line, reached = _walk(path, keys)
        is_list = hasattr(node, "append")
        if is_list and error.item in node:
            line = node.lc.item(node.index(error.item))[0]
        if reached >= depth:
            best = f" ({path}, line {line + 1})"
            depth = reached
    return best


def has_prefix(keys: Sequence[str | int], above: Sequence[str | int]) -> bool:
    """Return True if a key path begins with another."""
    return list(keys[: len(above)]) == list(above)


def find_definition(
    paths: Iterable[Path], keys: Sequence[str | int]
) -> tuple[str, JsonValue] | None:
    """Return where the last file that has a key sets it ("file, line n"), and the value there.

    Return None if no file has the key.
    """
    found = None
    for path in paths:
        node, line, reached = _walk(path, keys)
        if reached == len(keys):
            found = (f"{path}, line {line + 1}", node)
    return found


def _walk(path: Path, keys: Sequence[str | int]) -> tuple[Any, int, int]:
    """Follow a key path into a file as far as the file has it.

    Return the value there, its line (from 0), and the number of keys that were followed. Several
    keys of the path, joined by points, may be one label of the file.
    """
    node = _tree(read_text(path))
    line = 0
    reached = 0
    while reached < len(keys):
        places = getattr(getattr(node, "lc", None), "data", None) or {}
        ends = range(reached + 1, len(keys) + 1)
        joined = {".".join(map(str, keys[reached:end])): end for end in ends}
        known = [key for key in places if str(key) in joined]
        if not known:
            break
        key = max(known, key=lambda key: joined[str(key)])
        node = node[key]
        line = places[key][0]
        reached = joined[str(key)]
    return node, line, reached


def merge_configs(files: list[tuple[Path, dict]], overrides: dict | None = None) -> JsonDict:
    """Merge the contents of config files as Snakemake does: later files override earlier ones.

    - Mappings are merged, and lists are replaced.
    - A label of `tables` or `figures` is replaced as a whole.
    - A label of the sections SHARED must mean the same in all files.
    - `study.tune` of the first file, and of a folder's config.yaml over it, belongs to that study:
      a study with another name does not inherit it.
    - `overrides` are merged last.

    Raises:
        FedLoomError: a label of SHARED means different things in two files.
    """
    overrides = overrides or {}
    merged: JsonDict = {}
    origin: dict[tuple[str, str], Path] = {}
    for path, content in _without_inherited_trials(files, overrides):
        for section, value in content.items():
            if section in (*SHARED, "tables", "figures") and isinstance(value, dict):
                target = merged.setdefault(section, {})
                for label, meaning in value.items():
                    if section in SHARED and target.get(label, meaning) != meaning:
                        raise FedLoomError(
                            f"{section}.{label} means one thing in {origin[section, label]} and "
                            f"another in {path}; give one of them a new label"
                        )
                    origin[section, label] = path
                    target[label] = deepcopy(meaning)
            else:
                merged[section] = merge_values(merged.get(section), value)
    return merge_values(merged, overrides)


def _without_inherited_trials(
    files: list[tuple[Path, dict]], overrides: dict
) -> list[tuple[Path, dict]]:
    """Return the files with their contents, without the trials (`study.tune`) of another study.

    The first file, or a folder's config.yaml, may name another study than the one that is merged.
    Its trials are then left out, and with them those of all files before it.
    """
    contents = [*(content for _, content in files), overrides]
    studies = [content["study"] for content in contents if isinstance(content.get("study"), dict)]
    names = [study["name"] for study in studies if "name" in study]
    if not names:
        return files

    # the number of files, from the first one on, whose trials are left out
    count = 0
    for position, (path, content) in enumerate(files):
        study = content.get("study")
        is_inherited = position == 0 or path.name == "config.yaml"
        if is_inherited and isinstance(study, dict) and study.get("name", names[-1]) != names[-1]:
            count = position + 1

    return [*((path, _without_trials(content)) for path, content in files[:count]), *files[count:]]


def _without_trials(content: dict) -> dict:
    """Return the content of a config file without the key `study.tune`."""
    study = content.get("study")
    if not isinstance(study, dict):
        return content
    return content | {"study": {key: value for key, value in study.items() if key != "tune"}}


def merge_values(old: JsonValue, new: JsonValue) -> Any:
    """Merge `new` into `old`: mappings are merged, and anything else is replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return deepcopy(new)
    return old | {key: merge_values(old.get(key), value) for key, value in new.items()}
