"""Every recipe on a small tree in the raw layout of its archive, and on trees that are wrong."""

import pytest

import raw_layouts
from command_line import invoked
from fedloom.cli.make import get_data
from fedloom.common.errors import FedLoomError
from fedloom.config import recipes
from fedloom.config.recipes import dataset_entry
from fedloom.data import expected_counts, sources
from fedloom.data.preparation import prepare


def ready(name, root):
    """Return the prepared list of a recipe's images."""
    settings = dataset_entry("mine", {"recipe": name, "root": str(root)})
    return prepare(sources.read(settings.pop("source"), settings), settings)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return tree(name), which writes a small tree in the raw layout of a recipe.

    The recipe expects the counts of this tree.
    """

    def make(name):
        root = tmp_path / "raw"
        counts = getattr(raw_layouts, name)(root, monkeypatch)
        assert counts.keys() == recipes.find_recipe(name).counts.plain.keys(), (
            "every count is compared"
        )
        small = recipes.find_recipe(name)
        small = small.model_copy(update={"counts": recipes.Counts.model_validate(counts)})
        monkeypatch.setattr(
            recipes,
            "find_recipe",
            lambda wanted, find=recipes.find_recipe: small if wanted == name else find(wanted),
        )
        return root

    return make


def check(root, name, capsys, *options):
    """Return the exit status and the lines of `fedloom data check`, as main() makes them."""
    try:
        status = invoked("data", "check", name, "--root", str(root), *options)
    except FedLoomError as error:
        return 2, [f"error: {error}"]
    return status, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", recipes.recipe_names())
def test_every_recipe_reads_its_raw_layout(name, tree, capsys):
    root = tree(name)
    assert get_data.is_there(recipes.find_recipe(name), str(root))
    status, lines = check(root, name, capsys)
    assert (status, len(lines)) == (0, 1)
    assert "nothing differs from the counts that the recipe states" in lines[0]


def test_classes_have_the_names_of_a_file_and_no_name_twice(tree):
    """The folders of ImageNetV2 are numbers, which count the lines of the file of names."""
    names = ["tench", "missile", "projectile", "sunglass", "sunglasses", "great white shark"]
    for name in ("imagenet", "imagenet_v2", "imagenet_sketch"):
        assert ready(name, tree(name)).classes == names


def without_images_of_a_class(root):
    for name in ("0", "1"):
        (root / f"tiny-imagenet-200/train/n02/images/{name}.png").unlink()


def with_a_truncated_list(root):
    file = root / "fedbn/clipart_test.txt"
    file.write_text("\n".join(file.read_text().splitlines()[:-2]))


def without_training_images_of_three_classes(root):
    for file in (root / "fedbn").glob("*_train.txt"):
        rows = file.read_text().splitlines()
        file.write_text("\n".join(row for row in rows if row.split("/")[1] > "ice") + "\n")


def with_few_images(root):
    for letter in "BCD":
        for file in (root / f"notMNIST_small/{letter}").iterdir():
            if file.name != "0.png":
                file.unlink()


def with_images_of_the_wrong_split(root):
    """Put a class's test images among the training images, as a wrong copy does."""
    train, test = (root / f"MMAFEDB/{half}/sad" for half in ("train", "test"))
    for file in test.iterdir():
        file.rename(train / f"moved_{file.name}")
    (test / "0.png").write_bytes(raw_layouts.IMAGE)


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        ("tiny_imagenet", without_images_of_a_class, ["8 training", "'n02': 3 training"]),
        ("domainnet", with_a_truncated_list, ["85 test", "'clipart': 10 test"]),
        (
            "domainnet",
            without_training_images_of_three_classes,
            ["7 classes, the recipe has 10; found: ice_cream, teapot"],
        ),
        ("notmnist", with_few_images, ["74 images, the recipe has at least 100 (26 fewer)"]),
        ("mmafedb", with_images_of_the_wrong_split, ["14 (2 more)", "14 (1 fewer)"]),
    ],
)
def test_a_wrong_tree_is_told_in_a_line(name, damage, expected, tree, capsys):
    root = tree(name)
    damage(root)
    status, lines = check(root, name, capsys)
    assert status == 2
    for line, words in zip(lines, expected, strict=True):
        assert words in line


