"""Every table and figure of the papers has a study that says what it shows."""

from functools import cache

import pytest

from fedloom.common.checkout import ROOT
from fedloom.common.schema import read_yaml
from fedloom.config.claims import EACH_DOMAIN, read_claims
from fedloom.hooks.manifest import find
from fedloom.report.tables.claims import COSTS, COUNTS, COURSE
from fedloom.study import bundled_studies
from fedloom.study.plan import Plan
from fedloom.study.work import Workload

ARTEFACTS = read_yaml(bundled_studies.FOLDER / "artefacts.yaml")
METRICS = {
    *(*COSTS, *COUNTS, COURSE, EACH_DOMAIN, "train_loss"),
    *("global", "participating_mean", "participating_worst", "held_out_mean"),
}  # of a claim
STUDIES = [file for file in bundled_studies.studies() if file.parent.name in ARTEFACTS]


@cache
def _settings(file):
    return Plan.load([file]).settings


def _title(file):
    """Return "Table 3" for table3.yaml."""
    kind = file.stem.rstrip("0123456789")
    return f"{kind.capitalize()} {file.stem.removeprefix(kind)}"


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_every_artefact_has_a_study_and_every_study_an_artefact(paper):
    files = {file.stem for file in STUDIES if file.parent.name == paper}
    tables = {f"table{number}" for number in ARTEFACTS[paper]["tables"]}
    figures = {f"figure{number}" for number in ARTEFACTS[paper]["figures"]}
    assert files == tables | figures | set(ARTEFACTS[paper].get("others", []))


@pytest.mark.parametrize("file", STUDIES, ids=bundled_studies.name_of)
def test_a_study_says_its_paper_and_what_it_shows(file):
    about = _settings(file).about
    assert about.paper == file.parent.name and len(about.shows) == 1
    if file.stem not in ARTEFACTS[about.paper].get("others", []):
        assert about.shows == (_title(file),)
    texts = [*about.deviations.values(), *about.choices.values()]
    assert texts and all(text.rstrip().endswith(".") for text in texts)


@pytest.mark.parametrize(
    ("study", "stated"),
    [
        *((f"fedpha/{name}", ["domains"]) for name in ("table2", "table7", "figure4", "figure9")),
        ("fedpha/table4", ["clients", "pixels"]),
        ("fedpha/resnet50", ["backbone"]),
        ("pep_fedpt/table13", ["tests_of_users", "shares"]),
        ("pfedpg/table1", ["average", "personalisation", "training_images", "augmentation"]),
        ("pfpt/table4", ["dirichlet", "imbalance", "average", "fedopt", "pfedpg", "matching"]),
        ("pfpt/table7", ["seeds"]),
        ("pfpt/table5", ["server", "pixels", "resnet", "augmentation", "dirichlet"]),
        ("sgpt/table1", ["pfedpg", "rounds"]),
        ("sgpt/table2", ["training_images", "average", "augmentation"]),
        ("sgpt/figure6", ["baselines"]),
    ],
)
def test_a_study_says_what_differs_or_is_open(study, stated):
    about = _settings(bundled_studies.FOLDER / f"{study}.yaml").about
    assert about.choices.keys() | about.deviations.keys() >= set(stated)


def test_pfpt_divides_and_its_rivals_train_as_their_released_codes():
    """Table 5's ResNet-8 of four times the width, shifted images, and FEDIC's server."""
    four = (
        _settings(bundled_studies.FOLDER / "pfpt/table4.yaml")
        .partitions["pfpt_four_dir01"]
        .settings
    )
    cifar = _settings(bundled_studies.FOLDER / "pfpt/table1.yaml").partitions["pfpt_dir05"].settings
    assert {(each["kind"], each["min_images"]) for each in (four, cifar)} == {("class", 33)}
    table5 = _settings(bundled_studies.FOLDER / "pfpt/table5.yaml")
    networks = {b: table5.backbones[b].settings["name"] for b in table5.select.backbones}
    assert set(networks.values()) >= {"resnet8_wide", "resnet50"}
    assert {table5.methods[m].training["augment"] for m in ("creff", "fedic")} == {"shift"}
    options = table5.methods["fedic"].options
    assert (options["server_steps"], options["server_lr"]) == (100, 0.001)


