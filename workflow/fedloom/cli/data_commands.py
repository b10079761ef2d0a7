"""Define the commands about data sets: `fedloom data list`, `get` and `check`."""

import click

from fedloom.cli.commands import GroupWithHeadings

ROOT_OPTION = click.Option(
    ["--root"], help="Folder of the files; default: the recipe's, mostly data/<name>."
)


@click.group(cls=GroupWithHeadings, short_help="Download and check the data sets of the papers.")
def data() -> None:
    """List, download and check the data sets of the papers."""


@data.command("list")
def list_recipes() -> None:
    """Print a line for every data set: papers, images, classes, licence, whether it is there."""
    from fedloom.cli.make import get_data

    print(get_data.list_recipes())


@data.command("get", params=[ROOT_OPTION])
@click.argument("name")
def get_data(name: str, root: str | None) -> None:
    """Download a data set; files that exist already are not downloaded again.

    NAME is the name of a recipe, or the path of its .yaml file. If no program
    can download some files, the steps to do by hand are printed.
    """
    from fedloom.cli.make import get_data

    get_data.download_data_set(name, root)


@data.command("check", params=[ROOT_OPTION])
@click.argument("name")
@click.option("--pixels", is_flag=True, help="Also read every image.")
def check_data(name: str, root: str | None, pixels: bool) -> int:
    """Compare a data set's files with its recipe, and print a line for each difference.

    NAME is the name of a recipe, or the path of its .yaml file.
    """
    from fedloom.cli.make import get_data

    return get_data.check_data_set(name, root, pixels)
