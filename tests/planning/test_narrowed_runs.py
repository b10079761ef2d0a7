"""The runs of a narrowed study are those of the whole study, and the other way round."""

from importlib import import_module
from pathlib import Path

import pytest

from default_config import default_config
from fedloom.config.narrowing import narrow, read_narrowing
from fedloom.planning import job_receipts, paths
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.study_jobs import jobs_of_study

TABLE = Path("results/tables/letters/main.md")
FIGURE = Path("results/figures/letters/loss.pdf")
SENTENCE = "Narrowed to methods rates.0.1; seeds 1."


def _whole():
    """Return the plan of a study of letters: two methods of a grid, two seeds, one round."""
    config = default_config()
    config["study"] |= {"name": "letters", "rounds": 1, "clients_per_round": 2}
    config["study"]["report"] = {"last_evaluations": 1}
    config["datasets"]["letters"] = {"source": "glyphs", "classes": 3, "draws": 1}
    config["partitions"]["two"] = {"scheme": "iid", "clients": 2}
    config["methods"]["rates"] = {"plugin": "head_tuning", "grid": {"training.lr": [0.1, 0.7]}}
    config["select"] |= {"datasets": ["letters"], "partitions": ["two"], "methods": ["rates"]}
    config["select"] |= {"tables": ["main"], "figures": ["loss"]}
    return Plan(resolve(config))


def _part():
    """Return the plan of one method and one seed of the same study."""
    words = ["methods=rates.0.1", "seeds=1"]
    return Plan(narrow(_whole().settings, read_narrowing(words)))


def _make(plan):
    """Run the jobs of a plan whose results are missing or stale, and return their first files."""
    stale = job_receipts.stale(plan)
    made = set()
    for rule, by_file in jobs_of_study(plan).items():
        for file, labels in by_file.items():
            if file.is_file() and file not in stale:
                continue
            job = plan.job(rule, labels)
            started = job_receipts.begin_job(rule, job, plan.sources(rule, job))
            import_module(f"fedloom.jobs.{rule}_job").run_job(job, 1)
            job_receipts.end_job(started)
            made.add(file)
    return made


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Make the narrowed study in the working directory, and return its plan."""
    monkeypatch.chdir(tmp_path)
    plan = _part()
    _make(plan)
    return plan


def test_no_run_is_made_again_for_the_whole_study_or_for_its_part(part):
    (run,) = part.runs
    changed = {TABLE: job_receipts.FROM_OTHER_SETTINGS, FIGURE: job_receipts.FROM_OTHER_SETTINGS}
    assert job_receipts.stale(_whole()) == changed

    made = _make(_whole())
    assert {TABLE, FIGURE} < made
    assert paths.path_for(paths.EVALUATION, run) not in made
    assert job_receipts.stale(_whole()) == {}

    # and the other way round
    assert job_receipts.stale(_part()) == changed
    assert _make(_part()) == {TABLE, FIGURE}


def test_every_text_of_a_table_says_to_what_it_is_narrowed(part):
    for ending in (".md", ".tex", ".html"):
        assert SENTENCE in TABLE.with_suffix(ending).read_text()
    _make(_whole())
    for ending in (".md", ".tex", ".html"):
        assert "Narrowed" not in TABLE.with_suffix(ending).read_text()
