"""Recipes: how published data sets become datasets of the config. Imports no torch.

A recipe is a file of `workflow/datasets`, or of a user's. It says where a data set comes from, how
its files are laid out and read, and how many images must come out. A study names it: `datasets:
{birds: {recipe: domainnet, root: /data/domainnet}}`. Jobs do not know recipes.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedloom.common import schema
from fedloom.common.checkout import ROOT, resource
from fedloom.common.errors import FedLoomError, check_known, suggestion
from fedloom.common.schema import Count, Distinct, Keys, Natural, SchemaError
from fedloom.config.datasets import DATA, Expected
from fedloom.config.kinds import Entry, Kinds, check_entry, key_path
from fedloom.config.published import paper_names
from fedloom.config.reading import CONFIG, read

FOLDER = ROOT / "workflow/datasets"
# keys of a dataset of several that its parts cannot have
OF_ALL_PARTS = {"image_size", "resize", "skip_unreadable"}


class Hub(Keys):
    """Files of a data set on Hugging Face's hub, put below the root by their names."""

    repository: str = Field(pattern="^[^/]+/[^/]+$")
    revision: str
    """A commit."""
    files: list[str] = Field(min_length=1)
    """Names or patterns."""


class Archive(Keys):
    """A file to download; .zip, .tar, .tgz and .tar.gz are unpacked, others kept."""

    url: str = Field(pattern="^https?://")
    """Plain http needs a digest."""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    md5: str | None = Field(None, pattern="^[0-9a-f]{32}$")
    size: Count | None = None
    """In bytes."""
    into: str | None = None
    """Folder below the root; default: the root."""
    name: str | None = Field(None, pattern="^[^/]+$")
    """Of the file; default: the end of the address."""

    @model_validator(mode="after")
    def _below_the_root(self) -> Self:
        if self.into is not None and (self.into.startswith("/") or ".." in self.into.split("/")):
            raise ValueError(f"into: must be a folder below the root, got {self.into!r}")
        if self.name in (".", ".."):
            raise ValueError(f"name: must be the name of a file, got {self.name!r}")
        return self


class Get(Keys):
    """How a data set's files come below the root; `manual` may complete another key."""

    torchvision: Literal[True] | None = None
    """Torchvision downloads it, and has its checksums."""
    hub: Hub | None = None
    archives: Annotated[list[Archive], Field(min_length=1)] | None = None
    recipes: Annotated[list[str], Field(min_length=1)] | None = None
    """It is made of these data sets, each with its root, or of their files (`files_of`)."""
    manual: Annotated[list[str], Field(min_length=1)] | None = None
    """Steps for a person; {root} stands for the root."""


class Least(Keys):
    """No fewer than these, where a source states a count roughly."""

    images: Count | None = None
    train: Count | None = None
    test: Count | None = None


class Cell(Keys):
    """The counts of a class or of a domain."""

    images: Natural | None = None
    train: Natural | None = None
    test: Natural | None = None
    at_least: Least | None = None


class Counts(Keys):
    """What comes out, as a paper or the publisher states it."""

    images: Count | None = None
    """Of both splits."""
    train: Count | None = None
    test: Count | None = None
    classes: Count | None = None
    """With training images; of a data set to test on alone, with images."""
    domains: Count | None = None
    each_class: Cell | None = None
    """The same for every class."""
    by_class: dict[str, Cell] | None = None
    """By the name of the class."""
    by_domain: dict[str, Cell] | None = None
    """By the name of the domain."""
    at_least: Least | None = None


class RecipeKeys(Keys):
    """The keys of a recipe's file, beside `source` and the keys of that source.

    {root} in the latter stands for the folder that the study names (data/<name> by default), which
    is also the source's `root` where the recipe does not say another. A fact that nobody has
    published is left out.
    """

    title: str
    """The data set's name as papers write it."""
    papers: Distinct[str]
    """The papers that use it, as in workflow/published."""
    homepage: str | None = None
    """Address of its publisher."""
    licence: str
    """As the publisher states it, or: not stated."""
    citation: str
    """Authors, title, place and year of publication."""
    notes: list[str] = Field([])
    """What differs from a paper, and what could not be established; a sentence each."""
    get: Get
    files_of: str | None = None
    """The recipe whose files it is made of; default: its own, in data/<name>."""
    counts: Counts = Counts()

    @field_validator("papers")
    @classmethod
    def _published(cls, papers: list[str]) -> list[str]:
        known = paper_names()
        for paper in papers:
            if paper not in known:
                raise ValueError(f"no paper '{paper}'; {suggestion(paper, known)}")
        return papers


