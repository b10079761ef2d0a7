"""Papers' numbers: read alike everywhere, in agreement with themselves, and shown beside ours."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.common import schema
from fedloom.config.reading import read
from fedloom.machine.install import ROOT
from fedloom.report.tables import build_table, costs, layout, published, summary
from shown_runs import filled, shown, table_job, table_kind

FILES = {
    path.parent.name: path for path in sorted((ROOT / "workflow/papers").glob("*/numbers.yaml"))
}
MEAN = "participating_mean"
WORST = "participating_worst"


def _rows(paper, table):
    return read(FILES[paper])["tables"][table]["rows"]


@pytest.mark.parametrize("paper", FILES)
def test_both_readers_of_yaml_see_the_same_numbers(paper):
    """One of the readers of YAML might take 5e-4 for a number, and the other for a text."""
    tables = schema.read_yaml(FILES[paper])["tables"]
    assert tables == read(FILES[paper])["tables"]
    for table in tables.values():
        for column in (column for row in table["rows"].values() for column in row.values()):
            numbers = [value for metric, value in column.items() if metric != "optimizer"]
            for value in numbers:
                parts = list(value.values() if isinstance(value, dict) else value)
                assert 1 <= len(parts) <= 2 and all(isinstance(n, int | float) for n in parts)


def test_fedphas_averages_over_projection_and_margin_are_those_of_their_panels():
    rows = _rows("fedpha", 8)
    alphas = ("0.5", "1", "1.5", "2")
    rhos = ("0.3", "0.5", "0.8", "1")
    names = ["Caltech101", "Food101", "Flowers102", "OxfordPets", "DTD"]

    def printed(alpha, rho, name):
        return rows[f"alpha {alpha}, rho {rho}"][name][MEAN][0]

    for name in [*names, "Average"]:
        panel = np.array([[printed(a, r, name) for r in rhos] for a in alphas])
        assert [printed(a, "all", name) for a in alphas] == pytest.approx(panel.mean(1), abs=0.0051)
        assert [printed("all", r, name) for r in rhos] == pytest.approx(panel.mean(0), abs=0.0051)
        assert printed("all", "all", name) == pytest.approx(panel.mean(), abs=0.0051)
    for row in rows.values():
        mean = np.mean([row[name][MEAN][0] for name in names])
        assert row["Average"][MEAN][0] == pytest.approx(mean, abs=0.0061), "rounded twice"


def test_fedmgps_combined_metric_is_that_of_its_printed_accuracies():
    cells = [cell for row in _rows("fedmgp", 1).values() for cell in row.values()]
    assert len(cells) == 6 * 9
    for own, base, novel, combined in ([n for (n,) in cell.values()] for cell in cells):
        harmonic = 2 * base * novel / (base + novel)
        assert (own + harmonic) / 2 == pytest.approx(combined, abs=0.0101), "of rounded numbers"


def test_fedphas_combinations_are_in_order():
    *ranked, mean = [row["Office31"][MEAN][0] for row in _rows("fedpha", 7).values()]
    assert ranked == sorted(ranked, reverse=True) and len(ranked) == 11
    assert ranked[-1] < mean < ranked[-2]


def test_sgpt_repeats_what_pfedpg_prints():
    ours = _rows("sgpt", 2)
    theirs = _rows("pfedpg", 1)
    assert len(ours) == 7
    for name in ("Per-FedAvg", "FedRep", "FedVPT", "FedVPT-D", "pFedPG"):
        for data, metrics in ours[name].items():
            assert metrics == {k: v for k, v in theirs[name][data].items() if k != "params_up"}


@pytest.mark.parametrize(
    ("paper", "count", "tolerance"),
    [
        ("fedpha", 12, 0.0076),  # one mean is cut off, not rounded
        ("pfedpg", 30, 0.0051),
        ("sgpt", 14, 0.0051),
    ],
)  # PEP-FedPT is missing: its averages are over clients
def test_averages_over_domains_are_those_of_the_printed_domains(paper, count, tolerance):
    """Averages agree to the last digit, in every cell that prints domains."""
    tables = read(FILES[paper])["tables"].values()
    cells = [
        ([value[0] for name, value in cell.items() if name.startswith("domain_")], cell)
        for table in tables
        for row in table["rows"].values()
        for cell in row.values()
    ]
    printed = [(domains, cell[MEAN][0]) for domains, cell in cells if domains]
    assert len(printed) == count
    for domains, mean in printed:
        assert np.mean(domains) == pytest.approx(mean, abs=tolerance)


HELD_OUT = "held_out_mean"


@pytest.mark.parametrize(
    ("paper", "table", "row", "column", "numbers"),
    [
        ("fedpha", 3, "FedPHA", "not stated", {"decomposition_percent": {"below": 1}}),
        ("fedpha", 6, "OfficeHome", "OfficeHome", {"test": [3113]}),
        ("fedpha", 8, "alpha 1, rho 0.8", "Average", {MEAN: [97.13]}),
        ("sgpt", 5, "SGPT ViT-B/16", "not stated", {"params_up": [1e5]}),
        ("sgpt", 1, "SGPT", "CIFAR-100 s=10", {WORST: [73.85]}),
        ("sgpt", 1, "FedVPT", "CIFAR-100 s=50", {"global": [82.35]}),
        ("pfedpg", 1, "FedVPT-D", "DomainNet", {"params_up": [9220]}),
        ("pfedpg", 1, "pFedPG", "DomainNet", {"domain_quickdraw": [60.0]}),
        ("pfedpg", 5, "200", "CIFAR-10 Dir(0.1)", {MEAN: [83.53]}),
        ("pep_fedpt", 1, "PEP-FedPT", "CIFAR-100 pathological", {WORST: [84.74, 3.12]}),
        ("pep_fedpt", 3, "pFedPG", "Tiny-ImageNet", {HELD_OUT: [4.81, 0.48]}),
        ("pep_fedpt", 6, "FedPR", "CIFAR-100", {"million_params": {"above": 8.4}}),
        ("pep_fedpt", 12, "8, 9, 10", "CIFAR-100", {MEAN: [93.55, 0.14]}),
        ("pep_fedpt", 13, "SGPT", "iNaturalist", {HELD_OUT: [53.81, 0.12]}),
        ("pfpt", 9, "PFPT", "CIFAR-10 Dir(0.5)", {"lr": [5e-4]}),
        ("pfpt", 9, "SCAFFOLD-PT", "4-dataset imbalance", {"clients": [80], "optimizer": "sgd"}),
    ],
)
def test_a_cell_as_read_in_the_paper(paper, table, row, column, numbers):
    assert _rows(paper, table)[row][column].items() >= numbers.items()


def test_what_peps_text_counts_is_what_its_table_prints():
    """PEP-FedPT sends head, shared prompt, class prompts and three blocks' prototypes 12 times."""
    numbers = 12 * (100 + 1 + 100 + 3 * 100) * 768
    cell = _rows("pep_fedpt", 6)["PEP-FedPT"]["CIFAR-100"]
    assert cell["million_params"] == [pytest.approx(numbers / 1e6, abs=0.05)]
    assert cell["rounds"] == [12]


