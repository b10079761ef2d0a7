"""`fedloom run STUDY --smoke`: run all of a study, shrunk, in a folder of its own, and check it.

The folder is results/smoke/<study>, or results/smoke_real/<study> for `--smoke=real`. It holds the
shrunk study as study.yaml, and its results. So a smoke run and a run of the study itself never
share a result.
"""

from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path

from ruamel.yaml import YAML

from fedloom.cli.run import launch
from fedloom.common.errors import FedLoomError
from fedloom.common.files import atomic_write
from fedloom.common.json_types import JsonDict
from fedloom.config.shrink.study import MICRO, REAL, shrink
from fedloom.planning import paths
from fedloom.planning.load_plan import CHANGES_KEY, ONLY_KEY, load_plan

# the file of the shrunk study, in the folder of the smoke run
STUDY_FILE = Path("study.yaml")
PLUGINS = Path("plugins")
# by the value of --smoke: what is left of a study, and the folder of results
SCALES = {"micro": (MICRO, "smoke"), "real": (REAL, "smoke_real")}


def run_shrunk(
    scale: str,
    files: Sequence[Path] = (),
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    cores: int | None = None,
    dry: bool = False,
    options: Sequence[str] = (),
    reporting: bool = False,
) -> int:
    """Run a shrunk study, print what became of each table and figure, and return an exit status.

    `scale` is "micro" or "real"; `launch.run_study` explains the other arguments.

    Returns:
        Snakemake's exit status if it failed; else 1 if a table or figure is not whole, or 0.
    """
    plan = load_plan(files, {CHANGES_KEY: [*changes]})
    left, name = SCALES[scale]
    folder = paths.path_for(paths.SHRUNK, scale=name, study=plan.name)
    _prepare(folder, shrink(plan.config, plan.settings, left))

    with chdir(folder):
        status = launch.run_study([STUDY_FILE], (), only, cores, dry, options, reporting)
        if status != 0 or dry:
            return status

        # this import takes a second
        from fedloom.report import smoke_check

        shrunk = load_plan([STUDY_FILE], {ONLY_KEY: [*only]})
        checked = smoke_check.check_outputs(shrunk)
        steps = list[str]()
        if left.real:
            steps = smoke_check.steps_beside_plan(shrunk)
    print("\n".join(["", *steps, "tables and figures:", *(each.line for each in checked)]))
    print(f"\nsmoke run of {plan.name}: all of these paths are below {folder}")
    return int(any(each.problem for each in checked))


def _prepare(folder: Path, config: JsonDict) -> None:
    """Write the shrunk study into its folder, where it also finds the plugins of this folder.

    Raises:
        FedLoomError: something else lies in the place of the link to the plugins.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / STUDY_FILE) as temporary:
        YAML().dump(config, temporary)

    link = folder / PLUGINS
    if link.exists() or not PLUGINS.is_dir():
        return
    try:
        link.symlink_to(PLUGINS.resolve(), target_is_directory=True)
    except OSError as error:
        raise FedLoomError(f"{link}: must be a link to {PLUGINS}/ ({error.strerror})") from None
