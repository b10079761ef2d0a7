"""Define the commands `fedloom <command>`, which people type; rules use `python -m fedloom.jobs`.

A module that takes long to import is imported only when a command needs it. Help and errors about
mistyped names therefore appear at once.
"""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import click

from fedloom.cli.commands import (
    LAUNCH_PARAMETERS,
    ONLY_OPTION,
    POSITIVE,
    SET_OPTION,
    CommandWithSettings,
    GroupWithHeadings,
    LaunchCommand,
)
from fedloom.cli.data_commands import data
from fedloom.cli.inspect.doctor import print_findings
from fedloom.cli.model_commands import predict, publish
from fedloom.cli.run.bundled_studies import find_study_file
from fedloom.cli.run.run_options import RunOptions
from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.machine.exits import one_line_errors
from fedloom.machine.process_log import log, log_to
from fedloom.planning.run_labels import Run

STUDY_OPTION = click.Option(
    ["--study"],
    type=find_study_file,
    metavar="STUDY",
    help="The study by which the runs were made; default: config.yaml.",
)
# the commands below each heading of `fedloom --help`
HEADINGS = {
    "Run a study": ("run", "report", "plan", "watch", "track"),
    "Look at studies, methods, results and this machine": (
        "studies", "methods", "datasets", "backbones", "kinds", "show", "diff", "predict",
        "communication", "schema", "doctor",
    ),
    "Make folders, methods and files": (
        "init", "new", "check", "data", "export", "publish", "clean",
    ),
}  # fmt: skip
optional_name = click.argument("name", required=False)


def read_options(text: str) -> JsonDict:
    """Return a method's options from a JSON object; raise click.BadParameter if it is none."""
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"must be a JSON object, got {text!r} ({error})") from None
    if not isinstance(options, dict):
        raise click.BadParameter(f"must be a JSON object such as {{}}, got {text!r}")
    return options


def read_rate(text: str) -> float:
    """Return a rate; raise click.BadParameter unless it is above 0 and below infinity."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise click.BadParameter(f"must be a number above 0, got {text!r}")
    return rate


def find_run(name: str) -> Run:
    """Return the finished run that a folder is of."""
    from fedloom.planning import runs

    return runs.find_finished_run(name)


@click.group(
    cls=GroupWithHeadings,
    headings=HEADINGS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="fedloom", message="%(prog)s %(version)s")
def fedloom() -> None:
    """Federated prompt tuning as one Snakemake workflow.

    STUDY is the path of a config file, or a name that `fedloom studies` prints; default:
    config.yaml. RUN is the path of a run's folder below results/runs.
    """


@fedloom.command(cls=LaunchCommand, params=LAUNCH_PARAMETERS)
def run(options: RunOptions, smoke: str | None) -> int:
    """Run a study and print its first table."""
    from fedloom.cli.run import launch, smoke_run

    if smoke:
        return smoke_run.run_shrunk(smoke, options)
    return launch.run_study(options)


@fedloom.command(
    cls=LaunchCommand,
    params=LAUNCH_PARAMETERS,
    short_help="Run a study, and write its report in HTML.",
)
def report(options: RunOptions, smoke: str | None) -> int:
    """Run a study; write its tables and figures into an HTML file."""
    from fedloom.cli.run import launch, smoke_run

    options = replace(options, reporting=True)
    if smoke:
        return smoke_run.run_shrunk(smoke, options)
    return launch.run_study(options)


@fedloom.command(short_help="Show the progress of the run in this folder.")
def watch() -> None:
    """Show the progress of the run in this folder, which another terminal has started."""
    from fedloom.cli.run import display

    display.watch()


@fedloom.command(short_help="Follow a study in tensorboard, wandb or mlflow.")
@click.argument("tracker")
def track(tracker: str) -> None:
    """Send the rounds of a study's runs to tensorboard, wandb or mlflow until the study ends.

    It is the study that was started last in this folder. TRACKER may also be the name of a tracker
    that an installed package adds.
    """
    from fedloom.cli.inspect import track

    track.track_study(tracker)


@fedloom.command(short_help="Make a folder for your own studies.")
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make a folder for your studies: a config to change, a Snakefile, profiles, examples."""
    from fedloom.cli.make import templates

    templates.new_folder(folder)
    print(f"next: cd '{folder}' && fedloom run")


