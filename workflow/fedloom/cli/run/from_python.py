"""`fedloom.run`: run a study from Python, as the command `fedloom run` does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

from fedloom.common.errors import FedLoomError, shorten
from fedloom.common.files import atomic_write
from fedloom.common.json_types import JsonValue
from fedloom.machine.install import LIBRARY
from fedloom.planning import paths

# a line about an error begins with this
ERROR = "error: "


def run(
    study: str | PathLike | Mapping[str, object] | None = None,
    changes: Mapping[str, object] | None = None,
    cores: int | None = None,
    folder: str | PathLike = ".",
    only: Mapping[str, object] | None = None,
) -> None:
    """Run a study, print what `fedloom run` prints, and return when it has finished.

    Args:
        study: the study's file, a name that `fedloom studies` prints, or a mapping of keys of the
            config, such as {"study": {"name": "mine", "rounds": 4}}; default: config.yaml. Paths
            under a mapping's key `include` begin in `folder`.
        changes: values of single keys, such as {"training.lr": 0.1} (`--set` of `fedloom run`).
        cores: the most CPU cores that jobs use at a time; default: as the profile says.
        folder: the folder in which the study runs, and which gets its `results`.
        only: labels and seeds to which the study is narrowed, such as {"methods": ["sgpt", "pfpt"],
            "seeds": 0} (`--only` of `fedloom run`).

    Raises:
        FedLoomError: the study failed; the message is the first error that was printed.
    """
    check_study(study)
    only = _checked_mapping(only, "only", {"seeds": 0})
    folder = Path(folder)
    if not folder.is_dir():
        raise FedLoomError(f"{folder}: folder does not exist; create it, or pass another")

    # make the command; it runs in another folder, so it must name files by their absolute paths
    words = [sys.executable, "-P", "-m", "fedloom", "run"]
    if isinstance(study, Mapping):
        words.append(str(_write_given_study(study, folder).absolute()))
    elif study is not None:
        # if there is no such file, it may be the name of a study that ships
        file = Path(study)
        if file.is_file():
            file = file.absolute()
        words.append(str(file))
    if cores:
        words += ["--cores", str(cores)]
    words += [f"--set={change}" for change in changes_as_text(changes)]
    for key, value in only.items():
        labels = plain_value(value, key)
        if not isinstance(labels, list):
            labels = [labels]
        words.append(f"--only={key}={','.join(map(str, labels))}")

    # let the new process import the same library as this one
    environment = dict(os.environ)
    environment["PYTHONPATH"] = str(LIBRARY)
    if os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]

    status, errors = _run_and_print(words, folder, environment)
    if status == 0:
        return
    if errors:
        raise FedLoomError(errors[0])
    raise FedLoomError(f"the study failed with exit status {status}")


def check_study(study: object) -> None:
    """Check that a study is given as a file, a name or a mapping, or left to the default (None)."""
    if study is None or isinstance(study, str | PathLike | Mapping):
        return
    raise FedLoomError(
        f"study: must be a file, a name or a mapping, got {type(study).__name__}; pass one of these"
    )


def _checked_mapping(
    value: Mapping[str, object] | None, argument: str, example: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the mapping that an argument of `run` holds; an empty one for None.

    Raises:
        FedLoomError: the argument holds something else; the error shows an example.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FedLoomError(
            f"{argument}: must be a mapping, got {shorten(repr(value))}; write it as {example}"
        )
    return value


def changes_as_text(changes: Mapping[str, object] | None) -> list[str]:
    """Return changes of single keys in the form of `--set`, such as "training.lr=0.1"."""
    changes = _checked_mapping(changes, "changes", {"study.rounds": 3})
    return [f"{key}={json.dumps(plain_value(value, key))}" for key, value in changes.items()]


def _run_and_print(
    words: list[str], folder: Path, environment: dict[str, str]
) -> tuple[int, list[str]]:
    """Run a command and print its lines; return its exit status, and the errors among the lines."""
    errors = list[str]()
    # in a process group of its own, so that Ctrl-C reaches only this process, which hands it on
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    ) as process:
        assert process.stdout is not None

        try:
            # a notebook shows only what this process prints, not what its children print
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.startswith(ERROR):
                    errors.append(line.removeprefix(ERROR).strip())
            return process.wait(), errors

        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise


def _write_given_study(study: Mapping[str, object], folder: Path) -> Path:
    """Write a study's keys to a file below `folder`, which `fedloom track` can read too."""
    given = study.get("study")
    name = "unnamed"
    if isinstance(given, Mapping) and given.get("name"):
        name = str(given["name"])

    # take only the last part of the name as a path, since nobody has checked the name yet
    file = folder / paths.path_for(paths.GIVEN, study=Path(name).name)
    write_study(study, file, folder)
    return file


def write_study(study: Mapping[str, object], file: Path, folder: Path) -> None:
    """Write a study's keys to a file; the files that it includes are looked for in `folder`."""
    keys = {str(key): plain_value(value, str(key)) for key, value in study.items()}
    included = keys.get("include")
    if isinstance(included, list):
        # a path would begin at the file, of which the caller knows nothing
        keys["include"] = [_absolute(name, folder) for name in included]
    with atomic_write(file) as temporary:
        YAML().dump(keys, temporary)


def _absolute(name: JsonValue, folder: Path) -> JsonValue:
    """Return the absolute path of a file in a folder; return a wrong value, which is no text."""
    if isinstance(name, str):
        return str((folder / name).absolute())
    return name


def plain_value(value: object, where: str) -> JsonValue:
    """Return a value as plain Python, which YAML and JSON can write.

    Values of NumPy, paths, ranges and tuples are converted. `where` is the key of the value.

    Raises:
        FedLoomError: no key of the config can have such a value.
    """
    if isinstance(value, Mapping):
        plain = {}
        for key, item in value.items():
            place = f"{where}.{key}" if where else str(key)
            plain[str(key)] = plain_value(item, place)
        return plain

    # lists and arrays, then single values
    if isinstance(value, np.ndarray | np.generic):
        return plain_value(value.tolist(), where)
    if isinstance(value, list | tuple | range):
        return [plain_value(item, where) for item in value]
    if isinstance(value, PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value

    raise FedLoomError(
        f"{where}: must be text, a number, a truth value, a path, a list or a mapping, got "
        f"{type(value).__name__}; convert it first"
    )
