"""Sources and schemes as plugins, in plugins/ or in a package; writers through to a report."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace as Wildcards

import numpy as np
import pandas as pd
import pytest

import one_process
from data_plugin_cases import (
    BACKBONES,
    EXAMPLES,
    OUTPUTS,
    drop_examples,
    dropping,
    entry_of,
    source_code,
    write_plugin,
)
from default_config import default_config
from fedloom.cli.inspect import describe
from fedloom.common.errors import FedLoomError
from fedloom.config import kind_plugins
from fedloom.config.datasets import listing
from fedloom.config.settings import Dataset
from fedloom.data import plugins, sources
from fedloom.data.partition import divide_dataset
from fedloom.data.store import ImageStore
from fedloom.hooks import discovery
from fedloom.machine.install import ROOT
from fedloom.planning import staleness
from fedloom.planning.job_specs import DatasetJob
from fedloom.planning.load_plan import load_plan, resolve
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.report import page
from images_on_disk import build, dataset_spec, image_folder
from refusals import refused


@pytest.fixture
def drop(tmp_path, monkeypatch):
    """Return drop(*names), which makes these examples this process's plugins.

    drop(*names) returns the folder of the plugins.
    """
    return dropping(tmp_path, monkeypatch)


def _npz(file, counts=(60, 20, 30), classes=3, **change):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in zip(("train", "val", "test"), counts, strict=True):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % classes)[:, None].astype(np.uint8)
    np.savez(file, **(arrays | change))
    return arrays


def test_a_source_that_is_dropped_in_reads_its_files(drop, tmp_path):
    drop("medmnist")
    arrays = _npz(tmp_path / "x.npz")
    settings = entry_of("datasets", source="medmnist", file=str(tmp_path / "x.npz"))
    dataset = settings.datasets["mine"]
    assert dataset.listing["files"] == 1
    assert dataset.settings["validation"] is False, "an option's default"
    sources.build_store("medmnist", dataset.settings, tmp_path / "images.arrow")
    store = ImageStore(tmp_path / "images.arrow")
    assert store.test.tolist() == [False] * 60 + [True] * 30
    assert (store.labels == np.r_[np.arange(60) % 3, np.arange(30) % 3]).all()
    assert (store.images(np.array([5, 62]))[..., 0] == arrays["train_images"][5]).any()
    assert (store.images(np.array([62]))[0, ..., 0] == arrays["test_images"][2]).all()
    about = json.loads((tmp_path / "images.json").read_text())
    assert about["classes"] == ["0", "1", "2"] and about["named"] is False
    assert about["provenance"].startswith("MedMNIST: 1 files, sha256")
    sources.build_store(
        "medmnist", dataset.settings | {"validation": True}, tmp_path / "images.arrow"
    )
    assert len(ImageStore(tmp_path / "images.arrow")) == 110


def test_every_source_of_a_plugin_has_the_common_keys(drop, tmp_path):
    drop("medmnist")
    _npz(tmp_path / "x.npz")
    keys = {"image_size": 8, "class_names": ["healthy", "ill", "unclear"]}
    settings = entry_of("datasets", source="medmnist", file=str(tmp_path / "x.npz"), **keys)
    sources.build_store("medmnist", settings.datasets["mine"].settings, tmp_path / "images.arrow")
    assert ImageStore(tmp_path / "images.arrow").shape == (8, 8, 1)
    about = json.loads((tmp_path / "images.json").read_text())
    assert about["classes"] == keys["class_names"] and "named" not in about


def test_a_scheme_that_is_dropped_in_divides(drop):
    drop("quantity_skew")
    settings = entry_of("partitions", scheme="quantity_skew", clients=20, beta=0.7, held_out=0.1)
    partition = settings.partitions["mine"]
    labels = np.tile(np.arange(10), 600)
    test = np.arange(6000) % 3 == 0
    spec = {"scheme": "quantity_skew", **partition.settings}
    table = divide_dataset(labels, test, np.full(6000, "x"), spec, 3).to_pandas()
    sizes = table[~table["test"]].groupby("client_id").size()
    assert len(sizes) == 20 and sizes.sum() == 4000
    assert sizes.max() > 4 * sizes.min(), "a small beta: unequal sizes"
    assert (~table["participating"]).groupby(table["client_id"]).first().sum() == 2
    again = divide_dataset(labels, test, np.full(6000, "x"), spec, 3).to_pandas()
    assert again.equals(table)


SOURCE = {"source": "medmnist"}
SCHEME = {"scheme": "quantity_skew"}


@pytest.mark.parametrize(
    ("section", "entry", "words"),
    [
        ("datasets", {"source": "medmnis"}, ["datasets.mine.source", "medmnist"]),
        ("datasets", SOURCE, ["datasets.mine", "file"]),
        ("datasets", SOURCE | {"file": 3}, ["datasets.mine.file", "3"]),
        ("datasets", SOURCE | {"file": "x", "validate": True}, ["mine.validate", "validation"]),
        ("datasets", SOURCE | {"file": "x", "resize": "squash"}, ["mine", "image_size"]),
        ("partitions", SCHEME, ["partitions.mine", "clients"]),
        ("partitions", SCHEME | {"clients": 20, "beta": 0}, ["partitions.mine.beta", "0"]),
        (
            "partitions",
            SCHEME | {"clients": 6, "held_out": 0.2},
            ["study.clients_per_round", "10", "5"],
        ),
    ],
)
def test_a_config_is_checked_against_the_options_of_plugins(drop, section, entry, words):
    drop(*EXAMPLES)
    with refused(*words):
        entry_of(section, **entry)


def test_fedloom_datasets_lists_them(drop):
    before = describe.describe_kinds(datasets="source", partitions="scheme")
    assert "source: folder" in before and "scheme: iid" in before
    assert "medmnist" not in before
    drop(*EXAMPLES)
    text = describe.describe_kinds(datasets="source", partitions="scheme")
    assert "source: medmnist" in text
    assert "  validation (boolean, default False)\n      Whether to train on val_images" in text
    assert "scheme: quantity_skew" in text
    assert "  beta (number, default 0.5)" in text
    assert "  test_fraction (number, default 0.3)" in text


def test_a_plugin_reruns_what_uses_it_and_nothing_else(drop, tmp_path):
    folder = drop(*EXAMPLES)
    config = default_config()
    config["datasets"]["mine"] = {"source": "medmnist", "file": "x.npz"}
    config["partitions"]["skewed"] = {"scheme": "quantity_skew", "clients": 20}
    plan = Plan(resolve(config))

    def files(rule, job):
        return {Path(f).resolve() for f in staleness.source_files(*RULES[rule].code(job))}

    def of_dataset(name):
        return files("dataset", plan.job("dataset", Wildcards(dataset=name)))

    def of_partition(name):
        asked = Wildcards(dataset="mine", partition=name, seed=0)
        return files("partition", plan.job("partition", asked))

    dataset = of_dataset("mine")
    assert {folder / "medmnist/plugin.py", folder / "medmnist/source.toml"} <= dataset
    assert ROOT / "workflow/fedloom/data/images.py" in dataset
    partition = of_partition("skewed")
    assert {folder / "quantity_skew/plugin.py", folder / "quantity_skew/scheme.toml"} <= partition
    assert ROOT / "workflow/fedloom/data/schemes/dealing.py" in partition, "what it imports"
    for other in (of_dataset("digits"), of_partition("iid")):
        assert not any(path.is_relative_to(folder) for path in other)


def test_the_store_is_made_again_when_the_files_of_a_path_option_change(drop, tmp_path):
    paths = kind_plugins.plugins_of_type("source", drop_examples(tmp_path / "a", "medmnist"))[
        "medmnist"
    ].paths
    entry = {"source": "medmnist", "file": str(tmp_path / "*.npz")}
    known = listing(entry, paths)
    assert known["files"] == 0, "a dry run does without the files"
    _npz(tmp_path / "x.npz")
    one = listing(entry, paths)
    (tmp_path / "x.npz").touch()
    assert listing(entry, paths) == one != known
    (tmp_path / "x.csv").write_text("1.png,ant")
    ants = listing(entry | {"file": str(tmp_path / "x.csv")}, paths)
    (tmp_path / "x.csv").write_text("1.png,bee")
    bees = listing(entry | {"file": str(tmp_path / "x.csv")}, paths)
    assert ants["sha256"] != bees["sha256"], "a list of the same size"
    folder = listing(entry | {"file": str(tmp_path / "a")}, paths)
    assert folder["files"] == 2, "source.toml and plugin.py below a folder"


def test_a_part_of_several_may_be_of_a_plugin(drop, tmp_path):
    write_plugin(drop(), "source", source_code())
    entry = {"source": "own", "test_fraction": 0.5}
    spec = {"source": "several", "parts": {"one": entry, "two": entry}, "image_size": 4}
    store, about = build(tmp_path, **spec)
    assert about["classes"] == ["one/a", "one/b", "two/a", "two/b"]
    assert np.bincount(store.labels[store.test]).tolist() == [2] * 4
    job = DatasetJob(Dataset("mine", "several", dataset_spec(**spec)))
    files = staleness.source_files(*RULES["dataset"].code(job))
    assert any(file.endswith("own/plugin.py") for file in files)


@pytest.mark.parametrize("name", [*EXAMPLES, *BACKBONES])
def test_an_installed_package_may_bring_them(name, tmp_path, monkeypatch):
    """A plugin of a package is found by its entry point, and keeps the name of its module."""
    site = tmp_path / "site"
    kind = (EXAMPLES | BACKBONES)[name]
    package = f"package_with_{name}"
    shutil.copytree(ROOT / f"examples/{kind}s/{name}", site / package / name)
    for folder in (site / package, site / package / name):
        (folder / "__init__.py").write_text("")
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedloom.{kind}s]\n{name} = {package}.{name}\n")
    monkeypatch.syspath_prepend(site)
    plugin = kind_plugins.plugins_of_type(kind)[name]
    assert (plugin.module, plugin.folder) == (f"{package}.{name}", site / package / name)
    module = plugins.import_plugin(plugin)
    assert module.__name__ == f"{package}.{name}.plugin"
    shutil.copytree(ROOT / f"examples/{kind}s/{name}", tmp_path / "plugins" / name)
    kind_plugins.plugins_of_type.cache_clear()
    with pytest.raises(FedLoomError, match=f"{kind} '{name}' is defined twice: in .*; rename one"):
        kind_plugins.plugins_of_type(kind, tmp_path / "plugins")[name]


def test_entry_points_may_be_of_the_backport_of_importlib_metadata(monkeypatch):
    """The backport's finder replaces Python's own as soon as any package imports the backport."""
    place = {"group": "fedloom.sources", "name": "theirs", "value": "nowhere", "module": "nowhere"}
    monkeypatch.setattr(discovery, "entry_points", lambda group: [type("Entry", (), place)()])
    found = discovery.discover_plugins("source", [], kind_plugins.ManifestWithOptions)
    assert str(found.errors["theirs"]).endswith("no module nowhere")


def test_examples_import_a_toolbox_alone():
    data = "fedloom.data.source_toolbox"
    report = "fedloom.report.output_toolbox"
    toolboxes = {"schemes": data, "sources": data, "tables": report, "figures": report}
    toolboxes["backbones"] = "fedloom.backbones.backbone_toolbox"
    files = [f for f in (ROOT / "examples").glob("*/*/plugin.py") if f.parents[1].name in toolboxes]
    assert {file.parents[1].name for file in files} == set(toolboxes)
    for file in files:
        toolbox = f"from {toolboxes[file.parents[1].name]} import"
        imports = [x for x in file.read_text().splitlines() if x.startswith(("import", "from"))]
        ours = [line for line in imports if "fedloom" in line]
        assert ours, f"{file} imports nothing of FedLoom"
        assert all(line.startswith(toolbox) for line in ours), file
        assert len(file.read_text().splitlines()) <= 100, "an example is short"


STUDY = """
study: {name: small, rounds: 1, seeds: [0], clients_per_round: 2, evaluate_every: 1,
        report: {last_evaluations: 1}, training: {epochs: 1, batch_size: 64, lr: 0.3}}