@pytest.mark.parametrize(
    ("mean", "std", "value", "text"),
    [
        (84.8612, 0.0, [84.86], "as printed"),
        (84.8612, 1e-14, [84.86], "as printed"),
        (84.866, 0.0, [84.86], ""),  # printed 84.87
        (84.8612, 0.0, [84.86, 0.01], "within 1 SD"),
        (84.8612, 0.0005, [84.86], "within 1 SD"),  # no nearer than it is printed
        (12.4, 0.0, [12], ""),
        (99.8, 0.0, [100.0], ""),
    ],
)
def test_without_a_deviation_only_the_printed_digits_agree(mean, std, value, text):
    """A count that no seed changes has no deviation to measure a distance with."""
    assert published.verdict(mean, std, published.PublishedNumber.from_yaml(value)) == text


def _beside(value):
    runs = [shown(), shown(method="other")]
    frame = summary.summarise(runs, [{"params_up": 10.0}] * 2)
    entry = {"rows": {"m": "Ours"}, "columns": {"d/p": "X"}, "values": {"Ours": {"X": value}}}
    return layout.summary_text(
        published.join_published(frame, entry), table_kind("parameters").column
    )


def test_published_numbers_stand_beside_the_measured_ones():
    for value, text in (({"below": 1}, "< 1"), ({"above": 1}, "> 1"), ([1], "1")):
        texts = _beside({"params_up": value, "rounds": [12]})
        assert texts.cells["params_up_published"].tolist() == [text, "-"]
        assert not any(texts.marks["params_up_published"])
        assert texts.titles == ["Method", "Sent by a client", "Sent by a client, published"]


