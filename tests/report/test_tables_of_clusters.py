"""How prompts or groups match classes and superclasses."""

import pandas as pd
import pytest
from sklearn.metrics import adjusted_mutual_info_score

from fedloom.config.reading import read
from fedloom.data.sources import glyphs
from fedloom.machine.install import ROOT
from fedloom.report.tables import clustering
from refusals import refused
from shown_runs import shown, table_kind


def test_clustering_by_hand(tmp_path):
    """Group 0 stands for "fur", group 2 for "fin", group 1 for nothing: three of five are right."""
    columns = {
        "class": ["cat", "dog", "cod", "cod", "cat", *["cat"] * 3, *["cod"] * 3],
        "test": [True] * 5 + [False] * 6,
        "group": [0, 0, 0, 2, 1, 0, 0, 1, 1, 1, 1],
        "cluster": [0] * 5 + [1, 1, 1, 2, 2, 1],
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "groups.parquet")
    run = shown(artefact=tmp_path / "groups.parquet")
    labels = {"cat": "fur", "dog": "fur", "cod": "fin"}
    kind = table_kind("clustering", superclasses="c.yaml")
    # training: group 0 lies in cluster 1 (2 images), group 1 half in each (2 of 4);
    # k-means keeps 3 cats and 2 cods together
    found = kind.measure(run, labels)
    known = [[0] * 5, [0, 0, 1, 1, 0], [0, 0, 0, 2, 1]]  # nothing, superclasses, groups
    none, all_, some = (100 * adjusted_mutual_info_score(known[1], other) for other in known)
    assert (none, all_) == (0, pytest.approx(100))
    assert found.pop("information") == pytest.approx(some)
    assert found == {
        "accuracy": 60,
        "congruence": 100 * (2 + 2) / (3 + 2),
        "largest": 60,
    }
    del labels["cod"]
    with refused("c.yaml", "'cod'"):
        kind.measure(run, labels)


def test_congruence_sums_the_largest_overlap_of_each_group_and_of_each_class():
    """One group for all images overlaps with one of three clusters, and not with each."""
    clusters = pd.Series([0, 0, 1, 1, 2, 2])
    classes = pd.Series(list("aaaabb"))  # k-means keeps two of "a" together, and both of "b"
    group = pd.Series([0] * 6)
    assert clustering.congruence(group, clusters, classes) == 100 * 2 / 4
    assert clustering.congruence(clusters, clusters, classes) == 100 * 6 / 4, "above 100 %"
    assert clustering.congruence(classes, clusters, classes) == 100


@pytest.mark.parametrize(("name", "count"), [("glyphs", 3), ("cifar100", 20)])
def test_superclasses_that_ship(name, count):
    labels = read(ROOT / f"workflow/resources/superclasses/{name}.yaml")
    counts = pd.Series(labels).value_counts()
    assert len(counts) == count
    if name == "glyphs":
        assert set(labels) == {glyphs.glyph_name(glyph) for glyph in glyphs.classes("target")}
    else:
        assert (counts == 5).all()
