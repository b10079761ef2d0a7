"""Read recipes, which turn published data sets into datasets of the config.

A recipe is a file in `workflow/recipes`, or a file of the user's. It says where a data set comes
from, how its files are laid out and read, and how many images must come out. A study names it:
`datasets: {birds: {recipe: domainnet, root: /data/domainnet}}`. Jobs do not know recipes: planning
puts a recipe's keys into the dataset. This module imports no torch.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fedloom.common import schema
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import CONFIG, KeyPath
from fedloom.common.schema import Count, Distinct, Keys, Natural
from fedloom.config.datasets import DATA_FOLDER, Expected
from fedloom.config.kinds import KINDS, Entry, check_entry
from fedloom.config.reading import read
from fedloom.machine.install import ROOT, resource

RECIPES = ROOT / "workflow/recipes"
# keys that a dataset of several parts sets for all of them, and that no part may have
OF_ALL_PARTS = {"image_size", "resize", "grey_bits", "transparency", "skip_unreadable"}


def _below(path: str) -> str:
    if path.startswith("/") or {".", ".."} & {*path.split("/")}:
        raise ValueError(f"must be a path below the root, got {path!r}")
    return path


Below = Annotated[str, AfterValidator(_below)]


class Hub(Keys):
    """Files of a data set on Hugging Face's hub, which keep their names below the root."""

    repository: str = Field(pattern="^[^/]+/[^/]+$")
    """Name of the data set on the hub, as owner/name."""
    revision: str
    """Git commit hash of the data set's repository."""
    files: list[str] = Field(min_length=1)
    """Names of the files to download, or patterns with *."""


class Archive(Keys):
    """A file to download. Archives (.zip, .tar, .tgz and .tar.gz) are unpacked, others are kept."""

    url: str = Field(pattern="^https?://")
    """Address of the file. An address of plain http needs `sha256` or `md5`."""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 digest of the file, in hexadecimal."""
    md5: str | None = Field(None, pattern="^[0-9a-f]{32}$")
    """MD5 digest of the file, in hexadecimal, if no `sha256` is known."""
    into: Below | None = None
    """Folder below the root in which the file is put or unpacked. Default: the root."""
    name: Annotated[Below, Field(pattern="^[^/]+$")] | None = None
    """Name of the downloaded file. Default: the last part of the address."""
    unpacked_bytes: Count | None = None
    """Largest number of bytes that all files in the archive may have together. Default: 20 times
    the size of the archive, but at least 100 MiB."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.url.startswith("http:") and not (self.sha256 or self.md5):
            raise ValueError("url: comes by plain http, so state its sha256")
        return self


class Get(Keys):
    """How a data set's files come below the root. `manual` may stand beside another key."""

    torchvision: Literal[True] | None = None
    """True if torchvision downloads the files, and compares them with its checksums."""
    hub: Hub | None = None
    archives: Annotated[list[Archive], Field(min_length=1)] | None = None
    """Files to download from any address."""
    recipes: Annotated[list[str], Field(min_length=1)] | None = None
    """Names of the recipes of the data sets that this one is made of, or whose files it shares."""
    manual: Annotated[list[str], Field(min_length=1)] | None = None
    """Steps that a person must do. {root} stands for the root."""


class CountBounds(Keys):
    """Numbers of images."""

    images: Natural | None = None
    """Number of images in both splits."""
    train: Natural | None = None
    """Number of training images."""
    test: Natural | None = None
    """Number of test images."""


class SplitCounts(CountBounds):
    """Expected numbers of images of a class or of a domain."""

    at_least: CountBounds | None = None
    """Least numbers of images, if the publisher states only approximate numbers."""


class Counts(SplitCounts):
    """Expected numbers, as a paper or the publisher states them."""

    classes: Count | None = None
    """Number of classes with training images. If the data set has only test images: number of
    classes with images."""
    domains: Count | None = None
    """Number of domains."""
    each_class: SplitCounts | None = None
    """Numbers of images that hold for every class."""
    by_class: dict[str, SplitCounts] | None = None
    """Maps the name of a class to its numbers of images."""
    by_domain: dict[str, SplitCounts] | None = None
    """Maps the name of a domain to its numbers of images."""


class RecipeKeys(Keys):
    """The keys of a recipe's file, beside `source` and the keys of that source.

    In the keys of the source, {root} stands for the folder that the study names as `root`; by
    default, it is data/<name>. The same folder is the default of the source's own key `root`. A
    fact that nobody has published is left out.
    """

    title: str
    """Name of the data set, as papers write it."""
    papers: Distinct[str]
    """Papers that use the data set, by their folders in workflow/papers."""
    homepage: str | None = None
    """Address of the publisher's page."""
    licence: str
    """Licence as the publisher states it, or `not stated`, or `not established`."""
    citation: str
    """Authors, title, place and year of the publication."""
    notes: list[str] = Field([])
    """Sentences on what differs from a paper, and on what could not be established."""
    get: Get
    files_of: str | None = None
    """Name of the recipe whose files this one reads. Default: its own files, in data/<name>."""
    counts: Counts = Counts()


