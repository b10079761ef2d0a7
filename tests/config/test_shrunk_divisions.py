"""Shrunk studies have images and clients enough for the schemes by which they are divided."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest

from fedloom.cli.run.bundled_studies import all_studies, study_name
from fedloom.config.partitions import novel_numbers
from fedloom.config.settings import VALIDATION
from fedloom.data.partition import divide_dataset
from fedloom.data.preparation import prepare
from fedloom.data.sources import read as read_source
from fedloom.planning.plan import Plan
from shrunk_plans import shrunk_plans


def test_each_class_of_a_domain_is_dominant_in_some_client(tmp_path):
    """One of ten classes a client needs ten clients in a domain, and one of 14 needs 14."""
    _, small = shrunk_plans("pfpt/table4", tmp_path)
    assert small.settings.partitions["pfpt_four_imbalance"].settings["clients_per_domain"] == 14


def divide_all(plan: Plan, seeds: Sequence[int] = ()) -> list[pa.Table]:
    """Divide each data set of a study by each of its partitions, for each seed.

    Without `seeds`, these are the seeds of the study and, if it tunes options, that of its trials.
    """
    tables = []
    settings = plan.settings
    for label in settings.select.datasets:
        dataset = settings.datasets[label]
        images = prepare(read_source(dataset.source, dataset.settings), dataset.settings)
        divisions = [*product(settings.select.scenarios, seeds or settings.study.seeds)]
        if settings.study.tune and not seeds:
            divisions += [(each, None) for each in settings.select.scenarios]
        for scenario, seed in divisions:
            partition = settings.partitions[scenario.partition]
            if scenario.dataset != label:
                continue
            if seed is None:
                # the clients hold images back, by which trials are compared
                partition = settings.partitions[scenario.partition + VALIDATION]
                seed = settings.study.tune.seed
            keys = {"scheme": partition.scheme, **partition.settings}
            if "novel_classes" in keys:
                keys["novel_classes"] = novel_numbers(keys["novel_classes"], images.classes)
            table = divide_dataset(
                images.labels, images.test, images.domains, keys, seed, images.classes
            )
            assert len(table) > 0
            tables.append(table)
    return tables


@pytest.mark.slow
@pytest.mark.parametrize("file", all_studies(), ids=study_name)
def test_images_of_every_shrunk_study_can_be_divided(tmp_path, file):
    """For each data set and seed, every partition's scheme finds images and clients enough."""
    _, small = shrunk_plans(study_name(file), tmp_path)
    divide_all(small)


def letters(classes: int) -> str:
    """Return an entry for images that need no file, 300 of each class."""
    names = ", ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:classes])
    return f"{{source: synthetic, classes: [{names}], train: 200, test: 100}}"


def plans_of_division(folder: Path, dataset: str, partition: str) -> tuple[Plan, Plan]:
    """Return the plan of a study with one data set and one partition, and its shrunk plan."""
    file = folder / "mine.yaml"
    file.write_text(f"""
        study: {{name: mine, clients_per_round: 2}}
        datasets: {{mine: {dataset}}}
        partitions: {{p: {{{partition}}}}}
        select:
          datasets: [mine]
          partitions: [p]
          backbones: [micro_clip]
          methods: [promptfl]
          tables: [main]
          figures: []
    """)
    return shrunk_plans(file, folder)


@pytest.mark.parametrize(
    ("dataset", "partition", "clients"),
    [
        # 2 of 25 classes dominate a client, so that 25 clients have each class twice
        (letters(25), "clients: 100, dominant_classes: 0.1", 25),
        (letters(25), "clients: 100", 25),
        # one class dominates; a part of the classes is divided
        (letters(14), "clients: 140, dominant_classes: 0.1", 14),
        (letters(22), "clients: 110, novel_classes: 0.5", 11),
        # one of 7 classes dominates one client less than the others
        (letters(7), "clients: 20", 20),
        # one client or more is held out, as of 13; only the source states the number of classes
        ("{source: sklearn_digits}", "clients: 40", 10),
        ("{source: sklearn_digits}", "clients: 40, held_out: 0.04", 20),
        ("{source: sklearn_digits, keep_classes: ['1', '3', '4']}", "clients: 21", 12),
        # made-up images
        ("{recipe: cifar10}", "clients: 1000", 100),
    ],
)
def test_a_shrunk_imbalance_can_be_divided(tmp_path, dataset, partition, clients):
    """Every class dominates equally many clients, and each client has enough images to round."""
    whole, small = plans_of_division(tmp_path, dataset, f"scheme: imbalance, {partition}")
    if "recipe" not in dataset:
        divide_all(whole)
    assert small.settings.partitions["p"].settings["clients"] == clients
    divide_all(small)


@pytest.mark.parametrize(
    ("dataset", "partition", "clients"),
    [
        # the first data set is read, and would keep 2 images of a class; the others are made up
        ("{source: sklearn_digits}", "scheme: iid, clients: 1000", 100),
        ("{recipe: cifar10}", "scheme: iid, clients: 5000", 500),
        # four domains of equally many clients
        ("{recipe: pacs}", "scheme: domain, clients_per_domain: 900", 4 * 90),
    ],
)
def test_each_client_of_a_shrunk_study_has_images(tmp_path, dataset, partition, clients):
    """A tenth of many clients may be more than the images of a small data set."""
    _, small = plans_of_division(tmp_path, dataset, partition)
    for table in divide_all(small):
        frame = table.to_pandas()
        for split in (False, True):
            assert frame[frame["test"] == split]["client_id"].nunique() == clients


@pytest.mark.parametrize(
    "partition",
    [
        "scheme: dirichlet, kind: class, clients: 10, alpha: 0.1",
        "scheme: dirichlet, kind: class, clients: 20, alpha: 0.1, min_images: 1",
        "scheme: dirichlet, kind: class_capped, clients: 100, alpha: 0.1, min_images: 33",
        "scheme: domain, clients_per_domain: 6, alpha: 0.1, kind: class",
    ],
)
def test_a_dirichlet_division_leaves_each_client_images(tmp_path, partition):
    """Without `min_images`, one draw in two would leave a client no training or no test image."""
    _, small = plans_of_division(tmp_path, "{recipe: pacs}", partition)
    assert len(divide_all(small, range(10))) == 10
