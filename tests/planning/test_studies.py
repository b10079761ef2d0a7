"""Every study that ships is planned to its last job, and each table of a paper has a study."""

import re
import subprocess
import sys
from functools import cache
from types import SimpleNamespace as Wildcards

import pytest

from fedloom.cli.inspect import describe
from fedloom.cli.run import bundled_studies
from fedloom.common.files import read_json
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import read_yaml
from fedloom.config.kinds import KINDS
from fedloom.config.protocols import job_ends
from fedloom.config.reading import PAPERS
from fedloom.machine.install import ROOT
from fedloom.planning import job_specs
from fedloom.planning.load_plan import load_plan
from fedloom.planning.paths import end
from fedloom.planning.resources import backbone_sizes, cost
from fedloom.planning.resources.estimates import workload
from fedloom.planning.run_labels import Run
from fedloom.report.tables.claims import COSTS, COUNTS, COURSE
from fedloom.report.tables.paper_claims import EACH_DOMAIN, read_claims

STUDIES = bundled_studies.all_studies()


def _name_of(file):
    """The name that a study must have in `study.name`, by its file."""
    folder, stem = file.parent.name, file.stem
    return stem if folder == "micro" else f"{folder}_{stem}"


@cache
def _plan(path):
    return load_plan([path])


def _travels(job):
    """A job reaches its process as JSON, and is the same there."""
    assert job_specs.from_json(job_specs.to_json(job), type(job)) == job
    return job


@pytest.mark.parametrize("path", STUDIES, ids=_name_of)
def test_every_job_of_a_study_has_its_inputs_sources_and_limits(path):
    """What the rules ask of the plan, in the order of the rules."""
    plan = _plan(path)
    select = plan.settings.select
    for dataset in select.datasets:
        asked = Wildcards(dataset=dataset)
        _travels(plan.job("dataset", asked))
        assert (
            plan.sources("dataset", plan.job("dataset", asked))
            and plan.resources("dataset", asked).mem_mb > 0
        )
    for scenario in select.scenarios:
        asked = Wildcards(**vars(scenario), seed=0)
        _travels(plan.job("partition", asked))
        assert plan.sources("partition", plan.job("partition", asked))
    of_each_method = {}
    for run in plan.runs:
        method = plan.settings.methods[run.method]
        grid = method.member.grid if method.member else run.method  # one of its members will do
        study = plan.study(run)
        of_each_method[run.backbone, grid, study.rounds, study.clients_per_round] = run, method
    for run, method in of_each_method.values():
        made = {"features", "patches", "prototypes"} & set(method.needs)
        assert made == set(method.needs)
        for name in made - {"prototypes"}:
            asked = Wildcards(dataset=run.dataset, backbone=run.backbone, cache=name)
            _travels(plan.job("cache", asked))
            assert (
                plan.sources("cache", plan.job("cache", asked))
                and plan.resources("cache", asked).runtime > 0
            )
        ends = job_ends(plan.study(run))
        for number in {*ends[:2], ends[-1]}:
            asked = Wildcards(**vars(run), end=end(number))
            job = _travels(plan.job("train", asked))
            assert job.last == number and all(job.first < n <= job.last for n in job.evaluate)
            assert bool(plan.start(asked, "{end}")) == (job.first > 0)
            assert plan.resources("train", asked).runtime > 0
        _travels(plan.job("evaluate", asked))
        for artefact in method.artefacts:
            _travels(plan.job("artefact", Wildcards(**vars(run), artefact=artefact)))
    outputs = (("table", "tables", select.tables), ("figure", "figures", select.figures))
    for rule, section, labels in outputs:
        for label in labels:
            asked = Wildcards(label=label)
            job, files = plan.job(rule, asked), plan.shown_files(rule, asked)
            of_files = KINDS[section][job.kind].spec.shows != "settings"
            assert _travels(job).label == label and len(files) == len(set(files))
            assert bool(files) == of_files
            assert plan.sources(rule, job) and plan.caption(rule, asked)


def _traits(plan):
    """The properties of a study that rules treat differently."""
    settings, select = plan.settings, plan.settings.select
    methods = [settings.methods[label] for label in {run.method for run in plan.runs}]
    outputs = [settings.tables[label] for label in select.tables]
    outputs += [settings.figures[label] for label in select.figures]
    kinds = [output.keys for output in outputs]
    drawn = zip(outputs, kinds, strict=True)
    return {
        *(f"family {settings.backbones[run.backbone].family}" for run in plan.runs),
        *(f"needs {need}" for method in methods for need in method.needs),
        *(f"shows {kind.spec.shows}" for kind in kinds),
        *(f"{o.section} of artefacts" for o, kind in drawn if o.keys.needs().artefact),
        *(["a chain of jobs"] if _training_jobs(plan) > len(plan.runs) else []),
    }