class Recipe(RecipeKeys):
    """A recipe's file, checked; `entry` is `source` and the keys of that source."""

    name: str
    file: Path
    entry: JsonDict

    @property
    def folder(self) -> str:
        """The folder of its files below DATA_FOLDER; recipes that read the same files share it."""
        return self.files_of or self.name

    @property
    def root(self) -> str:
        """The folder in which its files lie unless a study says otherwise."""
        return DATA_FOLDER if self.entry["source"] == "several" else f"{DATA_FOLDER}/{self.folder}"

    def size(self, first: int | None = None) -> Expected:
        """Return the numbers of images, classes and test images; None if the recipe states none.

        `first` is the key `first_per_domain` of the config's entry. If the data set has parts, a
        part of unknown size counts as 0 images.
        """
        counts = self.counts
        test = counts.test
        train = counts.train
        images = counts.images
        tests = [cell.test or 0 for cell in (counts.by_domain or {}).values()]
        if test is None and all(tests) and len(tests) == counts.domains:
            test = sum(tests)
        if first and counts.domains:
            train = first * counts.domains
            images = None
        if images is None and train and test:
            images = train + test
        if images is None:
            images = sum(_images_of_part(*part) for part in self.parts()) or None
        return Expected(images, counts.classes, test)

    def all_notes(self) -> tuple[str, ...]:
        """Return the notes of the recipe, and the notes of the recipes of its parts."""
        parts = [recipe for _, recipe in self.parts()]
        return (*self.notes, *(f"{part.title}: {note}" for part in parts for note in part.notes))

    def parts(self) -> "list[tuple[JsonDict, Recipe]]":
        """Return the recipes of its parts, each after the part's entry in the key `parts`."""
        parts = self.entry.get("parts", {}).values()
        return [(part, find_recipe(part["recipe"])) for part in parts if "recipe" in part]


def _images_of_part(part: JsonDict, recipe: Recipe) -> int:
    """Return the number of images of a data set's part, which has a recipe; 0 if unknown."""
    images, classes, _ = recipe.size()
    caps = [part.get(f"max_{half}_per_class", 0) for half in ("train", "test")]
    capped = sum(caps) * classes if classes and all(caps) else None
    return min((count for count in (images, capped) if count), default=0)


@cache
def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes that ship, in alphabetical order."""
    return tuple(sorted(file.stem for file in RECIPES.glob("*.yaml")))


def find_recipe(name: str) -> Recipe:
    """Return the recipe with a name, or in a .yaml file, after checking its keys.

    Raises:
        FedLoomError: there is no such recipe, or a key is wrong.
    """
    if name.endswith((".yaml", ".yml")):
        file = resource(name)
    else:
        check_known(name, recipe_names(), "a recipe must be a .yaml file or a known name, got")
        file = RECIPES / f"{name}.yaml"
    content = read(file)
    own = {key: content.pop(key) for key in RecipeKeys.model_fields if key in content}
    beside = {"name": file.stem, "file": file, "entry": content}
    recipe = schema.validate(Recipe, own | beside, KeyPath(str(file)))
    for key, value in {"source": content.get("source"), "get": recipe.get.plain}.items():
        if not value:
            raise KeyPath(str(file), (key,)).error("missing; it has no default, so set it")
    return recipe


def dataset_entry(label: str, entry: JsonDict, parent_root: str | None = None) -> JsonDict:
    """Return a checked entry of the config's `datasets`, with recipe and defaults filled in."""
    source, keys = check_dataset(label, entry, parent_root)
    return {"source": source} | keys.plain


def check_dataset(label: str, entry: JsonDict, parent_root: str | None = None) -> Entry:
    """Fill in the recipe of an entry of the config's `datasets`, and check the entry and its parts.

    Args:
        label: the label of the entry; for a part, with the keys that lead to the part.
        entry: the entry as it was written.
        parent_root: for a part, the folder of the whole, which holds the part's folder by default.

    Raises:
        InvalidKeyError: the recipe or a key is wrong.
    """
    where = CONFIG / "datasets" / label
    if "recipe" in entry:
        try:
            entry = _expanded(entry, parent_root)
        except FedLoomError as error:
            raise (where / "recipe").error(str(error)) from None
    source, keys = check_entry("datasets", label, entry)

    # a data set of several has parts with recipes of their own
    parts = getattr(keys, "parts", None)
    if parts is None:
        return Entry(source, keys)
    resolved = {}
    for name, part in parts.items():
        for key in sorted(OF_ALL_PARTS & part.keys()):
            raise (where / "parts" / name / key).error(
                f"must be the same for all parts; set {where / key}"
            )
        # a part that has parts itself must state its image_size
        if part.get("source") == source:
            part = part | {"image_size": keys.image_size}
        resolved[name] = dataset_entry(f"{label}.parts.{name}", part, keys.root)
    return Entry(source, keys.model_copy(update={"parts": resolved, "root": None}))


def _expanded(entry: JsonDict, parent_root: str | None) -> JsonDict:
    """Return an entry with the keys of its recipe; the entry's own keys override these."""
    if "source" in entry:
        raise FedLoomError("a recipe states its `source`; leave out either `source` or `recipe`")
    if not isinstance(entry["recipe"], str):
        raise FedLoomError(f"must be the name of a recipe, got {entry['recipe']!r}")
    recipe = find_recipe(entry["recipe"])
    root = entry.get(
        "root", recipe.root if parent_root is None else f"{parent_root}/{recipe.folder}"
    )
    given = {key: value for key, value in entry.items() if key not in ("recipe", "root")}
    own = {"root": root} | {key: _filled_in(value, root) for key, value in recipe.entry.items()}
    source = KINDS["datasets"].get(recipe.entry["source"])
    if source is None or "root" not in source.model_fields:
        del own["root"]
    return own | given


def _filled_in(value: JsonValue, root: str) -> JsonValue:
    """Return a value of a recipe with `root` in place of {root}, in lists and mappings too."""
    if isinstance(value, str):
        return value.replace("{root}", root)
    if isinstance(value, list):
        return [_filled_in(item, root) for item in value]
    if isinstance(value, dict):
        return {key: _filled_in(item, root) for key, item in value.items()}
    return value
