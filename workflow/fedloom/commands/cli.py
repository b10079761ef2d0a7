"""`fedloom <command>`: what people type; rules have `python -m fedloom.stages`.

What a command needs is imported when it runs, so that help and a mistyped name answer at once.
"""

import json
import sys
from typing import Any

import click

from fedloom.common.errors import FedLoomError
from fedloom.common.exits import one_line_errors
from fedloom.common.logs import log_to

HELP = {"help_option_names": ["-h", "--help"]}
PLENTY = click.IntRange(min=1)
method_name = click.option("--method", required=True, help="Name of a method.")


class Launching(click.Command):
    """A command that hands what stands behind `--` on to Snakemake."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`, and keep the others as the context's object."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.obj = args[cut + 1 :]
        return super().parse_args(ctx, args[:cut])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return what the first line of the help shows."""
        return [*super().collect_usage_pieces(ctx), "[-- SNAKEMAKE'S OPTIONS]"]


@click.group(context_settings=HELP)
@click.version_option(package_name="fedloom", message="%(prog)s %(version)s")
def fedloom() -> None:
    """Federated prompt tuning as one Snakemake workflow."""


# ---- studies -------------------------------------------------------------------------------------


def launching(function: Any) -> Any:
    """Add the arguments of `run` and `report`."""
    for decorate in (
        click.pass_obj,
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE ...",
                     help="Keys of the config, as study.rounds=4; `study.` may be left out."),
        click.option("-n", "--dry-run", is_flag=True, help="Show what would run."),
        click.option("--cores", type=PLENTY, help="Default: all of this machine."),
        click.argument("words", nargs=-1, metavar="[STUDY]"),
    ):  # fmt: skip
        function = decorate(function)
    return function


@fedloom.command(cls=Launching)
@launching
def run(options: list[str], **given: Any) -> int:
    """Run a study and print its first table.

    STUDY is a file, or a name that `fedloom studies` prints; default: config.yaml.
    """
    return _launch(options, **given)


@fedloom.command(cls=Launching)
@launching
def report(options: list[str], **given: Any) -> int:
    """Run a study, and write its tables and figures into one HTML file."""
    return _launch(options, **given, reporting=True)


@fedloom.command()
def watch() -> None:
    """Show how far the run in this folder is, from another terminal."""
    from fedloom.commands import display

    display.watch()


def _launch(
    options: list[str],
    words: tuple[str, ...],
    cores: int | None,
    dry_run: bool,
    settings: tuple[str, ...],
    reporting: bool = False,
) -> int:
    """Run Snakemake on a study; words with = are settings, as `--set` may have several."""
    from fedloom.commands.bundled_studies import file_of

    named = [word for word in words if "=" not in word]
    if len(named) > 1:
        raise FedLoomError(f"must be one study, got {' and '.join(named)}; run one at a time")
    files = [file_of(name) for name in named]
    changes = [*settings, *(word for word in words if "=" in word)]
    from fedloom.commands import launch

    return launch.run(files, changes, cores, dry_run, options, reporting)


@fedloom.command()
@click.argument("studies", nargs=-1, metavar="[STUDY]...")
@click.option("--rate", type=float, metavar="TERA", help="Of your GPU: 10^12 operations a second.")
def plan(studies: tuple[str, ...], rate: float | None) -> None:
    """Print what a study costs before it runs: jobs, hours, disk, bytes.

    STUDY is a file, or a name that `fedloom studies` prints; default: config.yaml.
    """
    if rate is not None and not 0 < rate < float("inf"):
        raise FedLoomError(f"--rate: must be a number above 0, got '{rate}'")
    from fedloom.commands.bundled_studies import file_of

    files = [file_of(study) for study in studies]
    from fedloom.commands.plan import text

    print(text(files, rate))


@fedloom.command()
def studies() -> None:
    """Print the studies that ship, with what each shows."""
    from fedloom.commands import describe

    print(describe.studies())


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
@click.option("--method", help="Name of a method; default: every one.")
@click.option("--threads", type=PLENTY, default=1, help="Of torch.")
def check(method: str | None, threads: int) -> None:
    """Hold a method to the contract: yours, or every one."""
    from fedloom.hooks import manifest

    known = manifest.discover()
    names = [method] if method else sorted(known.keys() | known.broken.keys())
    plugins = {name: manifest.find(name) for name in names[:1]}  # before torch, which takes seconds
    from fedloom.common.device import prepare_torch
    from fedloom.contract import driver

    prepare_torch(threads)
    for name in names:
        done = driver.check(plugins.get(name) or manifest.find(name), list(known.values()))
        click.echo(f"{name} keeps the contract ({done})", err=True)


@fedloom.command()
@method_name
@click.option("--backbone", required=True, help="A model of timm, or of open_clip.")
@click.option("--classes", type=PLENTY, required=True, help="Number of classes.")
@click.option("--options", type=json.loads, default="{}", help="The method's, as JSON.")
def communication(method: str, backbone: str, classes: int, options: dict[str, Any]) -> None:
    """Print the floats that a method sends one client in one round, by kind; needs no weights."""
    from fedloom.hooks import manifest

    manifest.find(method, kind="method")  # before torch, which takes seconds
    from fedloom.commands.downlink import downlink_floats

    counts = downlink_floats(method, backbone, classes, options)
    for name, count in [*sorted(counts.items()), ("total", sum(counts.values()))]:
        print(f"{name:<16}{count:>12,}")


@fedloom.command()
def datasets() -> None:
    """Print the recipes and sources of datasets and the schemes of partitions, with their keys."""
    from fedloom.commands import describe

    print(describe.datasets())


@fedloom.group()
def data() -> None:
    """List, download and check the data sets of the papers."""


recipe_name = click.argument("name")
root_folder = click.option("--root", help="Folder of its files; default: data/<name>.")


@data.command("list")
def list_recipes() -> None:
    """Print every recipe: its papers, its counts, how it is got, and whether it is there."""
    from fedloom.commands import data

    print(data.listing())


@data.command("get")
@recipe_name
@root_folder
def get_data(name: str, root: str | None) -> None:
    """Download a data set's files as its recipe says; what is there already is not fetched again.

    NAME is that of a recipe, or the path of its .yaml file. What no program can download is printed
    as steps to do by hand, and the exit status is then 2.
    """
    from fedloom.commands import data

    data.get(name, root)


@data.command("check")
@recipe_name
@root_folder
@click.option("--pixels", is_flag=True, help="Also read every image.")
def check_data(name: str, root: str | None, pixels: bool) -> int:
    """Compare a data set's files with its recipe: images of each split, domain and class.

    NAME is that of a recipe, or the path of its .yaml file. Every difference is a line, and the
    exit status is then 2. If nothing differs, the line that says so names the images that no count
    of the recipe covers.
    """
    from fedloom.commands import data

    return data.check(name, root, pixels)


# ---- this machine, and editors -------------------------------------------------------------------


@fedloom.command()
def doctor() -> int:
    """Check versions, GPUs and disks of this machine; the exit status is 1 if one is to be mended.

    Prints a line per finding, with what to do where something is wrong.
    """
    from fedloom.commands.doctor import findings

    return findings()


@fedloom.command()
def schema() -> None:
    """Print the keys of the config as JSON Schema, by which an editor completes and checks them."""
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
            raise FedLoomError(f"{error.format_message()} See `{_path(error)} --help`") from None
        except click.Abort:
            raise KeyboardInterrupt from None
    sys.exit(status or 0)


def _path(error: click.ClickException) -> str:
    """Return the words of the command that refuses its arguments."""
    context = getattr(error, "ctx", None)
    return context.command_path if context else "fedloom"
