"""The studies that ship: their jobs, labels and sizes."""

import re
import subprocess
import sys
from types import SimpleNamespace as Wildcards

import pytest

from bundled_plans import STUDIES, name_of_study, plan_of
from fedloom.cli.inspect import studies
from fedloom.cli.run import bundled_studies
from fedloom.common.files import read_json
from fedloom.config.kinds import KINDS
from fedloom.config.protocols import job_ends
from fedloom.config.reading import PAPERS
from fedloom.machine.install import ROOT
from fedloom.planning import job_specs
from fedloom.planning.paths import four_digits
from fedloom.planning.resources import backbone_sizes, cost


def _travels(job):
    """Check that a job is the same after it travelled to its process as JSON, and return it."""
    assert job_specs.from_json(job_specs.to_json(job), type(job)) == job
    return job


every_study = pytest.mark.parametrize("path", STUDIES, ids=name_of_study)


@every_study
def test_stores_and_partitions_of_a_study_have_sources(path):
    plan = plan_of(path)
    select = plan.settings.select
    for dataset in select.datasets:
        asked = Wildcards(dataset=dataset)
        job = _travels(plan.job("dataset", asked))
        assert plan.sources("dataset", job) and plan.resources("dataset", asked).mem_mb > 0
    for scenario in select.scenarios:
        asked = Wildcards(**vars(scenario), seed=0)
        job = _travels(plan.job("partition", asked))
        assert plan.sources("partition", job)


def _runs_that_differ(plan):
    """Return a run and its method for each backbone, grid of methods, and schedule of the plan."""
    found = {}
    for run in plan.runs:
        method = plan.settings.methods[run.method]
        grid = method.member.grid if method.member else run.method  # one member stands for all
        study = plan.study(run)
        found[run.backbone, grid, study.rounds, study.clients_per_round] = run, method
    return found.values()


@every_study
def test_caches_of_a_study_have_sources_and_limits(path):
    plan = plan_of(path)
    for run, method in _runs_that_differ(plan):
        made = {"features", "patches", "prototypes"} & set(method.needs)
        assert made == set(method.needs)
        for name in made - {"prototypes"}:
            asked = Wildcards(dataset=run.dataset, backbone=run.backbone, cache=name)
            job = _travels(plan.job("cache", asked))
            assert plan.sources("cache", job) and plan.resources("cache", asked).runtime > 0


@every_study
def test_jobs_of_the_runs_of_a_study_have_rounds_and_limits(path):
    plan = plan_of(path)
    for run, method in _runs_that_differ(plan):
        ends = job_ends(plan.study(run))
        for number in {*ends[:2], ends[-1]}:
            asked = Wildcards(**vars(run), end=four_digits(number))
            job = _travels(plan.job("train", asked))
            assert job.last == number and all(
                job.after < n <= job.last for n in job.evaluated_rounds
            )
            assert bool(plan.previous_job_file(asked, "{end}")) == (job.after > 0)
            assert plan.resources("train", asked).runtime > 0
        _travels(plan.job("evaluate", asked))
        for artefact in method.artefacts:
            _travels(plan.job("artefact", Wildcards(**vars(run), artefact=artefact)))


@every_study
def test_tables_and_figures_of_a_study_have_files_sources_and_captions(path):
    plan = plan_of(path)
    select = plan.settings.select
    outputs = (("table", "tables", select.tables), ("figure", "figures", select.figures))
    for rule, section, labels in outputs:
        for label in labels:
            asked = Wildcards(label=label)
            job = plan.job(rule, asked)
            files = plan.shown_files(rule, asked)
            of_files = KINDS[section][job.kind].spec.shows != "settings"
            assert _travels(job).label == label and len(files) == len(set(files))
            assert bool(files) == of_files
            assert plan.sources(rule, job) and plan.caption(rule, asked)


def _traits(plan):
    """Return the properties of a study that rules treat differently."""
    settings = plan.settings
    select = plan.settings.select
    methods = [settings.methods[label] for label in {run.method for run in plan.runs}]
    outputs = [settings.tables[label] for label in select.tables]
    outputs += [settings.figures[label] for label in select.figures]
    kinds = [output.entry for output in outputs]
    drawn = zip(outputs, kinds, strict=True)
    return {
        *(f"family {settings.backbones[run.backbone].family}" for run in plan.runs),
        *(f"needs {need}" for method in methods for need in method.needs),
        *(f"shows {kind.spec.shows}" for kind in kinds),
        *(f"{o.section} of artefacts" for o, kind in drawn if o.entry.needs().artefact),
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
    """One study with the properties of all others suffices, because they share the rules."""
    file = tmp_path / "everything.yaml"
    file.write_text(EVERYTHING)
    plan = plan_of(file)
    assert set().union(*(_traits(plan_of(path)) for path in STUDIES)) <= _traits(plan)
    _dry_run(file, plan, tmp_path)


def _training_jobs(plan):
    return sum(len(job_ends(plan.study(run))) for run in plan.runs)


def _dry_run(path, plan, folder):
    """Check that Snakemake lists every training job, with the inputs that its method needs."""
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
    assert {name_of_study(path) for path in STUDIES} == {plan_of(path).name for path in STUDIES}
    assert all(plan_of(path).name == name_of_study(path) for path in STUDIES)


def test_a_label_means_one_thing_in_all_studies():
    """Stores, partitions, caches and runs are named by labels: another meaning overwrites them."""
    seen = {}
    for path in STUDIES:
        plan = plan_of(path)
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
    backbones = [b for path in STUDIES for b in plan_of(path).settings.backbones.values()]
    assert {backbone_sizes.size_key(b) for b in backbones} == set(read_json(backbone_sizes.SHIPPED))


def test_the_list_of_studies_says_what_each_shows_and_needs():
    assert studies.study_facts(PAPERS / "pep_fedpt/table8.yaml") == [
        "pep_fedpt/table8",
        "Table 8",
        "inaturalist_user, domainnet, tiny_imagenet",
        "pep_no_prior, pep_fedpt, pep_5_no_prior, pep_5",
        18,
        cost.study_cost(plan_of(PAPERS / "pep_fedpt/table8.yaml")).gpu_hours(),
    ]
    grid = studies.study_facts(PAPERS / "fedpha/figure5.yaml")
    assert grid[3:5] == ["fedpha_lengths_3 (512)", 512]
    micro = studies.study_facts(bundled_studies.OTHERS / "micro/pep_micro_domains.yaml")
    assert micro[1].startswith("Feature heterogeneity") and micro[2] == "glyphs"
    names = [name_of_study(file) for file in STUDIES if file.parent.name == "pep_fedpt"]
    assert names.index("pep_fedpt_table10") == names.index("pep_fedpt_table9") + 1
