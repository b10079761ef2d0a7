"""`fedloom <command>`: what people type; rules have `python -m fedloom.stages`.

What a command needs is imported when it runs, so that help and a mistyped name answer at once.
"""

import json
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fedloom.common.errors import FedLoomError
from fedloom.common.exits import one_line_errors
from fedloom.common.logs import hide_progress, log_to

HELP = {"help_option_names": ["-h", "--help"]}
PLENTY = click.IntRange(min=1)


class Study(click.ParamType):
    """A file, or the name of a study that ships, which becomes its file."""

    name = "study"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Return the file of a study; an unknown name is an error before any slow import."""
        from fedloom.commands.bundled_studies import file_of

        return file_of(value)


class FinishedRun(click.ParamType):
    """A folder below results/runs, which becomes a Run."""

    name = "run"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the run; one that has not finished is an error before any slow import."""
        from fedloom.study.runs import finished

        return finished(value)


class Changing(click.Command):
    """A command whose `--set` may have several settings, of which the last of a key counts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, with `--set` before every KEY=VALUE."""
        words = list[str]()
        for word in args:
            if "=" in word and not word.startswith("-") and not Path(word).exists():
                words += ["--set"] if words[-1:] != ["--set"] else []
            words.append(word)
        return super().parse_args(ctx, words)


class Launching(Changing):
    """A command that hands the words after `--` on to Snakemake."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`, and keep the others as the context's object."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.obj = args[cut + 1 :]
        return super().parse_args(ctx, args[:cut])


@click.group(context_settings=HELP)
@click.version_option(package_name="fedloom", message="%(prog)s %(version)s")
def fedloom() -> None:
    """Federated prompt tuning as one Snakemake workflow.

    A STUDY is a file, or a name that `fedloom studies` prints; without one, it is config.yaml. A
    RUN is a folder below results/runs.
    """


# ---- studies -------------------------------------------------------------------------------------


def launch(study: Path | None, changes: tuple[str, ...], **given: Any) -> int:
    """Run Snakemake on a study."""
    from fedloom.commands import launch

    files = [study] if study else []
    context = click.get_current_context()
    reporting = context.info_name == "report"
    return launch.run(files, changes, options=context.obj, reporting=reporting, **given)


SET = {"multiple": True, "metavar": "KEY=VALUE ..."}
LAUNCHING = [
    click.Argument(
        ["study"], required=False, type=Study(), metavar="[STUDY] [-- SNAKEMAKE'S OPTIONS]"
    ),
    click.Option(["--cores"], type=PLENTY, help="Default: all of this machine."),
    click.Option(["-n", "--dry-run", "dry"], is_flag=True, help="Show what would run."),
    click.Option(
        ["--set", "changes"],
        help="Keys of the config, as study.rounds=4; `study.` may be left out.",
        **SET,
    ),
    click.Option(
        ["--track", "trackers"], multiple=True, metavar="TRACKER", help="See `fedloom track`."
    ),
]
for name, about in {
    "run": "Run a study and print its first table.",
    "report": "Run a study; write its tables and figures into an HTML file.",
}.items():
    fedloom.add_command(Launching(name, params=LAUNCHING, callback=launch, help=about))


@fedloom.command()
def watch() -> None:
    """Show how far the run in this folder is, in another terminal."""
    from fedloom.commands import display

    display.watch()


@fedloom.command()
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make a folder for your studies: a config to change, a Snakefile, profiles, examples."""
    from fedloom.commands.init import init

    for file in init(folder):
        print(file)
    print(f"next: cd {quote(str(folder))} && fedloom run")


@fedloom.command()
@click.argument("studies", nargs=-1, type=Study(), metavar="[STUDY]...")
@click.option("--rate", type=float, metavar="TERA", help="Of your GPU: 10^12 operations a second.")
def plan(studies: tuple[Path, ...], rate: float | None) -> None:
    """Print what a study costs: jobs, hours, disk, bytes."""
    if rate is not None and not 0 < rate < float("inf"):
        raise FedLoomError(f"--rate: must be a number above 0, got '{rate}'")
    from fedloom.commands.plan import text

    print(text(studies, rate))


