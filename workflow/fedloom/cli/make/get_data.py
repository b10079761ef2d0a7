"""`fedloom data <command>`: list, download and check the data sets of the papers."""

from contextlib import suppress

from tabulate import tabulate

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder
from fedloom.config import recipes
from fedloom.config.recipes import Recipe
from fedloom.machine.install import resource
from fedloom.machine.process_log import progress

COUNTED = ("images", "train", "test", "classes")
HEADERS = ("name", "papers", "images (train + test)", "classes", "obtained by", "there", "licence")


def list_recipes() -> str:
    """Return a line per recipe: papers, counts, how its files are got, and if they are there."""
    rows = [_row(recipes.find_recipe(name)) for name in recipes.recipe_names()]
    return tabulate(rows, HEADERS, disable_numparse=True)


def _row(recipe: Recipe) -> list[str]:
    """Return the cells of a recipe's line."""
    # a recipe states the number of all images, or those of training and test images
    counts = {key: f"{number:,}" for key, number in recipe.counts.plain.items() if key in COUNTED}
    parts = f"{counts.get('train', '?')} + {counts.get('test', '?')}"
    images = counts.get("images", parts)

    there = "no"
    if is_there(recipe):
        there = "yes"

    return [
        recipe.name,
        ", ".join(recipe.papers),
        images,
        counts.get("classes", "?"),
        " + ".join(recipe.get.plain),
        there,
        recipe.licence,
    ]


def is_there(recipe: Recipe, root: str | None = None) -> bool:
    """Return True if a recipe's files are there: some file exists in `root`.

    The default of `root` is the recipe's own folder. If the data set has parts, files of all parts
    must be there.
    """
    # check the folder of each part
    parts = recipe.parts()
    if parts:
        for _, part in parts:
            root_of_part = None
            if root:
                root_of_part = f"{root}/{part.folder}"
            if not is_there(part, root_of_part):
                return False
        return True

    folder = resource(root or recipe.root)
    if not is_folder(folder):
        return False
    return any(not path.name.startswith(".") for path in folder.iterdir())


def download_data_set(name: str, root: str | None) -> None:
    """Download a data set's files as its recipe says.

    Raises:
        FedLoomError: some steps must be done by hand; the error lists them.
    """
    from fedloom.data import download

    recipe = recipes.find_recipe(name)
    steps = download.download_recipe(recipe, root)

    # the command by which the user may verify the files
    check_command = f"fedloom data check {name}"
    if root:
        check_command += f" --root {root}"
    if not steps:
        print(f"{recipe.name}: downloaded; verify it with {check_command}")
        return

    # The user may have done the steps already; then nothing is left to do. If files are missing,
    # the check raises an error, which is ignored here.
    with suppress(FedLoomError):
        if recipe.counts.plain and check_data_set(name, root, pixels=False) == 0:
            return

    steps.append(f"Verify the files with {check_command}")
    numbered = "\n".join(f"  {number}. {step}" for number, step in enumerate(steps, 1))
    raise FedLoomError(f"{recipe.name}: the remaining steps must be done by hand\n{numbered}")


def check_data_set(name: str, root: str | None, pixels: bool) -> int:
    """Print how a data set's files differ from its recipe; return 2 if they differ, else 0.

    With `pixels`, also read every image, and print which cannot be read.
    """
    from fedloom.data import expected_counts, sources
    from fedloom.data.images import unreadable
    from fedloom.data.preparation import prepare

    # list the images as a job of the rule `dataset` does
    recipe = recipes.find_recipe(name)
    entry = {"recipe": name}
    if root:
        entry["root"] = root
    settings = recipes.dataset_entry(recipe.name, entry)
    ready = prepare(sources.read(settings.pop("source"), settings), settings)
    lines = expected_counts.differences_from_recipe(ready, recipe.counts.plain)

    # find images that cannot be read, unless a job would leave them out
    if pixels and not settings.get("skip_unreadable"):
        with progress(len(ready.labels), "images") as bar:
            for item in ready.items():
                bar.update()
                problem = unreadable(item)
                if problem:
                    lines.append(problem)

    for line in lines:
        print(f"{recipe.name}: {line}")
    if lines:
        return 2

    # the numbers that a study of this data set would have
    training = int((~ready.test).sum())
    test = int(ready.test.sum())
    classes = len(expected_counts.trained_classes(ready))
    print(
        f"{recipe.name}: {training:,} training and {test:,} test images of {classes:,} classes; "
        "nothing differs from the counts that the recipe states"
    )
    return 0
