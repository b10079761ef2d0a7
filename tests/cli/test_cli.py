"""The command line: `fedloom <command>`, and what the launcher reads of Snakemake's arguments."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedloom.cli import main
from fedloom.cli.inspect import studies
from fedloom.cli.run import bundled_studies, launch
from fedloom.common.errors import FedLoomError
from fedloom.config.reading import NUMBERS, PAPERS, read
from fedloom.machine.install import ROOT


def _main(monkeypatch, *words: str) -> int:
    """Run a command as the console script does, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["fedloom", *words])
    with pytest.raises(SystemExit) as end:
        main.main()
    return end.value.code


def test_the_list_of_methods_says_what_each_does(monkeypatch, capsys):
    assert _main(monkeypatch, "methods") == 0
    lines = {line.partition(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["head_tuning"].endswith(
        "Federated averaging of a linear head on the frozen backbone's class token."
    )
    assert "Matches" not in lines["pfpt"] and "PFPT" in lines["pfpt"]


def test_wrappers_are_listed_apart_from_methods(monkeypatch, capsys):
    assert _main(monkeypatch, "methods") == 0
    first_words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    heads = first_words.index("method"), first_words.index("wrapper")
    assert heads[0] < first_words.index("fedvpt") < first_words.index("zero_shot_clip") < heads[1]
    assert heads[1] < first_words.index("audit") < first_words.index("trimmed_mean")


def test_the_help_has_every_command_below_one_heading():
    placed = [name for names in main.HEADINGS.values() for name in names]
    assert sorted(placed) == sorted(main.fedloom.commands)


@pytest.mark.parametrize("words", [("--help",), ("data", "--help")])
def test_the_help_says_what_each_command_does_in_a_whole_sentence(monkeypatch, capsys, words):
    assert _main(monkeypatch, *words) == 0
    help_text = capsys.readouterr().out
    _, *sections = help_text.split(":\n")
    assert "..." not in "".join(sections)
    listed = " ".join(help_text.split())
    group = main.fedloom
    if words[0] == "data":
        group = main.data
    for name, command in group.commands.items():
        summary = command.short_help or command.help.splitlines()[0]
        assert f"{name} {summary.rstrip('.')}" in listed


def test_the_list_of_studies_is_by_paper_and_makes_no_plan(monkeypatch, capsys):
    monkeypatch.delattr(studies, "read_plan")
    assert _main(monkeypatch, "studies") == 0
    listed = " ".join(capsys.readouterr().out.split())
    places = []
    for folder, files in bundled_studies.studies_by_folder().items():
        title = bundled_studies.folder_title(folder)
        names = [f" {bundled_studies.study_name(file)} " for file in files]
        places += [listed.index(text) for text in (title, *names)]
    assert places == sorted(places)
    assert " pfpt/table9 Table 9: the settings of all methods Deng et al." in listed


def test_the_title_of_a_paper_is_the_citation_in_its_file_of_numbers():
    for folder in bundled_studies.studies_by_folder().keys() - bundled_studies.TITLES.keys():
        citation = read(PAPERS / folder / NUMBERS)["citation"]
        assert bundled_studies.folder_title(folder) == citation


def test_a_study_of_a_paper_begins_with_the_number_that_it_shows():
    """`fedloom studies` prints this sentence, and the report prints the key `shows`."""
    for file in bundled_studies.all_studies():
        shown = read(file)["study"].get("shows", [])
        if shown and re.fullmatch(r"(Table|Figure) \d+", shown[0]):
            assert studies.first_sentence(file).startswith(f"{shown[0]}: ")


def test_the_stop_of_an_abbreviation_does_not_end_a_sentence(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("# What for? For Fig. 6,\n# Eq. 3. Minutes.\nstudy: {name: x}\n")
    assert studies.first_sentence(file) == "What for? For Fig. 6, Eq. 3"


def test_the_studies_of_one_paper_are_listed_with_their_costs(monkeypatch, capsys):
    assert _main(monkeypatch, "studies", "fedmgp") == 0
    listed = capsys.readouterr().out
    assert listed.startswith("Bo et al., FedMGP")
    assert "GPU hours" in listed and "oxford_pets" in listed and "fedpha/" not in listed


TYPOS = {  # a command line, and what its error holds
    "methodz": "No such command 'methodz'. Did you mean 'methods'?",
    "methods pep_fedptt": "no method 'pep_fedptt'; did you mean 'pep_fedpt'?",
    "check --method fedvptt": "no method 'fedvptt'; did you mean 'fedvpt'?",
    "communication --method fedvptt --backbone x --classes 3": "did you mean 'fedvpt'?",
    "run table44": "did you mean ",
    "run pep_fedpt/tabel4": "did you mean pep_fedpt/table4",
    "run typoo.yaml": "did you mean typo.yaml?",
    "run typo.yaml": "'fedvptt'; did you mean 'fedvpt'? (typo.yaml, line 3)",
    "run --set stdy.rounds=2": "did you mean 'study'? (--set stdy.rounds=2)",
    "run --corse 2": "No such option '--corse'. (Did you mean one of: '--cores', '--set'?)",
    "run --only method=fedvpt": "--only: no key 'method'; did you mean 'methods'?",
    "show styles/four_classes/micro_vit/fedvpt/seed0": "no run that has finished; known: none",
    "diff fedvpt sgpt": "fedvpt: must be the folder of a run, <dataset>/<partition>/",
    "export defaultt": "study 'defaultt' must have finished; run it",
    "run micro/micro_vit b": "unexpected extra argument (b)",
    "studies pep_fedptt": "no studies of 'pep_fedptt'; did you mean 'pep_fedpt'?",
    "plan --rate=0": "Invalid value for '--rate': must be a number above 0, got '0'",
    "plan --rate=nan": "Invalid value for '--rate': must be a number above 0, got 'nan'",
    "communication --method fedvpt --backbone x --classes 2 --options [1]": "must be a JSON object",
}
NAMED = f"""
import contextlib, io, sys
from fedloom.cli import main as cli
for words in {list(TYPOS)}:
    sys.argv = ["fedloom", *words.split()]
    try:
        cli.main()
    except SystemExit as end:
        assert end.code == 2, words
sys.argv = ["fedloom", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    cli.main()
heavy = {{"torch", "pandas", "matplotlib", "snakemake"}} & sys.modules.keys()
print(heavy or "light")
"""


def test_a_mistyped_name_is_named_with_the_nearest_before_any_import_of_seconds(tmp_path):
    (tmp_path / "typo.yaml").write_text("select:\n  methods:\n    - fedvptt\n")
    done = subprocess.run(
        [sys.executable, "-c", NAMED], capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "workflow")},
    )  # fmt: skip
    for line, said in zip(TYPOS.values(), done.stderr.splitlines(), strict=True):
        assert line in said
    assert done.stdout == "light\n"


def test_the_version_is_that_of_the_project(monkeypatch, capsys):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert _main(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fedloom {project['version']}\n"


@pytest.fixture
def snakemake(monkeypatch, tmp_path):
    """Return snakemake(status), which writes a program that stands for Snakemake.

    snakemake(status) returns a function, which returns the arguments of the program's calls.
    """
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))

    def ends(status: int) -> Callable[[], list[list[str]]]:
        program.write_text(
            f"#!/bin/sh\nprintf '%s\\0' \"$@\" >> calls\necho >> calls\nexit {status}\n"
        )
        program.chmod(0o755)
        return lambda: [
            line.split("\0")[2 : line.split("\0").index("--snakefile")]  # after -m snakemake
            for line in Path("calls").read_text().splitlines()
        ]

    return ends