def test_domains_of_pfedpg_and_sgpt_train_on_as_many_images_as_fedbns():
    """PEP-FedPT trains on the whole lists."""
    first = {}
    for name in ("pfedpg/table1", "pfedpg/table4", "pfedpg/table5", "sgpt/table2"):
        for data in _settings(bundled_studies.FOLDER / f"{name}.yaml").datasets.values():
            if data.source == "lists" and data.domains in (4, 6) and "fedbn" in data.label:
                first.setdefault(data.domains, set()).add(data.settings["first_per_domain"])
        scenarios = _settings(bundled_studies.FOLDER / f"{name}.yaml").select.scenarios
        assert {"domainnet_fedbn", "office_caltech10_fedbn"} <= {s.dataset for s in scenarios}
    assert first == {4: {62}, 6: {105}}
    whole = _settings(bundled_studies.FOLDER / "pep_fedpt/table2.yaml").datasets["domainnet"]
    assert "first_per_domain" not in whole.settings


def test_sgpts_pfedpg_shares_its_head_and_is_judged_by_clients():
    settings = _settings(bundled_studies.FOLDER / "sgpt/table1.yaml")
    (label,) = (m for m in settings.select.methods if settings.methods[m].plugin == "pfedpg")
    options = settings.methods[label].options
    assert (options["head"], options["common_model"]) == ("shared", False)


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_all_rows_and_columns_of_every_published_table_stand_in_its_study(paper):
    published = read_yaml(ROOT / f"workflow/published/{paper}.yaml")["tables"]
    assert set(published) >= set(ARTEFACTS[paper]["tables"])
    for number in ARTEFACTS[paper]["tables"]:
        settings = _settings(bundled_studies.FOLDER / paper / f"table{number}.yaml")
        entries = [settings.tables[label].published for label in settings.select.tables]
        used = [e for e in entries if e and (e["paper"], e["table"]) == (paper, number)]
        assert used, f"{paper}, Table {number}"
        rows = published[number]["rows"]
        columns = {column for row in rows.values() for column in row}
        if all("rows" in entry and "columns" in entry for entry in used):
            assert {row for e in used for row in e["rows"].values()} == set(rows), number
        shown = {column for e in used for column in e.get("columns", {}).values()}
        assert not shown or shown == columns, number


@pytest.mark.parametrize(
    ("name", "dataset", "clients"),
    [
        ("pep_fedpt/table2", "domainnet", 60),
        ("pep_fedpt/table2", "inaturalist_user", 1018),
        ("pfpt/table4", "four_dataset", 80),
        ("pfedpg/table2", "cifar10", 5),
    ],
)
def test_estimates_count_the_clients_of_a_partition_by_domains(name, dataset, clients):
    """As many as the paper says: the recipe states the domains."""
    settings = _settings(bundled_studies.FOLDER / f"{name}.yaml")
    scenario = next(each for each in settings.select.scenarios if each.dataset == dataset)
    method = settings.methods[settings.select.methods[0]]
    work = Workload(
        study=settings.study,
        dataset=settings.datasets[dataset],
        partition=settings.partitions[scenario.partition],
        backbone=settings.backbones[settings.select.backbones[0]],
        method=method,
        plugin=find(method.plugin),
    )
    assert work.all_clients() == clients


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_the_main_tables_of_every_paper_test_its_claims(paper):
    """Each scenario of Table 1 stands for a setting, and the paper's method for its row."""
    settings = _settings(bundled_studies.FOLDER / paper / "table1.yaml")
    entries = [settings.tables[label] for label in settings.select.tables]
    claims = [entry.settings for entry in entries if entry.kind == "claims"]
    assert {entry["paper"] for entry in claims} == {paper}
    stands_for = {pair for entry in claims for pair in entry["stands_for"]}
    assert {str(scenario) for scenario in settings.select.scenarios} <= stands_for
    compared = [c for c in claims[0]["claims"] if c["where"].startswith("Table 1,")]
    assert compared or paper == "pfpt"
    for claim in compared:
        sides = [*claim["above"], *claim["below"]]
        assert all(side in entry["labels"] for side in sides for entry in claims), claim["says"]


