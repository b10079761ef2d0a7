"""Studies of papers: their artefacts, protocols and claims."""

import pytest

from bundled_plans import STUDIES, name_of_study, plan_of
from fedloom.cli.run import bundled_studies
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import read_yaml
from fedloom.config.reading import PAPERS
from fedloom.machine.install import ROOT
from fedloom.planning.resources.estimates import workload
from fedloom.planning.run_labels import Run
from fedloom.report.tables.claim_numbers import COSTS, COUNTS, COURSE
from fedloom.report.tables.paper_claims import EACH_DOMAIN, read_claims

ARTEFACTS = read_yaml(PAPERS / "artefacts.yaml")


METRICS = {
    *(*COSTS, *COUNTS, COURSE, EACH_DOMAIN, "train_loss"),
    *("global", "participating_mean", "participating_worst", "held_out_mean"),
}  # the metrics of claims


OF_PAPERS = [file for file in STUDIES if file.parent.name in ARTEFACTS]


def settings_of(file):
    return plan_of(file).settings


def _title(file):
    """Return "Table 3" for table3.yaml."""
    kind = file.stem.rstrip("0123456789")
    return f"{kind.capitalize()} {file.stem.removeprefix(kind)}"


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_every_artefact_has_a_study_and_every_study_an_artefact(paper):
    files = {file.stem for file in OF_PAPERS if file.parent.name == paper}
    tables = {f"table{number}" for number in ARTEFACTS[paper]["tables"]}
    figures = {f"figure{number}" for number in ARTEFACTS[paper]["figures"]}
    assert files == tables | figures | set(ARTEFACTS[paper].get("others", []))


@pytest.mark.parametrize("file", OF_PAPERS, ids=name_of_study)
def test_a_study_says_its_paper_and_what_it_shows(file):
    about = settings_of(file).study
    assert about.paper == file.parent.name and len(about.shows) == 1
    if file.stem not in ARTEFACTS[about.paper].get("others", []):
        assert about.shows == [_title(file)]
    texts = [*about.deviations.values(), *about.open_questions.values()]
    assert texts and all(text.rstrip().endswith(".") for text in texts)


def test_pfpt_divides_and_its_rivals_train_as_their_released_codes():
    """Table 5 has a ResNet-8 of four times the width, shifted images and FEDIC's server steps."""
    four = settings_of(PAPERS / "pfpt/table4.yaml").partitions["pfpt_four_dir01"].settings
    cifar = settings_of(PAPERS / "pfpt/table1.yaml").partitions["pfpt_dir05"].settings
    assert {(each["kind"], each["min_images"]) for each in (four, cifar)} == {("class", 33)}
    table5 = settings_of(PAPERS / "pfpt/table5.yaml")
    networks = {b: table5.backbones[b].settings["name"] for b in table5.select.backbones}
    assert set(networks.values()) >= {"resnet8_wide", "resnet50"}
    assert {table5.methods[m].training["augment"] for m in ("creff", "fedic")} == {"shift"}
    options = table5.methods["fedic"].options
    assert (options["server_steps"], options["server_lr"]) == (100, 0.001)


def test_domains_of_pfedpg_and_sgpt_train_on_as_many_images_as_fedbns():
    """PEP-FedPT trains on the whole lists."""
    first = {}
    for name in ("pfedpg/table1", "pfedpg/table4", "pfedpg/table5", "sgpt/table2"):
        for data in settings_of(bundled_studies.find_study_file(name)).datasets.values():
            if data.source == "lists" and data.domains in (4, 6) and "fedbn" in data.label:
                first.setdefault(data.domains, set()).add(data.settings["first_per_domain"])
        scenarios = settings_of(bundled_studies.find_study_file(name)).select.scenarios
        assert {"domainnet_fedbn", "office_caltech10_fedbn"} <= {s.dataset for s in scenarios}
    assert first == {4: {62}, 6: {105}}
    whole = settings_of(PAPERS / "pep_fedpt/table2.yaml").datasets["domainnet"]
    assert "first_per_domain" not in whole.settings


def test_sgpts_pfedpg_shares_its_head_and_is_judged_by_clients():
    settings = settings_of(PAPERS / "sgpt/table1.yaml")
    (label,) = (m for m in settings.select.methods if settings.methods[m].plugin == "pfedpg")
    options = settings.methods[label].options
    assert (options["head"], options["common_model"]) == ("shared", False)


