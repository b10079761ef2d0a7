"""The chart of a partition."""

import numpy as np

from fedloom.common.files import write_table
from fedloom.report import partition_chart
from partitioned import CLASSES, DOMAINS, make, with_domains


def test_a_chart_has_the_same_bytes_every_time_whatever_its_names(tmp_path):
    labels, test, domains = with_domains(0)
    spec = {"scheme": "domain", "clients_per_domain": 2, "held_out_per_domain": 1}
    table = make(spec, 0, (labels, test, np.char.add("$x_{$ ", domains)))
    write_table(tmp_path / "p.parquet", table)
    names = [f"$x_{{$ {c}" for c in range(CLASSES)]
    for name in ("a", "b"):
        out = (tmp_path / f"{name}.png", tmp_path / f"{name}.pdf")
        partition_chart.draw_partition(tmp_path / "p.parquet", names, *out)
    for kind in ("png", "pdf"):
        first, second = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("a", "b"))
        assert first == second and len(first) > 1000


def test_test_images_of_no_domain_are_not_taken_for_a_further_domain(tmp_path, monkeypatch):
    """Every user of federated iNaturalist is one domain, and gets test images without a user."""
    labels, test, domains = with_domains(0)
    spec = {"scheme": "domain", "clients_per_domain": 1}
    table = make(spec, 0, (labels, test, np.where(test, "", domains)))
    write_table(tmp_path / "p.parquet", table)
    labelled = []
    monkeypatch.setattr(partition_chart, "_label_domains", lambda _, names: labelled.extend(names))
    out = (tmp_path / "p.png", tmp_path / "p.pdf")
    partition_chart.draw_partition(tmp_path / "p.parquet", [""] * CLASSES, *out)
    assert labelled == DOMAINS


def test_the_chart_shows_every_count_and_names_the_domains():
    counts = np.array([[9, 0, 4], [1, 3, 0], [0, 5, 5]])
    out = np.array([False, True, False])
    figure = partition_chart._figure(counts, out, ["ink", "ink", "oil"], ["x", "y", "z"])
    axes = figure.axes[0]
    shown = {
        (int(x), int(y)) for dots in axes.collections for x, y in np.asarray(dots.get_offsets())
    }
    assert shown == set(zip(*np.nonzero(counts), strict=True))
    filled = axes.collections[0].get_sizes()
    np.testing.assert_allclose(filled / filled[0], [1, 4 / 9, 5 / 9, 5 / 9])
    assert [text.get_text() for text in axes.texts] == ["ink", "oil"]
    assert "held out" in [text.get_text() for text in figure.legends[0].get_texts()]
