"""Sources and schemes as plugins, in plugins/ or in a package; and writers through to a table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from default_config import default_config
from fedloom.commands import describe
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.config import data_plugins
from fedloom.config.file_fingerprint import listing
from fedloom.config.reading import merge
from fedloom.config.resolve import resolve
from fedloom.data import plugins, schemes, sources
from fedloom.data.partition import divide
from fedloom.data.store import ImageStore
from fedloom.study.plan import Plan
from images_on_disk import image_folder

EXAMPLES = {"medmnist": "source", "quantity_skew": "scheme"}


def _drop(folder, *names):
    """Copy examples into `folder`/plugins, as a user does."""
    for name in names:
        shutil.copytree(ROOT / f"examples/{EXAMPLES[name]}s/{name}", folder / "plugins" / name)
    (folder / "plugins").mkdir(exist_ok=True)
    return folder / "plugins"


@pytest.fixture
def drop(tmp_path, monkeypatch):
    """drop(*names) makes these examples the plugins of this process; returns their folder."""

    def put(*names):
        folder = _drop(tmp_path, *names)
        monkeypatch.setattr(data_plugins.discover.__wrapped__, "__defaults__", (folder,))
        data_plugins.discover.cache_clear()
        return folder

    return put


def _npz(file, counts=(60, 20, 30), classes=3, **change):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in zip(("train", "val", "test"), counts, strict=True):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % classes)[:, None].astype(np.uint8)
    np.savez(file, **(arrays | change))
    return arrays


def _entry(section, **entry):
    """Settings of an entry of the config, checked and with their defaults."""
    config = default_config()
    config[section]["mine"] = entry
    config["select"] |= {section: ["mine"]}
    return resolve(merge([(ROOT / "config.yaml", config)]))


def test_a_source_that_is_dropped_in_reads_its_files(drop, tmp_path):
    drop("medmnist")
    arrays = _npz(tmp_path / "x.npz")
    settings = _entry("datasets", source="medmnist", file=str(tmp_path / "x.npz"))
    dataset = settings.datasets["mine"]
    assert dataset.listing["files"] == 1
    assert dataset.settings["validation"] is False, "an option's default"
    sources.build("medmnist", dataset.settings, tmp_path / "images.arrow")
    store = ImageStore(tmp_path / "images.arrow")
    assert store.test.tolist() == [False] * 60 + [True] * 30
    assert (store.labels == np.r_[np.arange(60) % 3, np.arange(30) % 3]).all()
    assert (store.images(np.array([5, 62]))[..., 0] == arrays["train_images"][5]).any()
    assert (store.images(np.array([62]))[0, ..., 0] == arrays["test_images"][2]).all()
    about = json.loads((tmp_path / "images.json").read_text())
    assert about["classes"] == ["0", "1", "2"] and about["named"] is False
    assert about["provenance"].startswith("MedMNIST: 1 files, sha256")
    sources.build("medmnist", dataset.settings | {"validation": True}, tmp_path / "images.arrow")
    assert len(ImageStore(tmp_path / "images.arrow")) == 110


def test_every_source_of_a_plugin_has_the_common_keys(drop, tmp_path):
    drop("medmnist")
    _npz(tmp_path / "x.npz")
    keys = {"image_size": 8, "class_names": ["healthy", "ill", "unclear"]}
    settings = _entry("datasets", source="medmnist", file=str(tmp_path / "x.npz"), **keys)
    sources.build("medmnist", settings.datasets["mine"].settings, tmp_path / "images.arrow")
    assert ImageStore(tmp_path / "images.arrow").shape == (8, 8, 1)
    about = json.loads((tmp_path / "images.json").read_text())
    assert about["classes"] == keys["class_names"] and "named" not in about


def test_a_scheme_that_is_dropped_in_divides(drop):
    drop("quantity_skew")
    settings = _entry("partitions", scheme="quantity_skew", clients=20, beta=0.7, held_out=0.1)
    partition = settings.partitions["mine"]
    labels = np.tile(np.arange(10), 600)
    test = np.arange(6000) % 3 == 0
    spec = {"scheme": "quantity_skew", **partition.settings}
    table = divide(labels, test, np.full(6000, "x"), spec, 3).to_pandas()
    sizes = table[~table["test"]].groupby("client_id").size()
    assert len(sizes) == 20 and sizes.sum() == 4000
    assert sizes.max() > 4 * sizes.min(), "a small beta: unequal sizes"
    assert (~table["participating"]).groupby(table["client_id"]).first().sum() == 2
    again = divide(labels, test, np.full(6000, "x"), spec, 3).to_pandas()
    assert again.equals(table)


@pytest.mark.parametrize(
    ("section", "entry", "line"),
    [
        (
            "datasets",
            {"source": "medmnis"},
            "datasets.mine.source: no source 'medmnis'; did you me",
        ),
        ("datasets", {"source": "medmnist"}, "datasets.mine: 'file' is a required property"),
        (
            "datasets",
            {"source": "medmnist", "file": 3},
            "datasets.mine.file: 3 is not of type 'str",
        ),
        (
            "datasets",
            {"source": "medmnist", "file": "x", "validate": True},
            "datasets.mine.validate: unknown key; did you mean 'validation'?",
        ),
        (
            "partitions",
            {"scheme": "quantity_skew"},
            "partitions.mine: 'clients' is a required prop",
        ),
        (
            "partitions",
            {"scheme": "quantity_skew", "clients": 20, "beta": 0},
            "partitions.mine.beta: 0 is less than or equal to the minimum of 0",
        ),
        (
            "partitions",
            {"scheme": "quantity_skew", "clients": 5},
            "study.clients_per_round: 10 is more than the 5 participating clients",
        ),
    ],
)
def test_a_config_is_checked_against_the_options_of_plugins(drop, section, entry, line):
    drop(*EXAMPLES)
    with pytest.raises(FedLoomError) as error:
        _entry(section, **entry)
    assert line in str(error.value)


def test_fedloom_datasets_lists_them(drop):
    before = describe.datasets()
    assert "source: folder" in before and "scheme: iid" in before
    assert "medmnist" not in before
    drop(*EXAMPLES)
    text = describe.datasets()
    assert "source: medmnist" in text
    assert "  validation (boolean, default False)\n      train on val_images as well" in text
    assert "scheme: quantity_skew" in text
    assert "  beta (number, default 0.5)" in text
    assert "  class_per_domain (boolean, default False)" in text


class _Wildcards:
    def __init__(self, **values):
        vars(self).update(values)


def test_a_plugin_reruns_what_uses_it_and_nothing_else(drop, tmp_path):
    folder = drop(*EXAMPLES)
    config = default_config()
    config["datasets"]["mine"] = {"source": "medmnist", "file": "x.npz"}
    config["partitions"]["skewed"] = {"scheme": "quantity_skew", "clients": 20}
    plan = Plan(resolve(config))

    def files(method, **wildcards):
        return {Path(f).resolve() for f in getattr(plan, method)(_Wildcards(**wildcards))}

    dataset = files("dataset_sources", dataset="mine")
    assert {folder / "medmnist/plugin.py", folder / "medmnist/source.toml"} <= dataset
    assert ROOT / "workflow/fedloom/data/images.py" in dataset
    partition = files("partition_sources", partition="skewed")
    assert {folder / "quantity_skew/plugin.py", folder / "quantity_skew/scheme.toml"} <= partition
    assert ROOT / "workflow/fedloom/data/schemes/shares.py" in partition, "what it imports"
    for other in (
        files("dataset_sources", dataset="digits"),
        files("partition_sources", partition="iid"),
    ):
        assert not any(path.is_relative_to(folder) for path in other)
        names = {path.stem for path in other}
        assert not names & {"hookspecs", "loader", "manifest"}, "an edit there reruns no dataset"


def test_the_store_is_made_again_when_the_files_of_a_path_option_change(drop, tmp_path):
    paths = data_plugins.discover("source", _drop(tmp_path / "a", "medmnist"))["medmnist"].paths
    entry = {"source": "medmnist", "file": str(tmp_path / "*.npz")}
    known = listing(entry, paths)
    assert known["files"] == 0, "missing files are no error in a dry run"
    _npz(tmp_path / "x.npz")
    one = listing(entry, paths)
    (tmp_path / "x.npz").touch()
    assert listing(entry, paths) == one != known
    folder = listing(entry | {"file": str(tmp_path / "a")}, paths)
    assert folder["files"] == 2, "source.toml and plugin.py below a folder"


def _write(folder, kind, code, toml=""):
    (folder / "own").mkdir(parents=True)
    toml = toml or 'name = "own"\ndescription = "mine"\n'
    (folder / "own" / f"{kind}.toml").write_text(toml)
    (folder / "own" / "plugin.py").write_text(code)


TOOLS = "import numpy as np\nfrom PIL import Image\nfrom fedloom.data.toolbox import *\n"
LIST = "ImageList(lambda: [Item('i', lambda: {load})] * {n}, np.array({labels}), ['a', 'b'], 'me')"


def _source(load="Image.new('L', (4, 4))", n=8, labels=(0, 1) * 4):
    return (
        f"{TOOLS}def read(settings):\n    return {LIST.format(load=load, n=n, labels=[*labels])}\n"
    )


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1", "own/plugin.py: a source needs the function read(settings)"),
        ("import nothing_of_that_name", "own: import of plugin.py: "),
        ("def read(settings):\n    return 1 / 0", "own/plugin.py:2: ZeroDivisionError: division"),
        (
            "def read(settings):\n    return [1]",
            "plugin.py: read must return an ImageList, not list",
        ),
        (_source(n=7), "the source lists 8 labels, but 7 items"),
        (_source(n=9), "the source lists 8 labels, but more items"),
        (_source(labels=[0, 1] * 3 + [0, 2]), "i: label 2 is not in 0..1"),
        (
            _source(labels=[0.5] * 8),
            "the source's labels are an array [8] of float64; expected int",
        ),
        (
            _source(labels=[[0, 1]] * 4),
            "the source's labels are an array [4, 2] of int64; expected",
        ),
        (_source(load="np.zeros((4, 4))"), "i: the source loads ndarray, no PIL image"),
        (_source(load="open('nowhere')"), "i: unreadable image ([Errno 2] No such file"),
        (_source(labels=[]), "there are no images (me)"),
    ],
)
def test_a_source_that_misbehaves_is_one_line(drop, tmp_path, code, line):
    _write(drop(), "source", code)
    settings = _entry("datasets", source="own").datasets["mine"].settings
    with pytest.raises(FedLoomError) as error:
        sources.build("own", settings, tmp_path / "images.arrow")
    assert line in str(error.value)
    assert str(error.value).isprintable()
    assert not list(tmp_path.glob("*images*"))


def test_a_source_without_a_split_gets_one(drop, tmp_path):
    _write(drop(), "source", _source())
    settings = _entry("datasets", source="own", test_fraction=0.5).datasets["mine"].settings
    sources.build("own", settings, tmp_path / "images.arrow")
    store = ImageStore(tmp_path / "images.arrow")
    assert np.bincount(store.labels[store.test]).tolist() == [2, 2]


GROUPS = """import numpy as np
from fedloom.data.toolbox import Group
from default_config import default_config
def deal(labels, settings, rng):
    return rng.permutation(np.arange(len(labels)) % settings["clients"])