class Recipe(RecipeKeys):
    """A recipe's file, checked; `entry` is `source` and the keys of that source."""

    name: str
    file: Path
    entry: dict[str, Any]

    @property
    def root(self) -> str:
        """The folder in which its files lie unless a study says otherwise."""
        several = self.entry["source"] == "several"
        return DATA if several else f"{DATA}/{folder_of(self)}"

    def size(self, entry: dict[str, Any] | None = None) -> Expected:
        """Return the numbers of images and of classes, None where no count states them.

        The images of several data sets are those of the parts that state theirs. Of the config's
        `entry`, `first_per_domain` counts.
        """
        counts, first = self.counts.plain, (entry or {}).get("first_per_domain")
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
        """Return the recipes that it is made of, each after its entry in `parts`."""
        parts = self.entry.get("parts", {}).values()
        return [(part, find(part["recipe"])) for part in parts if "recipe" in part]


def _images_of_part(part: dict[str, Any], recipe: Recipe) -> int:
    """Return the number of images of a part of several; 0 if unknown."""
    images, classes, _ = recipe.size()
    caps = [part.get(f"max_{half}_per_class", 0) for half in ("train", "test")]
    capped = sum(caps) * classes if classes and all(caps) else None
    return min((count for count in (images, capped) if count), default=0)


@cache
def names() -> tuple[str, ...]:
    """Return the names of the recipes that ship, in alphabetical order."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


def find(name: str) -> Recipe:
    """Return the recipe of this name, or of a path to a .yaml file."""
    if name.endswith((".yaml", ".yml")):
        return _load(resource(name))
    check_known(name, names(), "recipe: must be a .yaml file or a known recipe, got")
    return _load(FOLDER / f"{name}.yaml")


def folder_of(recipe: Recipe) -> str:
    """Return the folder of its files, which all recipes of one data set's files share."""
    return recipe.files_of or recipe.name


def _load(file: Path) -> Recipe:
    """Read a recipe's file and check its keys, without those of its source."""
    content = read(file)
    own = {key: content.pop(key) for key in RecipeKeys.model_fields if key in content}
    beside = {"name": file.stem, "file": file, "entry": content}
    recipe = schema.checked(Recipe, own | beside, f"{file}: ")
    if "source" not in content:
        raise FedLoomError(f"{file}: source: missing; it has no default, so set it")
    if not recipe.get.model_fields_set:
        raise FedLoomError(f"{file}: get: must say how its files are got, got nothing")
    return recipe


def check_dataset(label: str, entry: dict[str, Any], kinds: Kinds) -> Entry:
    """Return an entry of the config's `datasets`, its recipe resolved, checked with its parts."""
    where, path = f"{CONFIG} datasets.{label}", key_path("datasets", label)
    if "recipe" in entry:
        try:
            entry = _expanded(entry, kinds)
        except FedLoomError as error:
            raise SchemaError(f"{where}: {error}", [*path, "recipe"]) from None
    kind, keys = check_entry("datasets", label, entry, kinds)
    parts = getattr(keys, "parts", None)
    if parts is None:
        return Entry(kind, keys)
    resolved = {}
    for name, part in parts.items():
        at = f"{where}.parts.{name}"
        for key in sorted(OF_ALL_PARTS & part.keys()):
            line = f"{at}.{key}: must be the same for all parts; set {where}.{key}"
            raise SchemaError(line, [*path, "parts", name, key])
        if part.get("source") == kind:  # whose image_size is required
            part = part | {"image_size": keys.image_size}
        if isinstance(part.get("recipe"), str):
            try:
                part = {"root": f"{keys.root}/{folder_of(find(part['recipe']))}"} | part
            except FedLoomError as error:
                raise SchemaError(f"{at}: {error}", [*path, "parts", name, "recipe"]) from None
        inner = check_dataset(f"{label}.parts.{name}", part, kinds)
        resolved[name] = {"source": inner.kind} | inner.keys.plain
    return Entry(kind, keys.model_copy(update={"parts": resolved, "root": None}))


def _expanded(entry: dict[str, Any], kinds: Kinds) -> dict[str, Any]:
    """Return an entry that has a `recipe` with the recipe's keys, which the entry's override."""
    if "source" in entry:
        raise FedLoomError("recipe and source; a recipe brings its source, so leave one out")
    if not isinstance(entry["recipe"], str):
        raise FedLoomError(f"recipe: must be the name of a recipe, got {entry['recipe']!r}")
    recipe = find(entry["recipe"])
    root = entry.get("root", recipe.root)
    given = {key: value for key, value in entry.items() if key not in ("recipe", "root")}
    own = {"root": root} | {key: _filled_in(value, root) for key, value in recipe.entry.items()}
    source = kinds.get(recipe.entry["source"])
    if source is None or "root" not in source.model_fields:
        del own["root"]
    return own | given


def _filled_in(value: Any, root: str) -> Any:
    """Return a value of a recipe with `root` in place of {root}, in lists and mappings too."""
    if isinstance(value, str):
        return value.replace("{root}", root)
    if isinstance(value, list):
        return [_filled_in(item, root) for item in value]
    if isinstance(value, dict):
        return {key: _filled_in(item, root) for key, item in value.items()}
    return value