def test_pixels_are_read_on_request(tree, capsys):
    root = tree("oxford_pets")
    broken = root / "images/class 2/4.jpg"
    broken.write_bytes(broken.read_bytes()[:40])
    assert check(root, "oxford_pets", capsys)[0] == 0
    status, lines = check(root, "oxford_pets", capsys, "--pixels")
    assert status == 2
    assert len(lines) == 1 and f"{broken}: unreadable image (" in lines[0]


def test_many_classes_that_differ_are_a_few_lines(tree):
    root = tree("cifar100")
    counts = {"classes": 101, "each_class": {"train": 3}, "by_class": {"zebra": {"images": 1}}}
    lines = expected_counts.differences_from_recipe(ready("cifar100", root), counts)
    assert lines[0].startswith("100 classes, the recipe has 101; found: c0, c1, ")
    assert lines[1] == "class 'zebra': missing"
    assert lines[2] == "class 'c0': 2 training images, the recipe has 3 (1 fewer)"
    assert lines[-1] == "96 more such lines on classes"
    assert len(lines) == 7


def test_classes_that_are_missing_are_told_in_the_recipes_order(tree):
    names = ["zebra", "yak", "ape", "gnu", "cow"]
    counts = {"by_class": {name: {"images": 1} for name in names}}
    lines = expected_counts.differences_from_recipe(ready("cifar100", tree("cifar100")), counts)
    assert lines == [f"class '{name}': missing" for name in names]


def test_a_domain_that_is_missing_is_named(tree):
    listed = ready("office31", tree("office31"))
    counts = {"domains": 4, "by_domain": {"caltech": {"images": 1}}}
    assert expected_counts.differences_from_recipe(listed, counts) == [
        "3 domains, the recipe has 4; found: amazon, dslr, webcam",
        "domain 'caltech': 0 images, the recipe has 1 (1 fewer)",
    ]


def test_a_data_set_of_several_is_there_if_all_of_them_are(tree):
    root = tree("five_dataset")
    five = recipes.find_recipe("five_dataset")
    assert get_data.is_there(five, str(root))
    for file in (root / "svhn").iterdir():
        file.unlink()
    assert not get_data.is_there(five, str(root))
    (root / "svhn/.downloads").mkdir()
    assert not get_data.is_there(five, str(root)), "hidden files are not its own"


def test_a_part_is_looked_for_where_its_recipe_has_its_files(tmp_path):
    file = tmp_path / "both.yaml"
    file.write_text(
        "{title: Both, papers: [], licence: not stated, citation: x, get: {manual: [Ask.]}, "
        "source: several, image_size: 32, "
        "parts: {lt: {recipe: cifar100_lt}, mnist: {recipe: mnist}, own: {source: digits}}}"
    )
    both = recipes.find_recipe(str(file))
    assert both.size().images == 20_847 + 70_000, "of the parts that are recipes"
    assert len(both.all_notes()) == 2, "both of CIFAR-100-LT"
    for folder in ("mnist", "cifar100_lt"):
        (tmp_path / folder / "files").mkdir(parents=True)
    assert not get_data.is_there(both, str(tmp_path))
    (tmp_path / "cifar100_lt").rename(tmp_path / "cifar100")
    assert get_data.is_there(both, str(tmp_path))


def test_the_list_names_every_recipe(capsys):
    assert invoked("data", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(recipes.recipe_names())
    cifar = next(line for line in lines if line.startswith("cifar100 "))
    assert "50,000 + 10,000" in cifar and "torchvision" in cifar