def groups(domains, settings):
    a = domains == "a"
    return [Group(" a", a, deal, {"clients": 2}), Group(" rest", REST, deal, {"clients": 3})]
"""
BY_DOMAIN = 'name = "own"\ndescription = "mine"\nby_domain = true\n'


def _divide(**settings):
    labels, test = np.tile(np.arange(4), 60), np.arange(240) % 3 == 0
    domains = np.repeat(list("abc"), 80)
    spec = {"scheme": "own", "held_out": 0, **settings}
    return divide(labels, test, domains, spec, 0).to_pandas(), domains


def test_a_scheme_may_divide_by_domains(drop):
    _write(drop(), "scheme", GROUPS.replace("REST", "~a"), BY_DOMAIN)
    assert "clients" not in _entry("partitions", scheme="own").partitions["mine"].settings
    table, domains = _divide()
    for client, own in table.groupby("client_id"):
        assert set(domains[own.index]) == ({"a"} if client < 2 else {"b", "c"})
    assert set(table["client_id"]) == set(range(5))


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1", "own/plugin.py: a scheme needs the function divide(labels, settings, rng)"),
        (
            "def divide(labels, settings, rng):\n    return settings['x']",
            "plugin.py:2: KeyError: 'x'",
        ),
        (
            "def divide(labels, settings, rng):\n    return labels[:3]",
            "divide returns an array [3] of",
        ),
        (
            "def divide(labels, settings, rng):\n    return labels / 2",
            "an array [160] of float64, not",
        ),
        (
            "def divide(labels, settings, rng):\n    return 0 * labels + 5",
            "divide returns client 5, which",
        ),
    ],
)
def test_a_scheme_that_misbehaves_is_one_line(drop, code, line):
    _write(drop(), "scheme", code)
    with pytest.raises(FedLoomError) as error:
        _divide(clients=5)
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1", "a scheme needs the function groups(domains, settings)"),
        ("def groups(domains, settings):\n    return 5", "groups must return a list of Group"),
        (GROUPS.replace("REST", 'domains == "b"'), "image 160 is in 0 groups; must be in one"),
        (GROUPS.replace("REST", "domains"), "images of a Group must be bool [240]"),
        (GROUPS.replace("REST", "~a").replace('{"clients": 2}', "{}"), "need `clients`, their num"),
    ],
)
def test_groups_that_misbehave_are_one_line(drop, code, line):
    _write(drop(), "scheme", code, BY_DOMAIN)
    with pytest.raises(FedLoomError) as error:
        schemes.groups(np.repeat(list("abc"), 80), "own", {})
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("kind", "toml", "line"),
    [
        ("source", 'name = "own"', "own/source.toml: 'description' is a required property"),
        ("source", "name = ", "own/source.toml: "),
        (
            "source",
            'name = "folder"\ndescription = "x"',
            "has a source 'folder' of its own; rename",
        ),
        (
            "source",
            'name = "own"\ndescription = "x"\n[options.image_size]\ntype = "integer"\n'
            'description = "y"',
            "source.toml: options.image_size: every source has that key; rename it",
        ),
        (
            "scheme",
            'name = "own"\ndescription = "x"\n[options.beta]\ntype = "numeric"\ndescription = "y"',
            "scheme.toml: options.beta.type: must be ",
        ),
        (
            "scheme",
            'name = "own"\ndescription = "x"\n[options.beta]\ntype = "number"\ndescription = "y"\n'
            'default = "z"',
            "scheme.toml: options.beta.default: ",
        ),
    ],
)
def test_a_toml_file_that_is_wrong_is_one_line(tmp_path, kind, toml, line):
    _write(tmp_path / "plugins", kind, "", toml)
    with pytest.raises(FedLoomError) as error:
        data_plugins.discover(kind, tmp_path / "plugins")["own"]
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_is_a_plugin_of_one_kind(tmp_path):
    folder = _drop(tmp_path, "medmnist")
    shutil.copy(ROOT / "plugins/fedvpt/method.toml", folder / "medmnist/method.toml")
    with pytest.raises(
        FedLoomError, match=r"medmnist: source.toml and method.toml; a plugin is of"
    ):
        data_plugins.discover("source", folder)["medmnist"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_installed_package_may_bring_them(name, tmp_path, monkeypatch):
    """It is found by its entry point, and keeps its own module name."""
    site, kind = tmp_path / "site", EXAMPLES[name]
    shutil.copytree(ROOT / f"examples/{kind}s/{name}", site / "theirs" / name)
    for folder in (site / "theirs", site / "theirs" / name):
        (folder / "__init__.py").write_text("")
    info = site / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedloom.{kind}s]\n{name} = theirs.{name}\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    plugin = data_plugins.find(kind, name)
    assert (plugin.module, plugin.folder) == (f"theirs.{name}", site / "theirs" / name)
    module = plugins.import_plugin(plugin)
    assert module.__name__ == f"theirs.{name}.plugin"
    shutil.copytree(ROOT / f"examples/{kind}s/{name}", tmp_path / "plugins" / name)
    data_plugins.discover.cache_clear()
    with pytest.raises(FedLoomError, match=f"{kind} '{name}' is defined twice: in .*; rename one"):
        data_plugins.discover(kind, tmp_path / "plugins")[name]


def test_examples_import_the_toolbox_of_data_alone():
    for file in (ROOT / "examples").glob("s[co]*/*/plugin.py"):
        imports = [x for x in file.read_text().splitlines() if x.startswith(("import", "from"))]
        ours = [line for line in imports if "fedloom" in line]
        assert all(line.startswith("from fedloom.data.toolbox import") for line in ours), file
        assert len(file.read_text().splitlines()) <= 60, "an example is short"


STUDY = """
study: {name: small, rounds: 1, seeds: [0], clients_per_round: 2, evaluate_every: 1,
        report: {last_evaluations: 1}, training: {epochs: 1, batch_size: 64, lr: 0.3}}
