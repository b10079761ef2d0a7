"""Find the folder of a run, and the states in it; know a published model by its files or name.

This module does not import torch, so that a mistyped name is an error at once.
"""

import os
import re
from os import PathLike
from pathlib import Path

from fedloom.common.errors import FedLoomError, shorten, suggestion
from fedloom.common.folders import is_folder
from fedloom.planning import paths
from fedloom.planning.run_labels import RUN_NAME, Run

# the folder of all runs, below that of a study
RUNS = "results/runs"
# the files of facts and of tensors in the folder of a published model
CONFIG = "config.json"
TENSORS = "model.safetensors"
# a model on a hub: owner/name, and perhaps @ with a branch, a tag or a commit
HUB_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)


def is_published(folder: Path) -> bool:
    """Return True if a folder holds a published model."""
    # never raises, even for a malformed path
    return os.path.isfile(folder / CONFIG)  # noqa: PTH113


def match_hub_name(name: str | PathLike) -> re.Match | None:
    """Return the match of HUB_NAME if a name is that of a model on a hub, else None.

    A file or folder of that name comes first, and a path object never is a name on a hub. Labels of
    a run have five parts, names on a hub have two.
    """
    if not isinstance(name, str) or os.path.exists(name):  # noqa: PTH110
        return None
    return HUB_NAME.fullmatch(name)


def find_run(name: str) -> tuple[Path, Run]:
    """Return the folder of the study that a run belongs to, and the run.

    Raises:
        FedLoomError: the name is not that of a run, or there is no such run.
    """
    # the labels are the name's last parts; before them stands a folder, or the name of a study
    found = re.search(r"^(.*?)/?([^/]+)/([^/]+)/([^/]+)/([^/]+)/seed(\d+)/*$", name)
    before = Path()
    if found is not None:
        before = Path(found[1])
    if found is None or not (len(before.parts) < 2 or before.parts[-2:] == Path(RUNS).parts):
        form = RUN_NAME.replace("{", "<").replace("}", ">")
        if is_folder(Path(name)):
            raise FedLoomError(
                f"{shorten(name)}: must be the folder of a run, {RUNS}/{form}, which holds rounds; "
                f"or that of a published model, which holds {CONFIG} and {TENSORS}; got a folder "
                "of neither kind; name another, or get its files anew"
            )
        raise FedLoomError(
            f"{shorten(name)}: must be the folder of a run below {RUNS}, or its labels, as {form}; "
            "or the folder of a published model, or owner/name of one on a hub"
        )
    dataset, partition, backbone, method, seed = found.groups()[1:]
    run = Run(dataset, partition, backbone, method, int(seed))

    # a folder says where the study's results lie
    root = Path()
    if len(before.parts) > 1:
        root = before.parent.parent

    if not is_folder(root / paths.path_for(paths.RUN, run)):
        pattern = re.sub(r"{\w+}", "*", paths.RUN)
        known = ["/".join(folder.parts[-5:]) for folder in root.glob(pattern)]
        hint = shorten(suggestion(run.path, known))
        raise FedLoomError(f"{shorten(name)}: no such run in {(root / RUNS).absolute()}; {hint}")
    return root, run


def find_state(root: Path, run: Run, round_number: int | None) -> Path:
    """Return the file of a run's state after a round, by default the last.

    Raises:
        FedLoomError: there is no state, or none of that round.
    """
    pattern = paths.path_for(paths.STATE, run, end="*")
    states = {int(file.stem): file for file in (root / pattern).parent.glob("[0-9]*.safetensors")}
    if not states:
        raise FedLoomError(
            f"{run.path}: no finished round; a run keeps its state when its first job has ended, "
            "after study.rounds_per_job rounds"
        )
    if round_number is None:
        round_number = max(states)
    if round_number not in states:
        known = ", ".join(map(str, sorted(states)))
        raise FedLoomError(
            f"{run.path}: round must be one after which a job ended ({known}), got {round_number}"
        )
    return states[round_number]
