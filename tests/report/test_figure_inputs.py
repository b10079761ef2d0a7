"""Which files a figure is made of."""

from copy import deepcopy

import numpy as np
import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.report.figures import maps
from figure_cases import (
    label_of,
    plan_of,
    resolved_with,
    series_of_kinds,
)
from shown_runs import draw


@pytest.fixture
def series(tmp_path):
    """Return a run's files of every kind: 5 classes, 2 blocks and the output, 20 images."""
    return series_of_kinds(tmp_path)


def test_what_a_table_and_a_figure_are_made_of():
    plan = plan_of(methods=["fedvpt", "pep_fedpt"], figures=["accuracy", "blocks", "prompts"])
    folder = "results/runs/digits/pathological/micro_vit"
    both = [
        f"{folder}/{method}/seed{k}/{name}.parquet"
        for method in ("fedvpt", "pep_fedpt")
        for k in (0, 1)
        for name in ("evaluation", "rounds")
    ]
    assert plan.shown_files("table", label_of("main")) == both
    assert plan.shown_files("figure", label_of("accuracy")) == both
    blocks_file = "results/block_accuracy/digits/micro_vit.parquet"
    assert plan.shown_files("figure", label_of("blocks")) == [blocks_file]
    first = f"{folder}/pep_fedpt/seed0"
    assert plan.shown_files("figure", label_of("prompts")) == [
        f"{first}/evaluation.parquet",
        f"{first}/rounds.parquet",
        f"{first}/artefacts/class_prompts.parquet",
    ], "the first seed alone"


def test_a_figure_of_shots_is_given_those_of_its_partitions():
    changed = deepcopy(default_config())
    for n in (2, 8):
        changed["partitions"][f"of_{n}"] = {"scheme": "iid", "clients": 10, "shots": n}
    changed["figures"]["own"] = {"kind": "shots", "scenarios": ["digits/of_2", "digits/of_8"]}
    plan = resolved_with(changed, {"partitions": ["of_2", "iid", "of_8"], "figures": ["own"]})
    assert plan.job("figure", label_of("own")).settings["shots"] == {"of_2": 2, "of_8": 8}


def test_artefacts_of_all_seeds_where_the_kind_says_so():
    changed = deepcopy(default_config())
    changed["figures"]["own"] = {
        "kind": "lines",
        "artefact": "pool_sizes",
        "x": "round",
        "y": "size",
    }
    plan = resolved_with(changed, {"methods": ["pfpt"], "figures": ["own"]})
    folder = "results/runs/digits/pathological/micro_vit/pfpt"
    every = {f"{folder}/seed{k}/artefacts/pool_sizes.parquet" for k in (0, 1)}
    assert every < set(plan.shown_files("figure", label_of("own")))


@pytest.mark.parametrize(
    ("section", "kind", "read"),
    [
        ("tables", "scores", {"confusion", "calibration"}),
        ("figures", "reliability", {"calibration"}),
        ("figures", "confusion", {"confusion"}),
    ],
)
def test_counts_of_answers_where_the_kind_shows_them(section, kind, read):
    changed = deepcopy(default_config())
    changed["study"]["confusion"] = True
    changed[section]["own"] = {"kind": kind}
    plan = resolved_with(
        changed, {"methods": ["fedvpt"], "figures": ["accuracy"], section: ["own"]}
    )
    folder = "results/runs/digits/pathological/micro_vit/fedvpt/seed1"
    files = plan.shown_files(section.removesuffix("s"), label_of("own"))
    found = {name for name in ("confusion", "calibration") if f"{folder}/{name}.parquet" in files}
    assert found == read


def test_errors_name_the_file(series):
    with pytest.raises(FedLoomError, match=r"soft_weights.parquet: no test image of class 9"):
        draw("soft_weights", series["soft_weights"], classes=[9])
    with pytest.raises(FedLoomError, match=r"token_tsne.parquet: no block 4; the last is 3"):
        draw("token_tsne", series["token_tsne"], blocks=[4])
    for vectors in (np.zeros((3, 2)), np.full((5, 2), np.nan)):
        with pytest.raises(FedLoomError, match="x: t-SNE needs at least 4 vectors, all of finite"):
            maps.embed(vectors, "x")