# tables whose kind has the paper's rows or columns without a mapping: options of a grid, sizes
OF_THE_KIND = {"rows": {("fedpha", 7), ("fedpha", 8)}, "columns": {("fedpha", 6)}}


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_all_rows_and_columns_of_every_published_table_stand_in_its_study(paper):
    published = read_yaml(ROOT / f"workflow/papers/{paper}/numbers.yaml")["tables"]
    assert set(published) >= set(ARTEFACTS[paper]["tables"])
    for number in ARTEFACTS[paper]["tables"]:
        settings = settings_of(PAPERS / paper / f"table{number}.yaml")
        entries = [settings.tables[label].published for label in settings.select.tables]
        used = [e for e in entries if e and (e["paper"], e["table"]) == (paper, number)]
        assert used, f"{paper}, Table {number}"
        rows = published[number]["rows"]
        columns = {column for row in rows.values() for column in row}
        for axis, all_of_axis in (("rows", set(rows)), ("columns", columns)):
            if (paper, number) not in OF_THE_KIND[axis]:
                assert {name for e in used for name in e[axis].values()} == all_of_axis, number


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
    """The numbers are the papers'; the recipe of a data set states how many domains it has."""
    settings = settings_of(bundled_studies.find_study_file(name))
    scenario = next(each for each in settings.select.scenarios if each.dataset == dataset)
    (method, *_) = settings.select.methods
    (backbone, *_) = settings.select.backbones
    run = Run(dataset, scenario.partition, backbone, method, 0)
    assert workload(settings, run, method).all_clients == clients


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_the_main_tables_of_every_paper_test_its_claims(paper):
    """A scenario of Table 1 stands for a setting of claims, and the paper's method for its row."""
    settings = settings_of(PAPERS / paper / "table1.yaml")
    entries = [settings.tables[label] for label in settings.select.tables]
    claims = [entry.settings for entry in entries if entry.kind == "claims"]
    assert {entry["paper"] for entry in claims} == {paper}
    stands_for = {pair for entry in claims for pair in entry["stands_for"]}
    assert {str(scenario) for scenario in settings.select.scenarios} <= stands_for
    compared = [c for c in claims[0]["claims"] if c["where"].startswith("Table 1,")]
    assert compared
    for claim in compared:
        sides = [*claim["above"], *claim["below"]]
        assert all(side in entry["labels"] for side in sides for entry in claims), claim["says"]


def _deciding(claim, setting, table, settings):
    """Return the scenarios of a table of claims that can decide a claim in one of its settings."""
    entry = table.settings
    study = settings.study
    metrics = {claim["metric"]}
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
    """A claim needs runs of its methods in its settings, on as many data sets as the paper has."""
    tables = [
        (settings.tables[label], settings)
        for settings in (settings_of(file) for file in OF_PAPERS if file.parent.name == paper)
        for label in settings.select.tables
        if settings.tables[label].kind == "claims"
    ]
    undecided = []
    for claim in read_claims(paper, KeyPath("x"))["claims"]:
        for setting, columns in claim["in"].items() if "untested" not in claim else ():
            each = [_deciding(claim, setting, *table) for table in tables]
            most = max(map(len, each)) if claim["average"] else len(set().union(*each))
            if most < max(1, len(columns)):
                undecided.append((claim["says"], setting))
    assert undecided == []


@pytest.mark.parametrize("file", OF_PAPERS, ids=name_of_study)
def test_claims_are_tested_on_the_runs_that_the_study_has_for_its_other_tables(file):
    """Runs are trained for tables; a claim is not a reason to train more."""
    settings = settings_of(file)
    outputs = [settings.tables[label] for label in settings.select.tables]
    outputs += [settings.figures[label] for label in settings.select.figures]

    def runs(outputs):
        return {(*vars(s).values(), b, m) for o in outputs for s in o.scenarios
                for b in o.backbones for m in o.methods}  # fmt: skip

    claims = [output for output in outputs if output.kind == "claims"]
    assert runs(claims) <= runs(output for output in outputs if output.kind != "claims")


def test_sgpts_baselines_weigh_clients_as_sgpt_does():
    """SGPT's algorithm weighs clients by N_i / N, and pFedPG's server averages nothing."""
    for name in ("table1", "table2"):
        settings = settings_of(PAPERS / f"sgpt/{name}.yaml")
        methods = [settings.methods[label] for label in settings.select.methods]
        averaging = {m.label: m.options["weighted"] for m in methods if "weighted" in m.options}
        assert len(averaging) >= 5 and all(averaging.values())
        others = {m.plugin for m in methods if m.label not in averaging}
        assert others == {"sgpt", "pfedpg"}
