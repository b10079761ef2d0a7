"""Put made-up images in the place of a study's data sets, with their classes and domains."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG, KeyPath
from fedloom.config.datasets import listing
from fedloom.config.recipes import Recipe, find_recipe
from fedloom.config.settings import Dataset

# Sources that need no file, and are small, stay, with at most these images of a class. A data set
# that is divided by domains has more for each: they are drawn at random from all of its domains.
EMBEDDED_CAPS = {"max_train_per_class": 2, "max_test_per_class": 1}
EMBEDDED_CAPS_OF_DOMAIN = {"max_train_per_class": 8, "max_test_per_class": 4}
# the number of training images for each test image
TRAIN_PER_TEST = 3
# the fewest and the most training images, and test images, of a class in a domain
TRAIN_BOUNDS = (1, 64)
TEST_BOUNDS = (1, 16)
# the most domains; the first ones of a data set with more, such as its users, stay
MOST_DOMAINS = 24
# the number of domains of a data set that is divided by domains, if nothing states it
UNKNOWN_DOMAINS = 4
# a data set with more domains than this has few of the classes in each of them
FEW_DOMAINS = 12


class Shape(NamedTuple):
    """The classes and domains that made-up images take over from a data set."""

    # names of the classes, in the order of their numbers
    classes: list[str]
    # names of the domains; none if all images are of one domain
    domains: list[str]
    # all images are test images
    only_tests: bool = False
    # test images have domains, too
    test_domains: bool = True


def shrink_dataset(
    label: str,
    written: JsonDict,
    dataset: Dataset,
    names: Sequence[str] | None,
    needed_domains: Sequence[str] | None,
    side: int,
    images: int,
) -> JsonDict:
    """Return an entry of the config's `datasets` for made-up images in the place of a data set.

    Args:
        label: the label of the data set.
        written: its entry as the study wrote it.
        dataset: its entry with all keys.
        names: names of its classes that are known from elsewhere.
        needed_domains: domains that partitions name; None if none divides it by domains.
        side: the side of the images in pixels.
        images: about the number of training images; there are more if there are many classes.

    Raises:
        InvalidKeyError: the number of its classes is unknown.
    """
    recipe = _recipe_of(written)

    if "parts" in dataset.settings:
        return _shrink_parts(label, _written_parts(written, recipe), dataset, side, images)

    # images that come with FedLoom or with a package stay, but fewer of them
    if recipe is None and not _reads_files(dataset.settings, dataset.listing):
        domains = 1
        if needed_domains is not None:
            domains = len(dataset.settings.get("styles", ())) or UNKNOWN_DOMAINS
        return _capped(written, domains)

    # domains that only the files would name get made-up names
    shape = _shape(CONFIG / "datasets" / label, dataset.settings, recipe, names)
    if needed_domains is not None and (recipe is None or not {*needed_domains} <= {*shape.domains}):
        count = max(len(shape.domains), len(needed_domains) + 1, UNKNOWN_DOMAINS)
        made_up = [f"domain {number}" for number in range(1, count + 1)]
        shape = shape._replace(domains=[*needed_domains, *made_up][:count])
    return _synthetic(shape, dataset.settings, side, images)


def _shrink_parts(
    label: str, written: dict[str, JsonDict], dataset: Dataset, side: int, images: int
) -> JsonDict:
    """Return an entry for a data set of several: each part has its own classes, and is a domain.

    `written` holds the parts as they were written; `shrink_dataset` explains the other arguments.
    """
    shrunk = {}
    for name, part in written.items():
        settings = dataset.settings["parts"][name]
        recipe = _recipe_of(part)
        if recipe is None and not _reads_files(settings, listing(settings)):
            shrunk[name] = _capped(part, domains=1)
            continue
        where = CONFIG / "datasets" / label / "parts" / name
        shape = _shape(where, settings, recipe, None)
        shrunk[name] = _synthetic(shape, settings, side, images / len(written))
    return {"source": "several", "parts": shrunk, "image_size": side}


def _reads_files(settings: JsonDict, files: JsonDict | None) -> bool:
    """Return True if a source reads the user's files, or downloads files."""
    return files is not None or bool(settings.get("download"))


def _capped(written: JsonDict, domains: int) -> JsonDict:
    """Return an entry, as it was written, with fewer images, of which each domain has some.

    `domains` is 1 for a data set that is not divided by domains.
    """
    most = EMBEDDED_CAPS
    if domains > 1:
        most = {key: number * domains for key, number in EMBEDDED_CAPS_OF_DOMAIN.items()}
    caps = {}
    for key, number in most.items():
        caps[key] = min(number, written.get(key, number))
    return written | caps


def _written_parts(written: JsonDict, recipe: Recipe | None) -> dict[str, JsonDict]:
    """Return the parts of a data set of several, as the study or its recipe writes them."""
    if "parts" in written or recipe is None:
        return written["parts"]
    return recipe.entry["parts"]


def _recipe_of(entry: JsonDict) -> Recipe | None:
    """Return the recipe that an entry names; None if it names none."""
    if "recipe" not in entry:
        return None
    return find_recipe(entry["recipe"])