@fedloom.command()
def studies() -> None:
    """Print the studies that ship, with what each shows."""
    from fedloom.commands import describe

    print(describe.studies())


@fedloom.command()
@click.argument("study", required=False)
@click.argument("folder", required=False, type=click.Path(file_okay=False))
def export(study: str | None, folder: str | None) -> None:
    """Write all evaluations of a finished study into one Parquet file, with a README, for a paper.

    STUDY is its name, its file, or a name that `fedloom studies` prints; default: config.yaml.
    FOLDER is made; default: results/export/<study>.
    """
    from fedloom.commands.export import export

    print(export(study, folder))


# ---- runs ----------------------------------------------------------------------------------------

set_option = click.option("--set", "changes", help="As `fedloom run` was given it.", **SET)


@fedloom.command(cls=Changing)
@click.argument("run", type=FinishedRun())
@click.option("--study", "file", type=Study(), help="The run's.")
@set_option
def show(run: Any, file: Path | None, changes: tuple[str, ...]) -> None:
    """Print a run's accuracy by round, and where each setting is from."""
    from fedloom.commands import planning, show

    plan = planning.load_plan([file] if file else [], {planning.SET: changes})
    print(show.show(plan, run))


@fedloom.command()
@click.argument("tracker")
def track(tracker: str) -> None:
    """Write the runs of the study begun last here for TensorBoard, W&B or MLflow.

    TRACKER is tensorboard, wandb, mlflow, or of an installed package.
    """
    from fedloom.commands import trackers

    loaded = trackers.find(tracker).load()  # before the library, which takes a second
    from fedloom.commands.track import track

    track(tracker, loaded)


@fedloom.command(cls=Changing)
@click.argument("runs", nargs=2, type=FinishedRun(), metavar="RUN RUN")
@click.option("--study", "files", type=Study(), multiple=True, help="The runs'.")
@set_option
def diff(runs: Any, files: tuple[Path, ...], changes: tuple[str, ...]) -> None:
    """Print how two runs differ in settings and accuracy.

    With two --study, each run has its own.
    """
    if len(files) > 2:
        raise FedLoomError(f"--study: must be at most two, got {len(files)}; compare two runs")
    from fedloom.commands import planning, show

    given = {planning.SET: changes}
    plans = [planning.load_plan([file] if file else [], given) for file in files or [None]]
    print(show.diff((plans[0], plans[-1]), runs))


@fedloom.command()
@click.argument("studies", nargs=-1, required=True, type=Study(), metavar="STUDY...")
@click.option("--yes", is_flag=True, help="Delete without asking.")
def clean(studies: tuple[Path, ...], yes: bool) -> None:
    """List results that none of these studies uses; delete them if you agree."""
    from fedloom.commands import clean, launch, planning

    plans = [planning.load_plan([file]) for file in studies]
    with launch.alone():
        clean.check_idle()
        found = clean.unused(plans)
        print(clean.listing(found))
        if found and (yes or click.confirm("Delete all of these?")):
            clean.delete(found)


# ---- methods and data ----------------------------------------------------------------------------


@fedloom.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """Print every method in a line, or all facts of one."""
    from fedloom.hooks import manifest

    if name:
        manifest.find(name)  # before the library, which takes a second
    from fedloom.commands import describe

    print(describe.method(name) if name else describe.methods())


@fedloom.command()
@click.argument("name")
def new(name: str) -> None:
    """Make plugins/NAME, a method that runs, for you to change."""
    from fedloom.commands.new import new_method

    print(f"{new_method(name)}\nnext: fedloom check --method {name}")


@fedloom.command()
@click.option("--method", help="Name of a method; default: every one.")
@click.option("--threads", type=PLENTY, default=1, help="Of torch.")
def check(method: str | None, threads: int) -> None:
    """Hold a method to the contract: yours, or every one."""
    from fedloom.hooks import manifest

    known = manifest.discover()
    names = [method] if method else sorted(known.keys() | known.broken.keys())
    if names[0] not in known.keys() | known.broken.keys():
        _refuse_other_kinds(names[0])
    manifest.find(names[0])  # before torch, which takes seconds
    from fedloom.common.device import prepare_torch
    from fedloom.contract import driver

    prepare_torch(threads)
    hide_progress()  # of tiny runs
    for name in names:
        done = driver.check(manifest.find(name), list(known.values()))
        click.echo(f"{name} keeps the contract ({done})", err=True)


