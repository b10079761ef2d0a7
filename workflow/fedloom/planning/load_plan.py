"""Read a study's config files and changes, and make its plan."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedloom.common.errors import FedLoomError, escape_unprintable
from fedloom.common.folders import is_folder
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import CONFIG as CONFIG_KEY
from fedloom.common.key_path import InvalidKeyError
from fedloom.config.narrowing import narrow, read_narrowing
from fedloom.config.own_values import notes_on_changes
from fedloom.config.reading import (
    Change,
    inherits,
    locate_error,
    merge_configs,
    merge_values,
    read_all,
    read_change,
)
from fedloom.config.resolve import resolve_with
from fedloom.config.settings import Settings
from fedloom.hooks.manifest import find_method
from fedloom.machine.extras import require_extra
from fedloom.machine.install import ROOT, resource
from fedloom.planning import paths, staleness
from fedloom.planning.backbone_needs import check_backbone_needs
from fedloom.planning.plan import Plan

# the default study, and the config of the current folder; in a checkout, both are the same file
DEFAULT_CONFIG = ROOT / "config.yaml"
OWN_CONFIG = Path("config.yaml")
# if one of these sections is changed, the study's inherited keys are lowered to fit
FITTED = {"study", "partitions", "select"}
# the key of `overrides` that holds a list of changes, each as "key=value"
CHANGES_KEY = "set"
# the key of `overrides` that holds a list of labels to keep, each as "key=label,label"
ONLY_KEY = "only"
# `fedloom run` sets this variable: it prints notes, and the table at the end, itself
LAUNCHER = "FEDLOOM_LAUNCHER"


def load_plan(files: Sequence[Path] = (), overrides: JsonDict | None = None) -> Plan:
    """Read a study as `read_plan` does; also check its backbones, which takes their packages.

    Raises:
        FedLoomError: a package is missing, a backbone does not give what a method needs, or the
            study is wrong.
    """
    plan = read_plan(files, overrides)
    for label in plan.settings.select.backbones:
        require_extra(plan.settings.backbones[label].library)
    try:
        check_backbone_needs(plan.settings, plan.runs)
    except InvalidKeyError as error:
        raise FedLoomError(f"{error}{locate_error(error, plan.files, plan.changes)}") from None
    return plan


def read_plan(files: Sequence[Path] = (), overrides: JsonDict | None = None) -> Plan:
    """Read a study, and return its plan.

    Args:
        files: the study's files. They override config.yaml, and later ones override earlier ones.
        overrides: keys that override all files (Snakemake's --config). Their key `set` is a list of
            changes, such as "study.rounds=4": in a mapping, Snakemake would turn numbers into text.
            Their key `only` is a list of labels and seeds to keep, such as "methods=sgpt,pfedpg".

    Raises:
        FedLoomError: a file or a key is wrong; the error says where it was written.
    """
    inherited_files = inherited_config_files(files)
    contents = read_all([*inherited_files, *map(Path, files)])

    # the mappings of --config, which the changes of single keys override
    given = dict(overrides or {})
    changes = [read_change(text) for text in _words(given.pop(CHANGES_KEY, ()), CHANGES_KEY)]
    narrowing = read_narrowing(_words(given.pop(ONLY_KEY, ()), ONLY_KEY))
    for keys, value, _ in changes:
        given = merge_values(given, _nested(keys, value))

    # without files, the study is that of the config of the current folder
    inherited_count = 1
    if files:
        inherited_count = len(read_all(inherited_files))
    set_by_user = _keys_set_by_user(merge_configs(contents[inherited_count:]), given)

    merged = merge_configs(contents, given)
    read = [path for path, _ in contents]
    whole = resolve(merged, read, changes, set_by_user)
    settings = narrow(whole, narrowing)

    # the launcher has printed the notes before it starts Snakemake
    if LAUNCHER not in os.environ:
        for note in (*settings.notes, *notes_on_changes(settings, merged, changes)):
            print(f"note: {escape_unprintable(note)}", file=sys.stderr)

    # if a plugin's file is not valid Python, raise the error here, before any job
    for name in sorted({settings.methods[label].plugin for label in settings.select.methods}):
        staleness.source_files((), (find_method(name),))
    return Plan(settings, merged, tuple(read), tuple(changes))


def _words(value: object, key: str) -> list[str]:
    """Return the list of words, or the single word, that --config gives to a key."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise FedLoomError(f"--config {key}: must be a list of texts, got {value!r}; quote each")
    return [*words]


def _keys_set_by_user(set_by_files: JsonDict, given: JsonDict) -> JsonDict | None:
    """Return the keys that the user set; keys that the study inherits are lowered to fit them.

    - If only the study's own files set keys, or only the command line, return these.
    - If both set keys, return them merged. If the command line sets a key of FITTED, only the keys
      of `study` that it sets itself count as set. The study keeps the tables and figures that its
      own files select.
    - If neither sets any key, return None: all keys are those of the study.
    """
    if not given or not set_by_files:
        return given or set_by_files or None
    found = merge_values(set_by_files, given)
    if given.keys() & FITTED:
        found["study"] = given.get("study", {})
    return found


def _nested(keys: Sequence[str], value: JsonValue) -> JsonValue:
    """Return {"a": {"b": value}} for the keys a and b."""
    for key in reversed(keys):
        value = {key: value}
    return value


def check_images(plan: Plan) -> None:
    """Raise a FedLoomError if local images are missing that a job of the study has to read."""
    for label in plan.settings.select.datasets:
        entry = plan.settings.datasets[label].settings

        # images that a job has stored, or will download, need no folder
        stored = entry.get("download") or paths.path_for(paths.STORE, dataset=label).exists()
        if "root" in entry and not stored and not is_folder(resource(entry["root"])):
            error = (CONFIG_KEY / "datasets" / label / "root").error(
                f"no such folder '{entry['root']}'; put the images there, or change the key"
            )
            raise FedLoomError(f"{error}{locate_error(error, plan.files, plan.changes)}")


def inherited_config_files(files: Sequence[Path], folder: Path = Path()) -> list[Path]:
    """Return the config files that a study's files override, and whose other keys it inherits.

    They are DEFAULT_CONFIG, and, unless the study ships with FedLoom, OWN_CONFIG of the folder.
    A file that says `inherit: false` inherits from none: not a study's file, nor OWN_CONFIG.
    """
    own = folder / OWN_CONFIG
    if not all(inherits(Path(file)) for file in files):
        return []
    if not files and own.exists() and not inherits(own):
        return [own]
    bundled = any(Path(file).resolve().is_relative_to(ROOT / "workflow") for file in files)
    if bundled or not own.exists():
        return [DEFAULT_CONFIG]
    return [DEFAULT_CONFIG, own]


def resolve(
    merged: JsonDict,
    files: Iterable[Path] = (),
    changes: Iterable[Change] = (),
    set_by_user: JsonDict | None = None,
) -> Settings:
    """Check a merged config, and return its settings.

    Args:
        merged: the merged config.
        files: the files that it was merged from, for the place in an error.
        changes: the changes that were made, for the same.
        set_by_user: the keys that the study or the command line sets; the others are inherited. By
            default, all keys are set.

    Raises:
        FedLoomError: a key is wrong; the error names the line or the change that sets it.
    """
    try:
        return resolve_with(merged, set_by_user)
    except InvalidKeyError as error:
        raise FedLoomError(f"{error}{locate_error(error, files, changes)}") from None
