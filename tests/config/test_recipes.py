"""Recipes: data sets by name, resolved into sources while the plan is read."""

from types import SimpleNamespace

import pytest

from fedloom.config import recipes, resolve
from fedloom.planning import staleness
from fedloom.planning.load_plan import load_plan
from fedloom.planning.overview import overview
from fedloom.planning.resources import estimates
from fedloom.planning.rules import RULES
from images_on_disk import dataset_spec
from refusals import refused


@pytest.mark.parametrize("name", recipes.recipe_names())
def test_every_recipe_is_an_entry_of_the_config(name):
    """A recipe becomes the keys of its source, and no placeholder of its folder is left."""
    settings = dataset_spec(recipe=name)
    assert "recipe" not in settings
    assert "{root}" not in str(settings)


def test_a_recipe_is_resolved_into_its_source():
    assert dataset_spec(recipe="cifar100") == dataset_spec(
        source="torchvision", name="CIFAR100", root="data/cifar100"
    )
    assert dataset_spec(recipe="cifar100", root="/x")["root"] == "/x"
    assert dataset_spec(recipe="tiny_imagenet", root="/x")["root"] == "/x/tiny-imagenet-200"


def test_keys_of_the_study_go_before_those_of_the_recipe():
    settings = dataset_spec(recipe="office31", image_size=64)
    assert (settings["image_size"], settings["classes_in"]) == (64, "images")


def test_errors_name_the_entry(tmp_path):
    for entry, words in (
        ({"recipe": "cifar10O"}, ["'cifar10O'", "'cifar10"]),
        ({"recipe": "cifar100", "source": "folder"}, ["recipe", "source"]),
        ({"recipe": "cifar100", "rot": "x"}, ["datasets.mine.rot", "'root'"]),
        ({"recipe": ["cifar100"]}, ["recipe", "['cifar100']"]),
        ({"recipe": str(tmp_path / "x.yaml")}, ["x.yaml"]),
    ):
        with refused("datasets.mine", *words):
            dataset_spec(**entry)


def test_a_recipe_of_the_users_own(tmp_path):
    file = tmp_path / "birds.yaml"
    file.write_text(
        "{title: Birds, papers: [], licence: own, citation: none, get: {manual: [ask us]}, "
        'source: parquet, train_files: "{root}/train-*.parquet", test_fraction: 0.1}'
    )
    settings = dataset_spec(recipe=str(file))
    assert settings["train_files"] == "data/birds/train-*.parquet"
    assert "root" not in settings
    assert dataset_spec(recipe=str(file), root="/b")["train_files"] == "/b/train-*.parquet"
    file.write_text("{title: Birds, source: folder}")
    with refused("birds.yaml"):
        dataset_spec(recipe=str(file))


def test_what_comes_by_plain_http_has_a_digest(tmp_path):
    file = tmp_path / "birds.yaml"
    file.write_text(
        "title: Birds\npapers: []\nlicence: mine\ncitation: me\nsource: sklearn_digits\n"
        "get: {archives: [{url: 'http://x.org/b.zip'}]}\n"
    )
    with refused("birds.yaml", "plain http", "sha256"):
        recipes.find_recipe(str(file))


@pytest.mark.parametrize("key", ["into", "name"])
@pytest.mark.parametrize("place", ["..", "a/../../x", "/x"])
def test_no_recipe_puts_files_outside_of_its_root(key, place, tmp_path):
    file = tmp_path / "birds.yaml"
    file.write_text(
        "{title: Birds, papers: [], licence: own, citation: none, source: folder, "
        f"get: {{archives: [{{url: 'https://x.org/b.zip', {key}: '{place}'}}]}}}}"
    )
    with refused("birds.yaml", key):
        recipes.find_recipe(str(file))
    file.write_text(file.read_text().replace(f"'{place}'", "birds..zip"))
    assert recipes.find_recipe(str(file)).get.plain["archives"][0][key] == "birds..zip"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("cifar100", (60_000, 100)),
        ("office31", (4110, 31)),
        ("inaturalist_user", (None, 1203)),
        ("five_dataset", (99_289 + 60_000 + 70_000 + 70_000, 50)),  # without notMNIST
        ("four_dataset", (3 * 32_500 + 7 * (4286 + 358), 37)),
    ],
)
def test_what_a_recipe_expects_serves_estimates(name, size):
    assert recipes.find_recipe(name).size()[:2] == size


@pytest.mark.parametrize(
    ("name", "first", "train", "test"),
    [
        ("domainnet", 105, 6 * 105, 4573),
        ("office_caltech10", 62, 4 * 62, 192 + 225 + 32 + 59),
        ("office_caltech10", None, 2533 - 508, 508),
        ("cifar100", None, 50_000, 10_000),
    ],
)
def test_training_and_test_images_are_estimated_each(name, first, train, test):
    """All test images count, and those training images that `first_per_domain` keeps."""
    entry = {"recipe": name} | ({"first_per_domain": first} if first else {})
    dataset = resolve._dataset("d", recipes.check_dataset("d", entry), entry, False)
    found = estimates.contents(dataset)
    assert (found.training, found.test) == (train, test)
    assert found.images == train + test


def test_a_study_names_recipes(tmp_path, monkeypatch):
    """Jobs know sources and no recipes, so that a recipe with other counts makes no store again."""
    study = tmp_path / "mine.yaml"
    study.write_text(
        "datasets: {tiny: {recipe: tiny_imagenet, root: /nowhere}, five: {recipe: five_dataset}}\n"
        "select: {datasets: [tiny, five]}\n"
    )
    monkeypatch.chdir(tmp_path)
    plan = load_plan([study])
    tiny, five = (plan.job("dataset", SimpleNamespace(dataset=d)).dataset for d in ("tiny", "five"))
    assert (tiny.source, tiny.settings["root"]) == ("folder", "/nowhere/tiny-imagenet-200")
    assert (tiny.expected, tiny.notes) == ((None, None, None), ())
    notes = overview(plan.settings)["On the data sets"]
    assert any(note.startswith("tiny: The test images are the archive's") for note in notes)
    of_five = [note for note in notes if note.startswith("five: notMNIST: ")]
    assert any("The archive is the small, clean one" in note for note in of_five)
    assert estimates.contents(plan.settings.datasets["tiny"])[:2] == (110_000, 200)
    assert five.settings["parts"]["mnist"]["name"] == "MNIST"
    job = plan.job("dataset", SimpleNamespace(dataset="five"))
    sources = " ".join(staleness.source_files(*RULES["dataset"].code(job)))
    for part in ("several", "folder", "torchvision"):
        assert f"data/sources/{part}.py" in sources, "an edit of a part's source is noticed"
    assert "data/sources/parquet.py" not in sources
    assert "config/recipes.py" not in sources


def test_files_of_a_part_are_noticed(tmp_path):
    entry = {key: {"source": "folder", "root": str(tmp_path)} for key in "ab"}
    spec = dataset_spec(source="several", parts=entry, image_size=8)
    before = resolve._listing(spec)
    (tmp_path / "x.png").write_bytes(b"1")
    after = resolve._listing(spec)
    assert (before["files"], after["files"]) == (0, 2)
    assert before["sha256"] != after["sha256"]
