"""Every study that ships is planned to its last job, also where data and weights are missing."""

import re
import subprocess
import sys
from functools import cache
from types import SimpleNamespace as Wildcards

import pytest
from fedloom.config.rounds import job_ends

from fedloom.commands import describe
from fedloom.common.checkout import ROOT
from fedloom.config.kinds import kind_of
from fedloom.study import bundled_studies, cost, jobs
from fedloom.study.paths import end
from fedloom.study.plan import Plan

STUDIES = bundled_studies.studies()


@cache
def _plan(path):
    return Plan.load([path])


def _travels(job):
    """A job reaches its process as JSON, and is the same there."""
    assert jobs.from_json(jobs.to_json(job), type(job)) == job
    return job


@pytest.mark.parametrize("path", STUDIES, ids=bundled_studies.name_of)
def test_every_job_of_a_study_has_its_inputs_sources_and_limits(path):
    """What the rules ask of the plan, in the order of the rules."""
    plan = _plan(path)
    select = plan.settings.select
    for dataset in select.datasets:
        asked = Wildcards(dataset=dataset)
        _travels(plan.dataset_job(asked))
        assert plan.dataset_sources(asked) and plan.resources("dataset", asked).mem_mb > 0
    for scenario in select.scenarios:
        asked = Wildcards(**vars(scenario), seed=0)
        _travels(plan.partition_job(asked))
        assert plan.partition_sources(asked)
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
            _travels(plan.cache_job(asked))
            assert plan.cache_sources(asked) and plan.resources("cache", asked).runtime > 0
        ends = job_ends(plan.study(run))
        for number in {*ends[:2], ends[-1]}:
            asked = Wildcards(**vars(run), end=end(number))
            job = _travels(plan.train_job(asked))
            assert job.last == number and all(job.first < n <= job.last for n in job.evaluate)
            assert bool(plan.start(asked, "{end}")) == (job.first > 0)
            assert plan.resources("train", asked).runtime > 0
        _travels(plan.evaluate_job(asked))
        for artefact in method.artefacts:
            _travels(plan.artefact_job(Wildcards(**vars(run), artefact=artefact)))
    for section, labels in (("tables", select.tables), ("figures", select.figures)):
        for label in labels:
            asked = Wildcards(label=label)
            job = plan.table_job(asked) if section == "tables" else plan.figure_job(asked)
            files = plan.shown_files(section, asked)
            of_files = kind_of(section, job.kind).shows != "settings"
            assert _travels(job).label == label and len(files) == len(set(files))
            assert bool(files) == of_files
            assert plan.output_sources(section, asked) and plan.caption(section, asked)


def _traits(plan):
    """What a study has that rules treat in a way of their own."""
    settings, select = plan.settings, plan.settings.select
    methods = [settings.methods[label] for label in {run.method for run in plan.runs}]
    outputs = [settings.tables[label] for label in select.tables]
    outputs += [settings.figures[label] for label in select.figures]
    kinds = [kind_of(output.section, output.kind) for output in outputs]
    drawn = zip(outputs, kinds, strict=True)
    return {
        *(f"family {settings.backbones[run.backbone].family}" for run in plan.runs),
        *(f"needs {need}" for method in methods for need in method.needs),
        *(f"shows {kind.shows}" for kind in kinds),
        *(f"{o.section} of artefacts" for o, kind in drawn if kind.artefact_of(o.settings)),
        *(["a chain of jobs"] if _training_jobs(plan) > len(plan.runs) else []),
    }


def test_snakemake_builds_some_studies_that_together_have_everything(tmp_path):
    """Those with the fewest jobs; the rules are the same for all others."""
    plans = {path: _plan(path) for path in STUDIES}
    jobs_of = {path: _training_jobs(plan) for path, plan in plans.items()}
    missing = set().union(*(_traits(plan) for plan in plans.values()))
    assert len(missing) > 10
    for path in sorted(plans, key=jobs_of.__getitem__):
        if _traits(plans[path]) & missing:
            missing -= _traits(plans[path])
            _dry_run(path, plans[path], tmp_path)
    assert not missing


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
    assert {bundled_studies.name_of(path) for path in STUDIES} == {
        _plan(path).name for path in STUDIES
    }
    assert all(_plan(path).name == bundled_studies.name_of(path) for path in STUDIES)


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


def test_the_list_of_studies_says_what_each_shows_and_needs():
    assert describe.study(bundled_studies.FOLDER / "pep_fedpt/table8.yaml") == [
        "pep_fedpt/table8",
        "Table 8",
        "inaturalist_user, domainnet, tiny_imagenet",
        "pep_no_prior, pep_fedpt, pep_5_no_prior, pep_5",
        18,
        cost.study_cost(_plan(bundled_studies.FOLDER / "pep_fedpt/table8.yaml")).gpu_hours(),
    ]
    grid = describe.study(bundled_studies.FOLDER / "fedpha/figure5.yaml")
    assert grid[3:5] == ["fedpha_lengths_3 (512)", 512]
    micro = describe.study(bundled_studies.FOLDER / "micro/pep_micro_domains.yaml")
    assert micro[1].startswith("Feature heterogeneity") and micro[2] == "glyphs"
    names = [bundled_studies.name_of(file) for file in STUDIES if file.parent.name == "pep_fedpt"]
    assert names[8:10] == ["pep_fedpt_table9", "pep_fedpt_table10"], "in the order of the paper"
    assert names.index("pep_fedpt_figure2") == names.index("pep_fedpt_table13") + 1
