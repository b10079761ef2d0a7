"""`fedloom plan`: what a study costs is counted before it runs."""

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from snakemake.cli import main as snakemake

from command_line import invoked
from fedloom.cli.run import bundled_studies
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import load_plan
from fedloom.planning.resources.cost import FORK_SECONDS, study_cost

MICRO = ROOT / "workflow/studies"

# a forward pass of the micro ViT: 12 blocks of width 96 over 17 tokens, and a stem of three
# convolutions to 24, 48 and 96 channels, each of which halves the sides of the image
BLOCKS = 12 * (24 * 96**2 * 17 + 4 * 96 * 17**2)
STEM = 2 * 9 * (16**2 * 24 + 8**2 * 48 * 24 + 4**2 * 96 * 48)
OF_AN_IMAGE = BLOCKS + STEM


def loaded(*files, **overrides):
    return load_plan(files, overrides)


def jobs_of_a_dry_run(folder, monkeypatch, *files):
    """Return the number of jobs by rule, as a dry run of Snakemake counts them."""
    monkeypatch.chdir(folder)
    arguments = ["-n", "--quiet", "host", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
    if files:
        arguments += ["--configfile", *map(str, files)]
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        pytest.raises(SystemExit) as end,
    ):
        snakemake(arguments)
    assert end.value.code == 0, printed.getvalue()
    rows = re.findall(r"^(\w+) +(\d+)$", printed.getvalue(), re.M)
    return {rule: int(count) for rule, count in rows if rule not in ("all", "total")}


def test_jobs_are_those_of_a_dry_run(tmp_path, monkeypatch):
    """The default study has trials, prototypes, artefacts and a figure of a backbone."""
    assert study_cost(loaded()).jobs == jobs_of_a_dry_run(tmp_path, monkeypatch)


def test_operations_of_training_are_counted_by_hand(tmp_path, monkeypatch):
    """An image costs a forward and a backward pass in training, and a forward pass in a test."""
    monkeypatch.chdir(tmp_path)
    study = {"name": "mine", "rounds": 6, "seeds": [0, 1, 2], "rounds_per_job": 2}
    study |= {"clients_per_round": 5, "evaluate_every": 3, "training": {"epochs": 4}}
    study |= {"report": {"last_evaluations": 1}}
    select = {"datasets": ["glyphs"], "partitions": ["iid"], "methods": ["fedvpt"]}
    select |= {"tables": ["main"], "figures": []}
    plan = loaded(study=study, select=select)
    cost = study_cost(plan)
    image = OF_AN_IMAGE
    images = 100 * 12 * 4
    of_round = 5 * (images / 20) * 4 * 3 * image
    evaluated = {2, 3, 4, 6}  # every third round and the last round of each job
    assert cost.operations == pytest.approx(
        3 * (6 * of_round + len(evaluated) * images / 2 * image)
    )
    assert cost.longest == pytest.approx(cost.operations / 3)
    assert cost.jobs["train"] == 9 and cost.runs == 3
    assert cost.seconds >= FORK_SECONDS * sum(cost.jobs.values())
    assert cost.gpu_hours(1e12) == pytest.approx(cost.operations / 3.6e15)
    assert replace(cost, precision="bf16").gpu_hours() < cost.gpu_hours()


def test_a_global_test_without_a_model_of_the_server_is_one_of_every_clients(tmp_path, monkeypatch):
    """Clients of P-PT answer by their own class priors, so each must answer all test images."""
    monkeypatch.chdir(tmp_path)
    study = {"name": "mine", "rounds": 1, "seeds": [0], "report": {"last_evaluations": 1}}
    select = {"datasets": ["glyphs"], "partitions": ["iid"], "methods": ["p_pt"]}
    select |= {"tables": ["main"], "figures": []}
    without, once = (
        study_cost(loaded(study=study | {"global_test": asked}, select=select)).operations
        for asked in (False, True)
    )
    clients = 20
    assert once - without == pytest.approx(clients * 100 * 12 * 4 / 2 * OF_AN_IMAGE)


def test_a_study_that_ships_goes_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    invoked("plan", "fedpha/table3")
    assert re.match(r"study +fedpha_table3\n", capsys.readouterr().out)
    mine = tmp_path / "fedpha/table3"
    mine.parent.mkdir()
    mine.touch()
    assert bundled_studies.find_study_file("fedpha/table3") == Path("fedpha/table3")


def test_domains_train_on_as_many_images_as_in_fedbn(capsys):
    """The whole lists of images would take sgpt/table2 25.9 days of a GPU."""
    invoked("plan", "sgpt/table2")
    printed = capsys.readouterr().out
    hours = re.search(r"^one GPU +([\d.]+) h at 40 TFLOP/s \(assumed\)$", printed, re.M)
    assert hours is not None and float(hours[1]) < 24


def test_a_study_is_printed_with_its_jobs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text("study: {name: mine, rounds: 12, rounds_per_job: 2}\n")
    invoked("plan", str(file), "--rate", "10")
    printed = capsys.readouterr().out
    assert re.search(r"^jobs +\d+: .*\b144 train", printed, re.M)
    assert re.search(r"^one GPU .* at 10 TFLOP/s$", printed, re.M)
