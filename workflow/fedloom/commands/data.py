"""`fedloom data <command>`: the data sets of the papers, and whether their files are right."""

from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from fedloom.common.checkout import resource
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder
from fedloom.common.logs import progress
from fedloom.config import recipes
from fedloom.config.recipes import Recipe

if TYPE_CHECKING:
    from fedloom.data.image_list import Prepared

COUNTED = ("images", "train", "test", "classes")
HEADERS = ("name", "papers", "images", "classes", "got by", "there", "licence")


def listing() -> str:
    """Return a line per recipe: its papers, its counts, how it is got, and whether it is there."""
    rows = [_row(recipes.find(name)) for name in recipes.names()]
    return tabulate(rows, HEADERS, disable_numparse=True)


def _row(recipe: Recipe) -> list[str]:
    """Return the cells of a recipe's line."""
    counts = {key: f"{number:,}" for key, number in recipe.counts.plain.items() if key in COUNTED}
    halves = [counts.get(key, "?") for key in ("train", "test")]
    either = "?" if halves == ["?", "?"] else " + ".join(halves)
    return [
        recipe.name,
        ", ".join(recipe.papers),
        counts.get("images", either),
        counts.get("classes", "?"),
        " + ".join(recipe.get.plain),
        "yes" if is_there(recipe) else "no",
        recipe.licence,
    ]


def is_there(recipe: Recipe, root: str | None = None) -> bool:
    """Return True if there are files below `root`, or the recipe's, and of all of its parts."""
    if recipe.parts():
        return all(
            is_there(part, f"{root}/{recipes.folder_of(part)}" if root else None)
            for _, part in recipe.parts()
        )
    folder = resource(root or recipe.root)
    return is_folder(folder) and any(not p.name.startswith(".") for p in folder.iterdir())


def get(name: str, root: str | None) -> None:
    """Download a data set's files as its recipe says; steps to do by hand are an error."""
    from fedloom.data import download

    recipe = recipes.find(name)
    steps = download.get(recipe, root)
    then = f"fedloom data check {name}" + (f" --root {root}" if root else "")
    if not steps:
        print(f"{recipe.name}: got; now see whether it is right: {then}")
    elif _is_right(recipe, name, root):
        print(f"{recipe.name}: all is there, and as the recipe says")
    else:
        steps.append(f"See whether all is there: {then}")
        numbered = "\n".join(f"  {number}. {step}" for number, step in enumerate(steps, 1))
        raise FedLoomError(f"{recipe.name}: the rest is to be done by hand\n{numbered}")


def _is_right(recipe: Recipe, name: str, root: str | None) -> bool:
    """Return True if all files are there: each split was compared, and nothing differs."""
    from fedloom.data import expected_counts

    try:
        ready, _ = _listed(recipe, name, root)
    except FedLoomError:
        return False
    lines = (expected_counts.uncompared, expected_counts.differences)
    return not any(of(ready, recipe.counts.plain) for of in lines)


def _listed(recipe: Recipe, name: str, root: str | None) -> tuple["Prepared", dict[str, Any]]:
    """Return the images that a recipe makes of its files, and the settings of its source."""
    from fedloom.data import sources
    from fedloom.data.entries import dataset_entry
    from fedloom.data.preparation import prepared

    given = {"recipe": name} | ({"root": root} if root else {})
    settings = dataset_entry(recipe.name, given)
    return prepared(sources.read(settings.pop("source"), settings), settings), settings


def check(name: str, root: str | None, pixels: bool) -> int:
    """Print in what a data set's files differ from its recipe, and return 2 if they do."""
    from fedloom.data import expected_counts
    from fedloom.data.images import unreadable

    recipe = recipes.find(name)
    ready, settings = _listed(recipe, name, root)
    lines = expected_counts.differences(ready, recipe.counts.plain)
    if pixels:
        with progress(len(ready.labels), "images") as bar:
            for item in ready.items():
                bar.update()
                reason = unreadable(item)
                if reason and not settings.get("skip_unreadable"):
                    lines.append(reason)
    for line in lines:
        print(f"{recipe.name}: {line}")
    if lines:
        return 2
    uncompared = expected_counts.uncompared(ready, recipe.counts.plain)
    print(
        f"{recipe.name}: {int((~ready.test).sum()):,} training and {int(ready.test.sum()):,} test "
        f"images of {len(expected_counts.trained_classes(ready)):,} classes",
        "nothing differs from the recipe",
        *(f"{images}: not compared" for images in uncompared),
        sep="; ",
    )
    return 0