@fedloom.command(
    cls=CommandWithSettings,
    params=[SET_OPTION, ONLY_OPTION],
    short_help="Estimate a study's jobs, hours and disk.",
)
@click.argument("studies", nargs=-1, type=find_study_file, metavar="[STUDY]...")
@click.option(
    "--rate",
    type=read_rate,
    metavar="TFLOPS",
    help="Speed of the GPU in 10^12 operations per second; default: an assumed one.",
)
def plan(
    studies: tuple[Path, ...], rate: float | None, changes: tuple[str, ...], only: tuple[str, ...]
) -> None:
    """Estimate what a study costs: its jobs, hours on a GPU, and disk."""
    from fedloom.cli.inspect import describe

    print(describe.describe_cost(studies, rate, changes, only))


@fedloom.command("studies", short_help="List the bundled studies, or those of a paper.")
@click.argument("folder", required=False)
def list_studies(folder: str | None) -> None:
    """Print what each bundled study shows, by paper; or what those of one paper take.

    FOLDER is the part of a study's name before the slash, such as pep_fedpt, micro or real. With
    it, data, methods, runs and hours of a GPU are printed too.
    """
    from fedloom.cli.inspect import studies

    if folder:
        print(studies.list_costs(folder))
    else:
        print(studies.list_studies())


@fedloom.command(short_help="Write a study's evaluations into one Parquet file.")
@click.argument("study", required=False)
@click.argument("folder", required=False, type=click.Path(file_okay=False))
def export(study: str | None, folder: str | None) -> None:
    """Write all evaluations of a finished study into one Parquet file, with a README.

    STUDY is the study's own name (study.name), its file, or a name that `fedloom studies` prints;
    default: config.yaml. FOLDER is made if it does not exist; default: results/export/<study>.
    """
    from fedloom.cli.inspect import results

    print(results.export(study, folder))


@fedloom.command(
    cls=CommandWithSettings,
    params=[STUDY_OPTION, SET_OPTION],
    short_help="Print a run's accuracy by round and its settings.",
)
@click.argument("run", type=find_run)
def show(run: Run, study: Path | None, changes: tuple[str, ...]) -> None:
    """Print a run's accuracy by round, its settings, and where each setting comes from."""
    from fedloom.cli.inspect import show

    print(show.show_run(run, study, changes))


@fedloom.command(
    cls=CommandWithSettings,
    params=[STUDY_OPTION, SET_OPTION],
    short_help="Compare settings and accuracy of two runs.",
)
@click.argument("runs", nargs=2, type=find_run, metavar="RUN RUN")
def diff(runs: tuple[Run, Run], study: Path | None, changes: tuple[str, ...]) -> None:
    """Print the settings in which two runs of a study differ, and the accuracies of both."""
    from fedloom.cli.inspect import show

    print(show.compare_runs(runs, study, changes))


@fedloom.command(short_help="Delete the results that no study uses.")
@click.argument("studies", nargs=-1, required=True, type=find_study_file, metavar="STUDY...")
@click.option("--yes", is_flag=True, help="Delete without asking.")
def clean(studies: tuple[Path, ...], yes: bool) -> None:
    """List the results that none of these studies uses, and delete them if you agree."""
    from fedloom.cli.make import clean

    clean.clean_results(studies, yes)


@fedloom.command(short_help="List methods, or describe one.")
@optional_name
def methods(name: str | None) -> None:
    """Print a line for every method, or all facts about one."""
    from fedloom.cli.inspect import describe

    if name:
        print(describe.describe_method(name))
    else:
        print(describe.list_methods())


@fedloom.command(short_help="Make a method of your own from the template.")
@click.argument("name")
def new(name: str) -> None:
    """Make plugins/NAME from the template: a method that runs, for you to change."""
    from fedloom.cli.make import templates

    print(f"{templates.new_method(name)}\nnext: fedloom check --method {name}")


@fedloom.command(short_help="Check that methods keep the contract.")
@click.option("--method", help="Name of a method; default: all methods.")
@click.option("--backbone", help="Name of a plugin with a library of backbones.")
def check(method: str | None, backbone: str | None) -> None:
    """Check that one method, or every method, keeps the contract of methods.

    This also writes options.py of the methods and wrappers in plugins/, from their method.toml.
    With --backbone, a library of backbones is checked instead.
    """
    if backbone is not None:
        if method is not None:
            raise FedLoomError("check takes --method or --backbone, got both; leave out one")
        _check_backbone(backbone)
        return

    from fedloom.hooks import manifest
    from fedloom.hooks.options_file import refresh_options_file

    # without a name, check every method, also those whose method.toml has an error
    known = manifest.discover_methods()
    names = [*known, *known.errors]
    if method:
        names = [method]
    plugins = [manifest.find_method(name) for name in names]

    # write the class of the options, for editors
    for plugin in plugins:
        file = refresh_options_file(plugin)
        if file is not None:
            click.echo(f"wrote {file}", err=True)

    # torch takes seconds to import, so this comes after the names were found to be right
    from fedloom.contract import driver
    from fedloom.machine.device import prepare_torch

    prepare_torch(threads=1)

    # do not log the progress of the tiny runs
    log.setLevel("WARNING")
    for plugin in plugins:
        done = driver.check(plugin, list(known.values()))
        click.echo(f"{plugin.name} keeps the contract ({done})", err=True)