datasets:
  letters: {source: folder, root: letters, domains: true}
  scans: {source: medmnist, file: scans.npz}
partitions: {skewed: {scheme: quantity_skew, clients: 3, beta: 20, shots: 50}}
select: {datasets: [letters], partitions: [skewed], methods: [head_tuning], tables: [main],
         figures: []}
"""


def test_writers_and_plugins_through_to_a_table(tmp_path):
    """Twelve writers wrote ten letters once each; another dataset and the scheme are plugins."""
    for name in ("workflow", "profiles", "plugins"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    _drop(tmp_path, *EXAMPLES)
    writers, letters = [f"writer{k:02}" for k in range(12)], [f"letter{k}" for k in range(10)]
    image_folder(tmp_path / "letters", writers, letters, count=1, mode="L")
    _npz(tmp_path / "scans.npz")
    (tmp_path / "small.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "snakemake", "--configfile", "small.yaml", "--"]
    done = subprocess.run(
        [*command, "results/tables/small/main.md", "results/datasets/scans/images.arrow"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "workflow")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "| Head-Tuning" in (tmp_path / "results/tables/small/main.md").read_text()
    log = (tmp_path / "results/logs/dataset/letters/images.log").read_text()
    assert "36 of 120 are test images: 0.3 of every class and 0.3 of every domain, but not" in log
    assert "10 of 10 classes occur in more than one domain, as 'letter0' in 12" in log
    assert "class_per_domain: true" in log
    log = (tmp_path / "results/logs/partition/letters/skewed/seed0.log").read_text()
    assert (
        "shots is 50, but clients hold fewer training images of a class 29 times out of 29" in log
    )
    run = "results/runs/letters/skewed/micro_vit/head_tuning/seed0/evaluation.parquet"
    evaluation = pd.read_parquet(tmp_path / run)
    assert evaluation["num_test"].sum() == 36
    assert len(evaluation) == 3
    about = json.loads((tmp_path / "results/datasets/scans/images.json").read_text())
    assert (about["images"], about["test_images"], about["test_split"]) == (90, 30, "official")