def _shape(
    where: KeyPath, settings: JsonDict, recipe: Recipe | None, names: Sequence[str] | None
) -> Shape:
    """Return the classes and domains of a data set, as its keys and its recipe state them.

    Raises:
        InvalidKeyError: neither states the classes; the error is about the entry at `where`.
    """
    known = _class_names(settings, recipe, names)
    if known is None:
        raise where.error(
            "the classes of the data set must be known for a smoke run, got neither a recipe nor "
            "their names; set keep_classes to the names of all classes"
        )
    only_tests = settings.get("test_fraction") == 1
    if recipe is None:
        return Shape(known, [], only_tests)

    # the domains, by name if the recipe has all of their names
    counts = recipe.counts
    domains = [*(counts.by_domain or {})]
    if len(domains) != (counts.domains or 0):
        domains = [f"domain {number}" for number in range(1, (counts.domains or 0) + 1)]
    test_domains = "domain_column" not in settings or "test" not in settings
    return Shape(known, domains[:MOST_DOMAINS], only_tests, test_domains)


def _class_names(
    settings: JsonDict, recipe: Recipe | None, names: Sequence[str] | None
) -> list[str] | None:
    """Return the names of the classes of a data set; made-up ones if only their number is known.

    Return None if the number is unknown, too.
    """
    for key in ("keep_classes", "class_names"):
        if key in settings:
            return list(settings[key])
    if recipe is None or recipe.counts.classes is None:
        return None
    count = recipe.counts.classes
    for known in (recipe.counts.by_class, names):
        if known is not None and len(known) == count:
            return list(known)
    return [f"class {number}" for number in range(1, count + 1)]


def _synthetic(shape: Shape, settings: JsonDict, side: int, images: float) -> JsonDict:
    """Return an entry of the source `synthetic` for a data set of a shape.

    `images` is about the number of its training images.
    """
    count = max(1, len(shape.domains))
    entry: JsonDict = {"source": "synthetic", "classes": shape.classes, "side": side}
    each = len(shape.classes)

    # of many domains, such as users, each has few classes
    if len(shape.domains) > FEW_DOMAINS:
        each = min(each, max(2, ceil(len(shape.classes) / len(shape.domains))))
        entry["classes_per_domain"] = each
    if shape.domains:
        entry["domains"] = shape.domains
    if shape.domains and not shape.test_domains:
        entry["test_domains"] = False

    # the images of a class in a domain
    entry["train"] = 0
    if not shape.only_tests:
        entry["train"] = _bounded(images / (count * each), TRAIN_BOUNDS)
    entry["test"] = _bounded(images / TRAIN_PER_TEST / (count * each), TEST_BOUNDS)

    # a tail may be so long that the last class keeps one image
    if "long_tail" in settings:
        entry["train"] = max(2, entry["train"])
        factor = min(settings["long_tail"]["factor"], float(entry["train"]))
        entry["long_tail"] = {"factor": factor}
    return entry


def _bounded(number: float, bounds: tuple[int, int]) -> int:
    """Return the next whole number that is not below a number, within bounds."""
    low, high = bounds
    return max(low, min(high, ceil(number)))


def enlarge(entry: JsonDict, written: JsonDict, images: int) -> JsonDict:
    """Return a shrunk entry with at least this number of training images of each class.

    There are as many test images as in any made-up data set. `written` is the entry as the study
    wrote it, whose own limits stay.
    """
    if "parts" in entry:
        parts = _written_parts(written, _recipe_of(written))
        enlarged = {
            name: enlarge(each, parts[name], images) for name, each in entry["parts"].items()
        }
        return entry | {"parts": enlarged}

    # images that are read: other caps
    tests = ceil(images / TRAIN_PER_TEST)
    if "max_train_per_class" in entry:
        caps = {}
        for key, least in {"max_train_per_class": images, "max_test_per_class": tests}.items():
            caps[key] = max(entry[key], min(least, written.get(key, least)))
        return entry | caps

    # made-up images: a class has as many in each domain
    domains = len(entry.get("domains", [""]))
    classes = len(entry["classes"])
    domains_of_class = domains * entry.get("classes_per_domain", classes) / classes
    train = ceil(images / domains_of_class)
    test = ceil(tests / domains_of_class)
    return entry | {"train": max(entry["train"], train), "test": max(entry["test"], test)}


def count_classes(entry: JsonDict) -> int | None:
    """Return the number of classes of a shrunk entry; None if its keys do not state it."""
    if "parts" in entry:
        return sum(count_classes(part) or 0 for part in entry["parts"].values())
    for key in ("keep_classes", "classes"):
        if isinstance(entry.get(key), list):
            return len(entry[key])
    return entry.get("classes")


def count_domains(entry: JsonDict) -> int:
    """Return the number of domains of a shrunk entry, as far as its keys state it."""
    for key in ("parts", "domains", "styles"):
        if key in entry:
            return len(entry[key])
    return 1
