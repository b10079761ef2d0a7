"""Recipes: how published data sets become datasets of the config. Imports no torch.

A recipe is a file of `workflow/datasets`, or of a user's. It says where a data set comes from, what
its files look like, what is made of them and how many images must come out. A study names it:
`datasets: {birds: {recipe: domainnet, root: /data/domainnet}}`. It is resolved while the plan is
read, so that jobs know sources and their keys, and no recipes.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedloom.common import schema
from fedloom.common.checkout import ROOT, resource
from fedloom.common.errors import FedLoomError
from fedloom.config.reading import read
from fedloom.config.settings import Expected

FOLDER = ROOT / "workflow/datasets"
DATA = "data"  # the folder of the checkout below which data sets lie by default


@dataclass(frozen=True)
class Recipe:
    """A recipe's file, checked.

    Attributes:
        papers: those that use the data set, as in workflow/published.
        notes: what differs from a paper, and what could not be established.
        get: how its files come below the root, see workflow/schemas/recipe.schema.yaml.
        files_of: the recipe whose files it is made of; None: its own.
        counts: images, classes and domains that must come out.
        entry: `source` and the keys of that source, as in the config's `datasets`.
    """

    name: str
    file: Path
    title: str
    papers: tuple[str, ...]
    homepage: str | None
    licence: str
    citation: str
    notes: tuple[str, ...]
    get: dict[str, Any]
    files_of: str | None
    counts: dict[str, Any]
    entry: dict[str, Any]

    @property
    def root(self) -> str:
        """The folder in which its files lie unless a study says otherwise."""
        several = self.entry["source"] == "several"
        return DATA if several else f"{DATA}/{folder_of(self)}"

    def size(self, entry: dict[str, Any] | None = None) -> Expected:
        """Return the numbers of images and of classes, None where no count states them.

        The images of several data sets are those of the parts that state theirs.

        Args:
            entry: of the config, whose `first_per_domain` counts.
        """
        counts, first = self.counts, (entry or {}).get("first_per_domain")
        test, train, images = (counts.get(key) for key in ("test", "train", "images"))
        tests = [cell.get("test", 0) for cell in counts.get("by_domain", {}).values()]
        if test is None and all(tests) and len(tests) == counts.get("domains"):
            test = sum(tests)
        if first and "domains" in counts:
            train, images = first * counts["domains"], None
        if images is None and train and test:
            images = train + test
        if images is None:
            images = sum(_images_of_part(*part) for part in self.parts()) or None
        return Expected(images, counts.get("classes"), test)

    def all_notes(self) -> tuple[str, ...]:
        """Return its notes, and those of the recipes that it is made of."""
        parts = [recipe for _, recipe in self.parts()]
        return (*self.notes, *(f"{part.title}: {note}" for part in parts for note in part.notes))

    def parts(self) -> "list[tuple[dict[str, Any], Recipe]]":
        """Return the recipes that it is made of, each after its entry in `parts`.

        A part with a source of its own is of no recipe and is left out.
        """
        parts = self.entry.get("parts", {}).values()
        return [(part, find(part["recipe"])) for part in parts if "recipe" in part]


def _images_of_part(part: dict[str, Any], recipe: Recipe) -> int:
    """Return the number of images of a part of several, or 0 if its recipe does not state it."""
    images, classes, _ = recipe.size()
    caps = [part.get(f"max_{half}_per_class", 0) for half in ("train", "test")]
    capped = sum(caps) * classes if classes and all(caps) else None
    return min((count for count in (images, capped) if count), default=0)


@cache
def names() -> tuple[str, ...]:
    """Return the names of the recipes that ship, in alphabetical order."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


def find(name: str) -> Recipe:
    """Return the recipe of that name, or of that file of the user's.

    Args:
        name: of a file in workflow/datasets without its suffix, or a path that ends with .yaml.

    Raises:
        FedLoomError: there is none; suggests the nearest. Or its file is broken.
    """
    if name.endswith((".yaml", ".yml")):
        return _load(resource(name))
    if name not in names():
        hint = schema.suggestion(name, names())
        raise FedLoomError(f"no recipe '{name}'; {hint} (or the path of a .yaml file)")
    return _load(FOLDER / f"{name}.yaml")


def folder_of(recipe: Recipe) -> str:
    """Return the name of the folder of its files, below the root of a data set that it is part of.

    It is the last part of the recipe's own root: recipes of one data set's files share a folder.
    """
    return recipe.files_of or recipe.name


def _load(file: Path) -> Recipe:
    """Read a recipe's file and check it, but for the keys of its source."""
    root = schema.load("recipe")
    content = read(file)
    schema.check(content, root, f"{file}: ", root)
    content = schema.filled(content, root, root)
    own = root["properties"]
    return Recipe(
        name=file.stem,
        file=file,
        title=content["title"],
        papers=tuple(content["papers"]),
        homepage=content.get("homepage"),
        licence=content["licence"],
        citation=content["citation"],
        notes=tuple(content["notes"]),
        get=content["get"],
        files_of=content.get("files_of"),
        counts=content["counts"],
        entry={key: value for key, value in content.items() if key not in own},
    )


def expanded(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the config's `datasets` with the keys of its recipe in the recipe's place.

    Keys of the entry go before those of the recipe. `{root}` in the recipe's stands for the entry's
    root, data/<recipe> by default.

    Args:
        entry: one that has a `recipe`.

    Raises:
        FedLoomError: there is no such recipe, or the entry has a source as well.
    """
    if "source" in entry:
        raise FedLoomError("recipe and source; a recipe has a source of its own, so leave one out")
    if not isinstance(entry["recipe"], str):
        raise FedLoomError(f"recipe: {entry['recipe']!r} is no name of a recipe")
    recipe = find(entry["recipe"])
    root = entry.get("root", recipe.root)
    given = {key: value for key, value in entry.items() if key not in ("recipe", "root")}
    own = {"root": root} | {key: _filled_in(value, root) for key, value in recipe.entry.items()}
    if not _takes_root(recipe.entry["source"]):
        del own["root"]
    return own | given


def _takes_root(source: str) -> bool:
    """Return True if a source of FedLoom's own has the key `root`."""
    known = schema.load("config")["$defs"]["dataset"]
    return "root" in known.get(source, {}).get("properties", {})


def _filled_in(value: Any, root: str) -> Any:
    """Return a value of a recipe with `root` in place of {root}, in lists and mappings too."""
    if isinstance(value, str):
        return value.replace("{root}", root)
    if isinstance(value, list):
        return [_filled_in(item, root) for item in value]
    if isinstance(value, dict):
        return {key: _filled_in(item, root) for key, item in value.items()}
    return value
