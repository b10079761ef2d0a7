"""`fedloom data <command>`: the data sets of the papers, and whether their files are right."""

from contextlib import suppress

from tabulate import tabulate

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder
from fedloom.config import recipes
from fedloom.config.recipes import Recipe
from fedloom.machine.install import resource
from fedloom.machine.process_log import progress

COUNTED = ("images", "train", "test", "classes")
HEADERS = ("name", "papers", "images", "classes", "got by", "there", "licence")


def listing() -> str:
    """Return a line per recipe: its papers, its counts, how it is got, and whether it is there."""
    rows = [_row(recipes.find(name)) for name in recipes.names()]
    return tabulate(rows, HEADERS, disable_numparse=True)


def _row(recipe: Recipe) -> list[str]:
    """Return the cells of a recipe's line."""
    counts = {key: f"{number:,}" for key, number in recipe.counts.plain.items() if key in COUNTED}
    return [
        recipe.name,
        ", ".join(recipe.papers),
        counts.get("images", f"{counts.get('train', '?')} + {counts.get('test', '?')}"),
        counts.get("classes", "?"),
        " + ".join(recipe.get.plain),
        "yes" if is_there(recipe) else "no",
        recipe.licence,
    ]


def is_there(recipe: Recipe, root: str | None = None) -> bool:
    """Return True if there are files below `root`, or the recipe's, and of all of its parts."""
    if parts := recipe.parts():
        roots = [f"{root}/{part.folder}" if root else None for _, part in parts]
        return all(is_there(part, each) for (_, part), each in zip(parts, roots, strict=True))
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
        return
    with suppress(FedLoomError):  # of files that are not there yet
        if recipe.counts.plain and check(name, root, pixels=False) == 0:
            return
    steps.append(f"See whether all is there: {then}")
    numbered = "\n".join(f"  {number}. {step}" for number, step in enumerate(steps, 1))
    raise FedLoomError(f"{recipe.name}: the rest is to be done by hand\n{numbered}")


def check(name: str, root: str | None, pixels: bool) -> int:
    """Print in what a data set's files differ from its recipe, and return 2 if they do."""
    from fedloom.data import expected_counts, sources
    from fedloom.data.images import unreadable
    from fedloom.data.preparation import prepared

    recipe = recipes.find(name)
    entry = {"recipe": name} | ({"root": root} if root else {})
    settings = recipes.dataset_entry(recipe.name, entry)
    ready = prepared(sources.read(settings.pop("source"), settings), settings)
    lines = expected_counts.differences(ready, recipe.counts.plain)
    if pixels and not settings.get("skip_unreadable"):
        with progress(len(ready.labels), "images") as bar:
            for item in ready.items():
                bar.update()
                lines += filter(None, [unreadable(item)])
    for line in lines:
        print(f"{recipe.name}: {line}")
    if lines:
        return 2
    print(
        f"{recipe.name}: {int((~ready.test).sum()):,} training and {int(ready.test.sum()):,} test "
        f"images of {len(expected_counts.trained_classes(ready)):,} classes; nothing differs from "
        "the counts that the recipe states"
    )
    return 0