def _deciding(claim, setting, table, settings):
    """The scenarios of a study's table of claims that can decide a claim in one of its settings."""
    entry, study, metrics = table.settings, settings.study, {claim["metric"]}
    metrics |= {claim["below_metric"]} if "below_metric" in claim else set()

    def standing_for(name):
        found = {s for s in table.scenarios if name in entry["stands_for"].get(str(s), ())}
        partitions = {s: settings.partitions[s.partition] for s in found}
        if "held_out_mean" in metrics:
            found = {s for s in found if partitions[s].holds_out}
        if EACH_DOMAIN in metrics:
            found = {s for s in found if partitions[s].scheme == "domain"}
        return found

    lacks = [
        not metrics <= METRICS,
        not {*claim["above"], *claim["below"]} <= set(entry["labels"]),
        len(study.seeds) < 2 and not metrics <= set(COUNTS),
        "global" in metrics and not study.global_test,
        metrics & set(COSTS) and entry.get("target") is None,
    ]
    if any(lacks):
        return set()
    ends = standing_for(setting)
    if "from" not in claim:
        return ends
    ((origin, columns),) = claim["from"].items()
    starts = standing_for(origin)
    if claim["average"]:
        return ends if len(starts) >= len(columns) else set()
    return {s for s in ends if s.dataset in {start.dataset for start in starts - {s}}}


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_every_claim_is_decided_by_a_study_of_its_paper_or_says_why_none_can(paper):
    """All its methods, in all its settings, on as many data sets as the paper has numbers of."""
    tables = [
        (settings.tables[label], settings)
        for settings in (_settings(file) for file in STUDIES if file.parent.name == paper)
        for label in settings.select.tables
        if settings.tables[label].kind == "claims"
    ]
    undecided = []
    for claim in read_claims(paper, "x")["claims"]:
        for setting, columns in claim["in"].items() if "untested" not in claim else ():
            each = [_deciding(claim, setting, *table) for table in tables]
            most = max(map(len, each)) if claim["average"] else len(set().union(*each))
            if most < max(1, len(columns)):
                undecided.append((claim["says"], setting))
    assert undecided == []


def test_claims_know_the_labels_that_stand_for_a_method_on_some_data():
    pep = _settings(bundled_studies.FOLDER / "pep_fedpt/table1.yaml").tables
    assert pep["claims"].settings["labels"]["PEP-FedPT"] == "pep_fedpt"
    assert pep["claims_tiny_dir"].settings["labels"]["PEP-FedPT"] == "pep_5"
    sgpt = _settings(bundled_studies.FOLDER / "sgpt/table2.yaml").tables
    assert sgpt["claims_office"].settings["labels"]["SGPT"] == "sgpt_4_groups"
    assert sgpt["claims_domainnet"].settings["labels"]["SGPT"] == "sgpt_6_groups"
    pfedpg = _settings(bundled_studies.FOLDER / "pfedpg/table3.yaml").tables["claims"].settings
    assert pfedpg["labels"]["pFedPG"] == "pfedpg_3"


@pytest.mark.parametrize("file", STUDIES, ids=bundled_studies.name_of)
def test_claims_are_tested_on_the_runs_that_the_study_has_for_its_other_tables(file):
    """What a table shows is trained, and a claim is no reason to train more."""
    settings = _settings(file)
    outputs = [settings.tables[label] for label in settings.select.tables]
    outputs += [settings.figures[label] for label in settings.select.figures]

    def runs(outputs):
        return {(*vars(s).values(), b, m) for o in outputs for s in o.scenarios
                for b in o.backbones for m in o.methods}  # fmt: skip

    claims = [output for output in outputs if output.kind == "claims"]
    assert runs(claims) <= runs(output for output in outputs if output.kind != "claims")


def test_sgpts_baselines_weigh_clients_as_sgpt_does():
    """Its algorithm has N_i / N; pFedPG's server averages nothing of its clients."""
    for name in ("table1", "table2"):
        settings = _settings(bundled_studies.FOLDER / f"sgpt/{name}.yaml")
        methods = [settings.methods[label] for label in settings.select.methods]
        averaging = {m.label: m.options["weighted"] for m in methods if "weighted" in m.options}
        assert len(averaging) >= 5 and all(averaging.values())
        others = {m.plugin for m in methods if m.label not in averaging}
        assert others == {"sgpt", "pfedpg"}


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("sgpt/table1", "prompts", "pFedPG and FedPR ten"),
        ("pep_fedpt/table1", "average", "SGPT and FedPR weigh clients by their training images"),
        ("pfpt/table1", "scaffold", "Appendix G says that it requires a larger one"),
        ("pep_fedpt/figure8", "classes", "11 may be 1"),
        ("pep_fedpt/table2", "clients", "the caption of Table 2 has one client per domain"),
    ],
)
def test_a_study_says_where_its_paper_is_silent_or_contradicts_itself(name, key, words):
    assert words in _settings(bundled_studies.FOLDER / f"{name}.yaml").about.choices[key]