datasets:
  letters: {source: folder, root: HERE/letters, domains: true}
  scans: {source: medmnist, file: HERE/scans.npz}
partitions: {skewed: {scheme: quantity_skew, clients: 3, beta: 20, shots: 50}}
tables: {spread: {kind: spread, share: 34}}
figures: {reach: {kind: reach}}
select: {datasets: [letters], partitions: [skewed], methods: [head_tuning],
         tables: [main, spread], figures: [reach]}
"""


def test_writers_and_plugins_through_to_a_report(drop, tmp_path, monkeypatch, caplog):
    """Twelve writers wrote ten letters once each; only the source and the method are no plugins."""
    caplog.set_level("INFO", "fedloom")
    monkeypatch.chdir(tmp_path)
    drop(*EXAMPLES, *OUTPUTS)
    writers = [f"writer{k:02}" for k in range(12)]
    letters = [f"letter{k}" for k in range(10)]
    image_folder(tmp_path / "letters", writers, letters, count=1, mode="L")
    _npz(tmp_path / "scans.npz")
    (tmp_path / "small.yaml").write_text(STUDY.replace("HERE", str(tmp_path)))
    plan = load_plan([Path("small.yaml")])
    scenario = Wildcards(dataset="letters", partition="skewed", backbone="micro_vit", seed=0)
    one_process.run("dataset", plan.job("dataset", scenario))
    one_process.run("dataset", plan.job("dataset", Wildcards(dataset="scans")))
    one_process.run("cache", plan.job("cache", Wildcards(**vars(scenario), cache="features")))
    one_process.run("partition", plan.job("partition", scenario))
    one_process.train(plan, scenario, "head_tuning", artefacts=set())
    one_process.run("partition_chart", plan.job("partition_chart", scenario))
    for label in ("main", "spread"):
        one_process.run("table", plan.job("table", Wildcards(label=label)))
        assert "| Head-Tuning" in Path(f"results/tables/small/{label}.md").read_text()
    one_process.run("figure", plan.job("figure", Wildcards(label="reach")))
    report = page.write_page(plan).read_text()
    assert "test accuracy in % of the worst and the best 34 % of participating clients" in report
    (about,) = re.findall(r'alt="Figure \d+: ([^"]+)"', report.split('id="figure-reach"')[1])[:1]
    assert about.startswith("reach: The share of participating clients")
    for words in (
        "36 of 120 are test images: 0.3 of every class and 0.3 of every domain",
        "shots is 50, but clients hold fewer training images of a class 29 times out of 29",
    ):
        assert words in caplog.text
    run = Path("results/runs/letters/skewed/micro_vit/head_tuning/seed0/evaluation.parquet")
    evaluation = pd.read_parquet(run)
    assert evaluation["num_test"].sum() == 36 and len(evaluation) == 3
    about = json.loads(Path("results/datasets/scans/images.json").read_text())
    assert (about["images"], about["test_images"], about["test_split"]) == (90, 30, "official")