EVERYTHING = """
study: {name: everything, rounds: 4, rounds_per_job: 2, seeds: [0], clients_per_round: 2,
        evaluate_every: 2, report: {last_evaluations: 1}}
backbones: {small: {library: torchvision, name: resnet8_wide, weights: none}}
methods:
  grid: {plugin: fedvpt, grid: {prompts: [1, 2], training.lr: [0.1, 0.3]}}
  fedotp: {plugin: fedotp}
  fedpha: {plugin: fedpha}
  fedavg: {plugin: fedavg}
tables:
  vit: {kind: accuracy, backbones: [micro_vit], methods: [fedvpt, pep_fedpt]}
  clip: {kind: accuracy, backbones: [micro_clip], methods: [fedotp]}
  resnet: {kind: accuracy, backbones: [small], methods: [fedavg]}
  sizes: {kind: sizes}
  settings: {kind: protocol, methods: [fedvpt], backbones: [micro_vit]}
  timings: {kind: timings, backbones: [micro_clip], methods: [fedpha]}
  ranked: {kind: ranked, backbones: [micro_vit], methods: [grid]}
figures:
  layers: {kind: block_accuracy, backbones: [micro_vit]}
  own_weights: {kind: soft_weights, backbones: [micro_vit], methods: [pep_fedpt], classes: [0]}
  options: {kind: option_line, backbones: [micro_vit], methods: [grid],
            metrics: [participating_mean]}
select:
  datasets: [digits]
  partitions: [iid]
  backbones: [micro_vit, micro_clip, small]
  methods: [fedvpt, pep_fedpt, fedotp, fedpha, fedavg, grid]
  tables: [vit, clip, resnet, sizes, settings, timings, ranked]
  figures: [layers, own_weights, options]
"""


def test_snakemake_builds_a_study_that_has_what_all_others_have(tmp_path):
    """The rules are the same for each of them."""
    file = tmp_path / "everything.yaml"
    file.write_text(EVERYTHING)
    plan = _plan(file)
    assert set().union(*(_traits(_plan(path)) for path in STUDIES)) <= _traits(plan)
    _dry_run(file, plan, tmp_path)


def _training_jobs(plan):
    return sum(len(job_ends(plan.study(run))) for run in plan.runs)


