"""Two smoke runs of one study share a folder, and take turns in it."""

import subprocess
from pathlib import Path

import pytest

from fedloom.cli.run import launch, smoke_run
from fedloom.cli.run.run_options import RunOptions
from fedloom.common.json_types import JsonDict
from fedloom.config.reading import read
from fedloom.planning.plan import Plan
from fedloom.report import smoke_check
from refusals import refused

# where the smoke runs of the study are
FOLDER = Path("results/smoke/mine")
STUDY = """
study: {name: mine}
select: {methods: [head_tuning, fedvpt], tables: [main], figures: []}
"""


@pytest.fixture
def smoke(tmp_path, monkeypatch):
    """Return smoke(only): run the study shrunk, but without a job; return what was seen.

    `only` is a word after --only. The keys of what is seen are "run" and "check", when Snakemake
    would run, and when outputs would be checked. The values are the methods of the plan, those in
    study.yaml, and whether the lock of the folder is held.
    """
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(STUDY)
    seen: JsonDict = {}

    def look(plan: Plan) -> tuple:
        free = subprocess.run(["flock", "--nonblock", launch.LOCK, "true"]).returncode == 0
        return [*plan.settings.select.methods], read("study.yaml")["select"]["methods"], not free

    def see_run(plan: Plan, *_) -> int:
        seen["run"] = look(plan)
        return 0

    def see_check(plan: Plan) -> list:
        seen["check"] = look(plan)
        return []

    def make(only: str) -> JsonDict:
        options = RunOptions([Path("mine.yaml")], only=[only])
        assert smoke_run.run_shrunk("micro", options) == 0
        return seen

    monkeypatch.setattr(launch, "run_plan", see_run)
    monkeypatch.setattr(smoke_check, "check_outputs", see_check)
    return make


def test_the_lock_is_held_from_the_shrunk_study_to_the_end_of_its_check(smoke):
    """So a smoke run of other methods cannot put its study in the place of this one."""
    seen = smoke("methods=fedvpt")
    assert seen["run"] == (["fedvpt"], ["fedvpt"], True)
    assert seen["check"] == seen["run"]
    free = subprocess.run(["flock", "--nonblock", FOLDER / launch.LOCK, "true"])
    assert free.returncode == 0


def test_a_smoke_run_waits_for_another_one_of_its_study_and_says_so_once(smoke, capsys):
    """Until then, it writes neither its study nor the link to plugins."""
    FOLDER.mkdir(parents=True)
    Path("plugins").mkdir()
    command = ["flock", str(FOLDER / launch.LOCK), "sh", "-c", f"echo held; sleep 2; ls {FOLDER}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        seen = smoke("methods=head_tuning")
        assert other.stdout.read() == ""
    assert capsys.readouterr().err == f"{launch.WAITING}\n"
    assert seen["run"][0] == ["head_tuning"]
    assert {"plugins", "study.yaml"} <= {path.name for path in FOLDER.iterdir()}


def test_a_link_to_the_plugins_stays_and_another_one_is_replaced(smoke):
    Path("plugins").mkdir()
    smoke("methods=fedvpt")
    link = FOLDER / "plugins"
    assert link.readlink() == Path("plugins").absolute()
    made = link.lstat().st_ctime_ns
    smoke("methods=fedvpt")
    assert link.lstat().st_ctime_ns == made

    # the folder of all results was moved, or the plugins are gone
    link.unlink()
    link.symlink_to("elsewhere")
    smoke("methods=fedvpt")
    assert link.readlink() == Path("plugins").absolute()
    Path("plugins").rmdir()
    smoke("methods=fedvpt")
    assert not link.is_symlink()


def test_a_folder_in_the_place_of_the_link_is_an_error(smoke):
    (FOLDER / "plugins").mkdir(parents=True)
    with refused(f"{FOLDER}/plugins", "must be a link to plugins/"):
        smoke("methods=fedvpt")
