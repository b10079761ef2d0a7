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
from fedloom.common.folders import check_writable
from fedloom.common.json_types import JsonDict
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
    config = shrink(plan.config, plan.settings, left)
    folder = paths.path_for(paths.SHRUNK, scale=name, study=plan.name)
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / paths.RESULTS)

    # another smoke run of the study has the same folder, and perhaps other tables; it waits
    with launch.exclusive_folder(folder):
        _link_plugins(folder)
        with chdir(folder):
            status, lines = _run_here(config, options, left.real)

    if lines:
        lines = ["", *lines, "", f"smoke run of {plan.name}: all of these paths are below {folder}"]
        print("\n".join(lines))
    return status


def _run_here(config: JsonDict, options: RunOptions, is_real: bool) -> tuple[int, list[str]]:
    """Run a shrunk study in this folder, whose lock this process holds, and check it.

    Args:
        config: the config of the shrunk study.
        options: how it is run.
        is_real: also tell what steps took.

    Returns:
        The exit status, as `run_shrunk` returns it; and lines about steps, tables and figures.
        There are none if Snakemake failed or was to run no job.
    """
    with atomic_write(STUDY_FILE) as temporary:
        YAML().dump(config, temporary)
    options = replace(options, files=[STUDY_FILE], changes=(), only=())
    arguments = launch.snakemake_arguments(options)
    plan, runs_nothing = launch.plan_of_arguments(arguments)
    if runs_nothing:
        return launch.run_snakemake(arguments), []
    status = launch.run_plan(plan, arguments, options)
    if status != 0:
        return status, []

    # this import takes a second
    from fedloom.report import smoke_check

    steps = list[str]()
    if is_real:
        steps = [*smoke_check.steps_beside_plan(plan), ""]
    checked = smoke_check.check_outputs(plan)
    lines = [*steps, "tables and figures:", *(each.line for each in checked)]
    return int(any(each.problem for each in checked)), lines


def _link_plugins(folder: Path) -> None:
    """Let a smoke run find the plugins of this folder, by a link in its folder.

    A link that leads to them stays as it is.

    Raises:
        FedLoomError: something else lies in the place of the link.
    """
    link = folder / PLUGINS
    plugins = PLUGINS.resolve()
    if link.is_symlink() and plugins.is_dir() and link.readlink() == plugins:
        return

    if link.is_symlink():
        link.unlink()
    if link.exists():
        raise FedLoomError(f"{link}: must be a link to {PLUGINS}/, got a folder; move it away")
    if plugins.is_dir():
        link.symlink_to(plugins, target_is_directory=True)