def _dry_run(path, plan, folder):
    """Snakemake lists every training job, with the inputs that its method needs."""
    command = [sys.executable, "-m", "snakemake", "-n", "-s", ROOT / "Snakefile"]
    done = subprocess.run(
        [*command, "--quiet", "host", "--configfile", path, "--directory", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    settings = plan.settings
    listed = re.split(r"^rule ", done.stdout + done.stderr, flags=re.MULTILINE)
    trained = [job for job in listed if job.startswith("train:")]
    assert len(trained) == _training_jobs(plan), path
    for job in trained:
        method = settings.methods[re.search(r"wildcards: .*method=([^,]+)", job)[1]]
        inputs = re.search(r"input: (.*)", job)[1]
        read = set(re.findall(r"results/(features|patches|prototypes)/", inputs))
        assert read == set(method.needs)


def test_studies_are_named_as_their_files():
    assert {_name_of(path) for path in STUDIES} == {_plan(path).name for path in STUDIES}
    assert all(_plan(path).name == _name_of(path) for path in STUDIES)


def test_a_label_means_one_thing_in_all_studies():
    """Stores, partitions, caches and runs are named by labels: another meaning overwrites them."""
    seen = {}
    for path in STUDIES:
        plan = _plan(path)
        settings = plan.settings
        for scenario in settings.select.scenarios:
            dataset, partition = vars(scenario).values()
            _check(seen, f"dataset {dataset}", settings.datasets[dataset], path)
            _check(seen, f"partition {scenario}", settings.partitions[partition], path)
        for label in settings.select.backbones:
            _check(seen, f"backbone {label}", settings.backbones[label], path)
        for run in plan.runs:
            study = plan.study(run)
            spec = plan.run_spec(run), study.evaluate_every, study.global_test
            _check(seen, run.path, spec, path)


def _check(seen, name, meaning, path):
    where, known = seen.setdefault(name, (path, meaning))
    assert known == meaning, f"{name} differs between {where} and {path}"


def test_the_sizes_of_every_backbone_ship():
    backbones = [b for path in STUDIES for b in _plan(path).settings.backbones.values()]
    assert {backbone_sizes.key(b) for b in backbones} == set(read_json(backbone_sizes.SHIPPED))


def test_the_list_of_studies_says_what_each_shows_and_needs():
    assert describe.study_facts(PAPERS / "pep_fedpt/table8.yaml") == [
        "pep_fedpt/table8",
        "Table 8",
        "inaturalist_user, domainnet, tiny_imagenet",
        "pep_no_prior, pep_fedpt, pep_5_no_prior, pep_5",
        18,
        cost.study_cost(_plan(PAPERS / "pep_fedpt/table8.yaml")).gpu_hours(),
    ]
    grid = describe.study_facts(PAPERS / "fedpha/figure5.yaml")
    assert grid[3:5] == ["fedpha_lengths_3 (512)", 512]
    micro = describe.study_facts(bundled_studies.OTHERS / "micro/pep_micro_domains.yaml")
    assert micro[1].startswith("Feature heterogeneity") and micro[2] == "glyphs"
    names = [_name_of(file) for file in STUDIES if file.parent.name == "pep_fedpt"]
    assert names.index("pep_fedpt_table10") == names.index("pep_fedpt_table9") + 1


# ---- of papers ----------------------------------------------------------------------------------

ARTEFACTS = read_yaml(PAPERS / "artefacts.yaml")
METRICS = {
    *(*COSTS, *COUNTS, COURSE, EACH_DOMAIN, "train_loss"),
    *("global", "participating_mean", "participating_worst", "held_out_mean"),
}  # of a claim
OF_PAPERS = [file for file in STUDIES if file.parent.name in ARTEFACTS]


def _settings(file):
    return _plan(file).settings


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


@pytest.mark.parametrize("file", OF_PAPERS, ids=_name_of)
def test_a_study_says_its_paper_and_what_it_shows(file):
    about = _settings(file).study
    assert about.paper == file.parent.name and len(about.shows) == 1
    if file.stem not in ARTEFACTS[about.paper].get("others", []):
        assert about.shows == [_title(file)]
    texts = [*about.deviations.values(), *about.open_questions.values()]
    assert texts and all(text.rstrip().endswith(".") for text in texts)


def test_pfpt_divides_and_its_rivals_train_as_their_released_codes():
    """Table 5's ResNet-8 of four times the width, shifted images, and FEDIC's server."""
    four = _settings(PAPERS / "pfpt/table4.yaml").partitions["pfpt_four_dir01"].settings
    cifar = _settings(PAPERS / "pfpt/table1.yaml").partitions["pfpt_dir05"].settings
    assert {(each["kind"], each["min_images"]) for each in (four, cifar)} == {("class", 33)}
    table5 = _settings(PAPERS / "pfpt/table5.yaml")
    networks = {b: table5.backbones[b].settings["name"] for b in table5.select.backbones}
    assert set(networks.values()) >= {"resnet8_wide", "resnet50"}
    assert {table5.methods[m].training["augment"] for m in ("creff", "fedic")} == {"shift"}
    options = table5.methods["fedic"].options
    assert (options["server_steps"], options["server_lr"]) == (100, 0.001)


def test_domains_of_pfedpg_and_sgpt_train_on_as_many_images_as_fedbns():
    """PEP-FedPT trains on the whole lists."""
    first = {}
    for name in ("pfedpg/table1", "pfedpg/table4", "pfedpg/table5", "sgpt/table2"):
        for data in _settings(bundled_studies.file_of(name)).datasets.values():
            if data.source == "lists" and data.domains in (4, 6) and "fedbn" in data.label:
                first.setdefault(data.domains, set()).add(data.settings["first_per_domain"])
        scenarios = _settings(bundled_studies.file_of(name)).select.scenarios
        assert {"domainnet_fedbn", "office_caltech10_fedbn"} <= {s.dataset for s in scenarios}
    assert first == {4: {62}, 6: {105}}
    whole = _settings(PAPERS / "pep_fedpt/table2.yaml").datasets["domainnet"]
    assert "first_per_domain" not in whole.settings


def test_sgpts_pfedpg_shares_its_head_and_is_judged_by_clients():
    settings = _settings(PAPERS / "sgpt/table1.yaml")
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
        settings = _settings(PAPERS / paper / f"table{number}.yaml")
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
    """As many as the paper says: the recipe states the domains."""
    settings = _settings(bundled_studies.file_of(name))
    scenario = next(each for each in settings.select.scenarios if each.dataset == dataset)
    (method, *_), (backbone, *_) = settings.select.methods, settings.select.backbones
    run = Run(dataset, scenario.partition, backbone, method, 0)
    assert workload(settings, run, method).all_clients == clients


@pytest.mark.parametrize("paper", ARTEFACTS)
def test_the_main_tables_of_every_paper_test_its_claims(paper):
    """Each scenario of Table 1 stands for a setting, and the paper's method for its row."""
    settings = _settings(PAPERS / paper / "table1.yaml")
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
        for settings in (_settings(file) for file in OF_PAPERS if file.parent.name == paper)
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


@pytest.mark.parametrize("file", OF_PAPERS, ids=_name_of)
def test_claims_are_tested_on_the_runs_that_the_study_has_for_its_other_tables(file):
    """Runs are trained for tables; a claim is not a reason to train more."""
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
        settings = _settings(PAPERS / f"sgpt/{name}.yaml")
        methods = [settings.methods[label] for label in settings.select.methods]
        averaging = {m.label: m.options["weighted"] for m in methods if "weighted" in m.options}
        assert len(averaging) >= 5 and all(averaging.values())
        others = {m.plugin for m in methods if m.label not in averaging}
        assert others == {"sgpt", "pfedpg"}