def test_a_run_is_a_command_of_snakemake(monkeypatch, snakemake):
    calls = snakemake(3)
    changes = ["rounds=4", 'study.shows=["a, {b}"]']
    given = ["micro/micro_vit", "--set", *changes, "--cores", "2", "--", "-R", "train"]
    assert _main(monkeypatch, "run", *given) == 3, "Snakemake's exit status"
    (words,) = calls()
    file = str(ROOT / "workflow/studies/micro/micro_vit.yaml")
    assert words[:4] == ["-R", "train", "--configfile", file]
    assert words[4:] == ["--config", f"set={json.dumps(changes)}", "--cores", "2"]
    study = launch.plan_of_arguments(words)[
        0
    ].settings.study  # the Snakefile reads it likewise, in all jobs
    assert (study.name, study.rounds, study.shows) == ("micro_vit", 4, ["a, {b}"])
    assert _main(monkeypatch, "report", "-n") == 3
    assert calls()[1:] == [["--dry-run"]]


def test_words_after_only_narrow_the_study(monkeypatch, snakemake):
    calls = snakemake(3)
    changes = ["rounds=4", "training.lr=0.2"]
    only = ["methods=fedvpt,pfedpg", "seeds=0"]
    given = ["--only", *only, "-n", "--set", *changes]
    assert _main(monkeypatch, "report", "micro/micro_vit", *given) == 3
    (words,) = calls()
    assert words[2:5] == ["--config", f"set={json.dumps(changes)}", f"only={json.dumps(only)}"]
    settings = launch.plan_of_arguments(words)[0].settings
    assert settings.select.methods == ("fedvpt", "pfedpg") and settings.study.seeds == [0]
    assert settings.study.rounds == 4 and settings.study.training.lr == 0.2