def _refuse_other_kinds(name: str) -> None:
    """Refuse a plugin of another kind, and name the command that reads it."""
    from fedloom.config.kind_plugins import OWN, discover

    for kind in OWN:
        if name in (found := discover(kind)).keys() | found.broken.keys():
            found[name]  # a broken one raises its error
            reads = "kinds" if kind in ("table", "figure") else "datasets"
            line = f"must be a method, got a {kind}; `fedloom {reads} {name}` reads its files"
            raise FedLoomError(f"{name}: {line}")


@fedloom.command()
@click.option("--method", required=True, help="Name of a method.")
@click.option("--backbone", required=True, help="A model of timm, or of open_clip.")
@click.option("--classes", type=PLENTY, required=True, help="Number of classes.")
@click.option("--options", type=json.loads, default="{}", help="The method's, as JSON.")
def communication(method: str, backbone: str, classes: int, options: dict[str, Any]) -> None:
    """Print the floats that a client is sent in one round, by kind."""
    from fedloom.hooks import manifest

    manifest.find(method, kind="method")  # before torch, which takes seconds
    from fedloom.commands.downlink import downlink_floats

    counts = downlink_floats(method, backbone, classes, options)
    for name, count in [*sorted(counts.items()), ("total", sum(counts.values()))]:
        print(f"{name:<16}{count:>12,}")


@fedloom.command()
@click.argument("name", required=False)
def datasets(name: str | None) -> None:
    """Print recipes, and sources and schemes with their keys, or those of a name."""
    from fedloom.commands import describe

    print(describe.datasets(name))


@fedloom.command()
@click.argument("name", required=False)
def kinds(name: str | None) -> None:
    """Print the kinds of tables and figures with their keys, or those of a name."""
    from fedloom.commands import describe

    print(describe.outputs(name))


@fedloom.group()
def data() -> None:
    """List, download and check the data sets of the papers."""


root_folder = click.option("--root", help="Folder of its files; default: data/<name>.")


@data.command("list")
def list_recipes() -> None:
    """Print every recipe in a line."""
    from fedloom.commands import data

    print(data.listing())


@data.command("get")
@click.argument("name")
@root_folder
def get_data(name: str, root: str | None) -> None:
    """Download a data set; what is there already is not fetched again.

    NAME is that of a recipe, or the path of its .yaml file. What no program can download is printed
    as steps to do by hand, and the exit status is then 2.
    """
    from fedloom.commands import data

    data.get(name, root)


@data.command("check")
@click.argument("name")
@root_folder
@click.option("--pixels", is_flag=True, help="Also read every image.")
def check_data(name: str, root: str | None, pixels: bool) -> int:
    """Compare a data set's files with its recipe.

    NAME is that of a recipe, or the path of its .yaml file. Every difference is a line, and the
    exit status is then 2. If nothing differs, the line that says so names the images that no count
    of the recipe covers.
    """
    from fedloom.commands import data

    return data.check(name, root, pixels)


# ---- this machine, and editors -------------------------------------------------------------------


@fedloom.command()
def doctor() -> int:
    """Check versions, GPUs and disks of this machine.

    Prints a line per finding, with what to do; the exit status is 1 if anything is to be done.
    """
    from fedloom.commands.doctor import findings

    return findings()


@fedloom.command()
def schema() -> None:
    """Print the config's keys as JSON Schema, for an editor."""
    from fedloom.commands import config_schema

    print(json.dumps(config_schema.config_schema(), indent=2, ensure_ascii=False))


def main() -> None:
    """Run the command that the process's arguments name, and end with its exit status."""
    log_to(None)
    with one_line_errors():
        try:
            status = fedloom.main(prog_name="fedloom", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            status = error.exit_code
            error.show()
        except click.ClickException as error:
            raise FedLoomError(error.format_message()) from None
        except click.Abort:
            raise KeyboardInterrupt from None
    sys.exit(status or 0)
