"""`fedloom run STUDY --smoke`: run all of a study, shrunk, in a folder of its own, and check it.

The folder is results/smoke/<study>, or results/smoke_real/<study> for `--smoke=real`. It holds the
shrunk study as study.yaml, and its results. So a smoke run and a run of the study itself never
share a result.
"""

from contextlib import chdir
from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML

from fedloom.cli.run import launch
from fedloom.cli.run.run_options import RunOptions
from fedloom.common.errors import FedLoomError
from fedloom.common.files import atomic_write
from fedloom.config.shrink.scale import MICRO, REAL
from fedloom.config.shrink.study import shrink
from fedloom.planning import paths

# the file of the shrunk study, in the folder of the smoke run
STUDY_FILE = Path("study.yaml")
PLUGINS = Path("plugins")
# by the value of --smoke: what is left of a study, and the folder of results
SCALES = {"micro": (MICRO, "smoke"), "real": (REAL, "smoke_real")}


def run_shrunk(scale: str, options: RunOptions) -> int:
    """Run a shrunk study, and print what became of each table and figure.

    Args:
        scale: "micro" or "real".
        options: the study itself, and how the shrunk one is run.

    Returns:
        Snakemake's exit status if it failed; else 1 if a table or figure is not whole, or 0.

    Raises:
        FedLoomError: the study is wrong, is named by options of Snakemake, or cannot be shrunk.
    """
    if options.naming_option:
        raise FedLoomError(f"{options.naming_option}: with --smoke, name the study before `--`")
    plan = launch.plan_of_options(options)
    left, name = SCALES[scale]
    folder = paths.path_for(paths.SHRUNK, scale=name, study=plan.name)
    folder.mkdir(parents=True, exist_ok=True)
    config = shrink(plan.config, plan.settings, left)
    _link_plugins(folder)

    with chdir(folder):
        # another smoke run of this study may be at work
        with launch.exclusive_folder(), atomic_write(STUDY_FILE) as temporary:
            YAML().dump(config, temporary)
        shrunk_options = replace(options, files=[STUDY_FILE], changes=(), only=())
        status = launch.run_study(shrunk_options)

        # options of Snakemake may say that no job is to run
        shrunk, runs_nothing = launch.plan_of_arguments(launch.snakemake_arguments(shrunk_options))
        if status != 0 or runs_nothing:
            return status

        # this import takes a second
        from fedloom.report import smoke_check

        checked = smoke_check.check_outputs(shrunk)
        steps = list[str]()
        if left.real:
            steps = [*smoke_check.steps_beside_plan(shrunk), ""]
    print("\n".join(["", *steps, "tables and figures:", *(each.line for each in checked)]))
    print(f"\nsmoke run of {plan.name}: all of these paths are below {folder}")
    return int(any(each.problem for each in checked))


def _link_plugins(folder: Path) -> None:
    """Let a smoke run find the plugins of this folder, by a link in its folder.

    Raises:
        FedLoomError: something else lies in the place of the link.
    """
    link = folder / PLUGINS
    if link.is_symlink():
        link.unlink()
    if link.exists():
        raise FedLoomError(f"{link}: must be a link to {PLUGINS}/, got a folder; move it away")
    if PLUGINS.is_dir():
        link.symlink_to(PLUGINS.resolve(), target_is_directory=True)