def test_snakemakes_own_config_narrows_a_study(monkeypatch):
    """Whoever calls Snakemake without FedLoom's command writes one word, or a list of words."""
    monkeypatch.chdir(ROOT)
    for given in ("only=methods=fedvpt", 'only=["methods=fedvpt"]'):
        plan, _ = launch.plan_of_arguments(["--config", given])
        assert plan.settings.select.methods == ("fedvpt",)
    with pytest.raises(FedLoomError, match=r"^--config only: must be a list of texts, got 3"):
        launch.plan_of_arguments(["--config", "only=3"])


def test_a_plan_is_that_of_the_changed_and_narrowed_study(monkeypatch, capsys):
    words = ["--set", "rounds=2", "--only", "methods=fedvpt,pep_fedpt", "seeds=0"]
    assert _main(monkeypatch, "plan", "pep_fedpt/table1", *words) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["narrowed"] == "to  methods fedvpt, pep_fedpt; seeds 0"
    assert " 7 train, 7 evaluate" in lines["jobs"]


def test_the_end_of_a_run_names_the_results_that_there_are(monkeypatch, snakemake, capsys):
    snakemake(0)
    Path("mine.yaml").write_text("study: {name: mine}\nselect: {tables: [main], figures: []}\n")
    Path("results/tables/mine").mkdir(parents=True)
    Path("results/tables/mine/main.md").write_text("a table\n")
    assert _main(monkeypatch, "run", "mine.yaml") == 0
    said = capsys.readouterr().out
    assert "a table" in said and "results/tables/mine" in said and "figures" not in said


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["mine.yaml", "--set", "rounds=4"], "fedloom report mine.yaml --set rounds=4"),
        (["--set", "study.remark=a b"], "fedloom report --set 'study.remark=a b'"),
        (["mine.yaml", "--", "--forceall"], "fedloom report mine.yaml"),
        (["--", "--configfile=mine.yaml"], "fedloom report -- --configfile=mine.yaml"),
    ],
)
def test_the_end_of_a_run_names_the_command_that_reports_it(
    monkeypatch, snakemake, capsys, words, command
):
    snakemake(0)
    Path("mine.yaml").write_text("study: {name: mine}\nselect: {tables: [main], figures: []}\n")
    assert _main(monkeypatch, "run", *words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report  made by: {command}"


def test_a_missing_folder_of_images_is_an_error_before_any_job(monkeypatch, snakemake, capsys):
    calls = snakemake(3)
    Path("mine.yaml").write_text(
        "datasets:\n  own:\n    source: folder\n    root: photos\n    image_size: 32\n"
        "select: {datasets: [own], partitions: [iid]}\n"
    )
    assert _main(monkeypatch, "run", "mine.yaml", "-n") == 3, "a plan needs no images"
    assert _main(monkeypatch, "run", "mine.yaml") == 2
    line = "error: config key datasets.own.root: no such folder 'photos'; put the images there, or"
    assert f"{line} change the key (mine.yaml, line 4)\n" in capsys.readouterr().err
    assert len(calls()) == 1
    Path("photos").mkdir()
    assert _main(monkeypatch, "run", "mine.yaml") == 3


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["micro/micro_vit", "--", "--configfile=mine.yaml"], "--configfile"),
        (["--set", "rounds=4", "--", "--config", "a=1"], "--config"),
        (["--only", "seeds=0", "--", "--config", "a=1"], "--config"),
    ],
)
def test_a_study_is_not_named_twice(monkeypatch, capsys, words, option):
    """Snakemake would take the last --configfile or --config, and forget FedLoom's."""
    assert _main(monkeypatch, "run", *words) == 2
    assert capsys.readouterr().err.startswith(f"error: {option}")