def _check_backbone(name: str) -> None:
    """Check that the plugin of this name keeps the contract of libraries of backbones."""
    from fedloom.common.errors import check_known
    from fedloom.config.kind_plugins import plugins_of_type

    known = plugins_of_type("backbone")
    check_known(name, [*known, *known.errors], "no plugin with backbones named")
    plugin = known[name]

    # torch takes seconds to import, so this comes after the name was found to be right
    from fedloom.contract.backbone_checks import check_backbone
    from fedloom.machine.device import prepare_torch

    prepare_torch(threads=1)
    log.setLevel("WARNING")
    click.echo(f"{name} keeps the contract ({check_backbone(plugin)})", err=True)


@fedloom.command(short_help="Count the floats that a client receives in a round.")
@click.option("--method", required=True, help="Name of a method.")
@click.option(
    "--backbone", required=True, help="Name of a model of timm, or of open_clip for CLIP."
)
@click.option("--classes", type=POSITIVE, required=True, help="Number of classes.")
@click.option(
    "--options",
    type=read_options,
    metavar="JSON",
    default="{}",
    help="Options of the method, as a JSON object.",
)
def communication(method: str, backbone: str, classes: int, options: JsonDict) -> None:
    """Print how many floats the server sends a client in one round, tensor by tensor."""
    from fedloom.hooks.manifest import find_method

    # an unknown name is an error before torch is imported, which takes seconds
    find_method(method, role="method")
    from fedloom.cli.inspect.downlink import downlink_floats

    counts = downlink_floats(method, backbone, classes, options)
    for name, count in sorted(counts.items()):
        print(f"{name:<16}{count:>12,}")
    print(f"{'total':<16}{sum(counts.values()):>12,}")


@fedloom.command(short_help="Print sources of data and partition schemes.")
@optional_name
def datasets(name: str | None) -> None:
    """Print the sources of data and the partition schemes with their keys, or only one of them."""
    from fedloom.cli.inspect import describe

    print(describe.describe_kinds(name, datasets="source", partitions="scheme"))


@fedloom.command(short_help="Print the libraries of backbones.")
@optional_name
def backbones(name: str | None) -> None:
    """Print the libraries of backbones with their keys, or only one of them."""
    from fedloom.cli.inspect import describe

    print(describe.describe_kinds(name, backbones="library"))


@fedloom.command(short_help="Print the kinds of tables and figures.")
@optional_name
def kinds(name: str | None) -> None:
    """Print the kinds of tables and figures with their keys, or only one of them."""
    from fedloom.cli.inspect import describe

    print(describe.describe_kinds(name, tables="table", figures="figure"))


@fedloom.command(short_help="Check this machine, and say how to fix it.")
def doctor() -> int:
    """Check versions, GPUs and the disk of this machine, and print how to fix what is wrong."""
    return print_findings()


@fedloom.command(short_help="Print the config's JSON Schema, for an editor.")
def schema() -> None:
    """Print the config's keys as JSON Schema, for an editor."""
    from fedloom.config.config_schema import config_schema

    print(json.dumps(config_schema(), indent=2, ensure_ascii=False))


fedloom.add_command(data)
fedloom.add_command(predict)
fedloom.add_command(publish)


def main() -> None:
    """Run the command that the process's arguments name, and end with its exit status."""
    log_to(None)
    with one_line_errors():
        try:
            status = fedloom.main(prog_name="fedloom", standalone_mode=False)

        # a group without a command prints its help
        except click.exceptions.NoArgsIsHelpError as error:
            status = error.exit_code
            error.show()

        # click's own errors end the process as FedLoom's errors do
        except click.ClickException as error:
            raise FedLoomError(error.format_message()) from None
        except click.Abort:
            raise KeyboardInterrupt from None

    sys.exit(status or 0)