def test_a_heading_spells_a_domain_as_its_data_set_does():
    """The domains Real World and clipart of data sets must not become real World or Clipart."""
    numbers = {"domain_Real World": 10.0, "domain_clipart": 10.0}
    printed = {metric: [number] for metric, number in numbers.items()}
    frame = summary.summarise([shown()], [numbers])
    entry = {"rows": {"m": "M"}, "values": {"M": {"X": printed}}}
    texts = layout.summary_text(
        published.join_published(frame, entry), table_kind("domains").column
    )
    domains = [title.removesuffix(", published") for title in texts.titles[1:]]
    assert domains == ["Real World", "Real World", "clipart", "clipart"]


def test_parameters_are_of_one_client_in_one_round(tmp_path):
    """Two clients sent 8 numbers each in round 1, and four sent 6 each in round 2."""
    columns = {"clients": [2, 4], "bytes_up": [64, 96], "bytes_down": [80, 160]}
    filled(columns, "rounds").to_parquet(tmp_path / "rounds.parquet")
    run = shown(rounds=tmp_path / "rounds.parquet")
    assert costs.sent(run) == {"params_up": 7, "params_down": 10}


@pytest.mark.parametrize(
    ("mean", "std", "value", "text"),
    [
        (90.0, 3.0, [95.0, 4.0], "95 ± 4 (within 1 SD)"),  # 5 apart, sqrt(9 + 16) = 5
        (90.0, 3.0, [95.1, 4.0], "95 ± 4 (within 2 SD)"),
        (90.0, 3.0, [79.9, 4.0], "80 ± 4 (beyond 2 SD)"),
        (90.0, 3.0, [93.0], "93 (within 1 SD)"),
        (90.0, 3.0, [97.0], "97 (beyond 2 SD)"),
        (90.0, 3.0, {"above": 80}, "> 80"),
        (90.0, None, [90.0, 1.0], "90 ± 1"),
    ],
)
def test_a_published_number_says_how_far_it_is_from_ours(mean, std, value, text):
    """Our runs are two seeds around the mean, or one seed, which has no deviation."""
    measured = [mean - std / 2**0.5, mean + std / 2**0.5] if std else [mean]
    runs = [shown(seed=seed) for seed in range(len(measured))]
    frame = summary.summarise(runs, [{"params_up": number} for number in measured])
    entry = {"rows": {"m": "Ours"}, "columns": {"d/p": "X"}}
    entry["values"] = {"Ours": {"X": {"params_up": value}}}
    table = layout.summary_text(
        published.join_published(frame, entry), table_kind("parameters").column
    )
    assert table.cells["params_up_published"].tolist() == [text]


@pytest.mark.parametrize(("seeds", "explained"), [(1, False), (2, True)])
def test_the_unit_sd_is_explained_where_a_number_has_it(seeds, explained, tmp_path):
    """A single seed has no deviation, so no difference is measured in deviations."""
    runs = []
    for seed in range(seeds):
        file = tmp_path / f"{seed}.parquet"
        filled({"clients": [2], "bytes_up": [64 + seed], "bytes_down": [80]}, "rounds").to_parquet(
            file
        )
        runs.append(shown(seed=seed, rounds=file))
    values = {"Ours": {"X": {"params_up": [99]}}}
    entry = {"rows": {"m": "Ours"}, "columns": {"d/p": "X"}, "values": values}
    entry |= {"citation": "A paper", "table": 3}
    built = build_table(replace(table_job("parameters"), published=entry), runs)
    assert any("SD: the standard deviation" in line for line in built.details) == explained
    assert built.details[-1] == "Published, in brackets or a column: A paper, Table 3."
    assert "A paper" not in built.caption