def test_a_run_needs_no_home(monkeypatch):
    """The user of a container may have no entry in /etc/passwd and no HOME."""
    monkeypatch.setattr(sys, "executable", "true")  # in place of Snakemake
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert launch.run_snakemake([]) == 0


def test_a_run_goes_on_without_a_display_that_fails(snakemake, capfd):
    """The display fails here, because the run has no file of events."""
    snakemake(0)
    assert launch.run_snakemake([], display=True) == 0
    assert "goes on without its display: FileNotFoundError(" in capfd.readouterr().err


def test_a_reader_that_stops_early_gets_no_traceback():
    command = f"{sys.executable} -m fedloom datasets | true"  # `true` ends before a line is written
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "workflow")},
    )  # fmt: skip
    assert not done.stderr


def test_an_interrupt_is_one_word(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "list_studies", interrupted)
    assert _main(monkeypatch, "studies") == 130
    assert capsys.readouterr().err == "\ninterrupted\n"  # the line follows a terminal's ^C


def test_a_snakemake_that_is_ended_before_it_has_jobs_says_nothing(capfd):
    """SIGINT would make Python print a traceback; SIGTERM without a handler ends it silently."""
    for handles, expected in ((False, -signal.SIGTERM), (True, -signal.SIGINT)):
        # this process may ignore SIGINT, as processes that a shell starts in the background do
        script = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)"
        script += "; print(1, flush=True)"
        if handles:
            script += "; signal.signal(signal.SIGTERM, print); print(1, flush=True)"
        script += "; time.sleep(60)"
        process = subprocess.Popen(
            [sys.executable, "-c", script], process_group=0, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(1 + handles):
            process.stdout.readline()
        with launch._forwarding_signals() as register, process:
            register(process)
            os.kill(os.getpid(), signal.SIGTERM)
            assert process.wait(30) == expected
        assert ("KeyboardInterrupt" in capfd.readouterr().err) == handles


def test_a_launcher_in_the_background_of_a_script_lets_snakemake_hear_sigint():
    """A process that a shell starts with & ignores SIGINT, on which Snakemake ends its jobs."""
    says = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with (
            launch._forwarding_signals() as register,
            subprocess.Popen([sys.executable, "-c", says], stdout=subprocess.PIPE) as process,
        ):
            register(process)
            assert process.stdout.read() == b"True\n"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_comes_while_snakemake_is_started_ends_it():
    with (
        launch._forwarding_signals() as register,
        subprocess.Popen(["sleep", "60"], process_group=0) as process,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        assert register(process) == [signal.SIGTERM]
        assert process.wait(30) == -signal.SIGTERM


def test_the_launcher_reads_arguments_as_snakemake_does(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    study, dry = launch.plan_of_arguments(
        ["-np", "--config", 'study={"name": "other"}', "--cores", "2"]
    )
    assert study.name == "other" and dry
    assert not launch.plan_of_arguments(["--cores", "2", "-p"])[1]
    file = ROOT / "workflow/studies/micro/micro_vit.yaml"
    assert launch.plan_of_arguments([f"--configfile={file}"])[0].name == "micro_vit"
    with pytest.raises(FedLoomError, match=r"^--config"):
        launch.plan_of_arguments(["--config", "study"])


def test_two_runs_of_a_folder_take_turns(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["flock", str(launch.LOCK), "sh", "-c", "echo held; sleep 1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with launch.exclusive_folder():
            assert other.wait(0.5) == 0, "half of what it sleeps"
    assert capsys.readouterr().err == f"{launch.WAITING}\n"
