"""`fedloom show`, `diff` and `clean`, on the files of runs made by hand."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from command_line import invoked
from fedloom.common import temporary
from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_table
from fedloom.machine.install import ROOT
from fedloom.planning import paths, provenance
from fedloom.planning.load_plan import load_plan
from fedloom.planning.run_labels import Run
from fedloom.report.run_settings import run_settings
from shown_runs import filled

STUDY = """\
study:
  name: mine
  rounds: 4
  evaluate_every: 1
  training: {epochs: 3}
partitions:
  six: {scheme: iid, clients: 6, held_out: 0.17, protocol: {training: {batch_size: 8}}}
methods:
  slow: {plugin: fedvpt, options: {prompts: 2}, training: {lr: 0.01}}
  swept: {plugin: fedvpt, grid: {prompts: [1, 3]}}
select: {datasets: [digits], partitions: [six], methods: [fedvpt, slow, swept]}
"""
# correct answers of ten by participating clients 0 and 1, and by client 2, which is held out
CORRECT = {"fedvpt": [(5, 7, 4), (6, 8, 5)] * 2, "slow": [(3, 5, 4), (4, 6, 4)] * 2}


def _run(method: str) -> Run:
    return Run("digits", "six", "micro_vit", method, 0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Write a folder with a study and the evaluations of some of its runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(STUDY)
    plan = load_plan([Path("mine.yaml")])
    for method, correct in (CORRECT | {"swept.1": CORRECT["fedvpt"]}).items():
        rows = [
            {"round": n, "client_id": client, "participating": client < 2, "personalized": False,
             "num_test": 10, "num_correct": number}
            for n, numbers in enumerate(correct, 1) for client, number in enumerate(numbers)
        ]  # fmt: skip
        rounds = [{"round": n, "train_loss": 2 / n} for n in range(1, 5)]
        settings = provenance.digest_of_settings(plan.run_spec(_run(method)))
        frames = {
            paths.EVALUATION: filled(rows, "evaluation"),
            paths.ROUNDS: filled(rounds, "rounds"),
        }
        for pattern, frame in frames.items():
            table = pa.Table.from_pandas(frame).replace_schema_metadata({"settings": settings})
            write_table(paths.path_for(pattern, _run(method)), table)
    return tmp_path


def _write(*files: Path) -> None:
    """Write a megabyte into each file."""
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"0" * 1_000_000)


def _said(capsys, *words: str) -> str:
    assert invoked(*words) == 0
    return capsys.readouterr().out


def test_a_folder_with_an_equals_sign_is_no_setting(folder, capsys):
    (folder / "lr=1").symlink_to(folder)
    name = f"results/runs/{_run('slow').path}"
    assert _said(capsys, "show", f"lr=1/{name}", "--study", "mine.yaml").startswith(name)


def test_a_run_is_shown_with_its_curve_and_with_the_origin_of_each_setting(capsys):
    name = f"results/runs/{_run('slow').path}"
    lines = _said(capsys, "show", name, "--study", "mine.yaml").splitlines()
    assert lines[0] == name
    assert "participating mean 46.67 %" in lines[1], "of rounds 2 to 4"
    row = r"^ *4 +50\.0 +40\.0 +40\.0 +0\.500$"
    assert any(re.match(row, line) for line in lines), "round, mean, worst, held out, loss"
    found = {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in lines if "  " in line}
    assert found["options.prompts"] == ["2", "mine.yaml, line 9"]
    assert found["training.lr"] == ["0.01", "mine.yaml, line 9"], "the label's"
    assert found["training.batch_size"] == ["8", "mine.yaml, line 7"], "the partition's"
    assert found["training.epochs"] == ["3", "mine.yaml, line 5"], "the study's"
    assert found["training.momentum"] == ["0.9", "method.toml of fedvpt"]
    assert found["training.eps"] == ["1e-08", "default"]
    assert found["rounds"] == ["4", "mine.yaml, line 3"]
    assert found["clients_per_round"] == ["5", "FedLoom's config.yaml, line 9, capped"]


def test_a_setting_of_a_grid_says_so(capsys):
    shown = _said(capsys, "show", _run("swept.1").path, "--study", "mine.yaml")
    assert re.search(r"^options.prompts +1 +grid of methods.swept$", shown, re.MULTILINE)


def test_the_options_of_a_wrapper_are_of_the_label_or_of_the_wrapper(folder):
    wrapped = "training: {lr: 0.01}, wrappers: [{plugin: top_k, options: {share: 0.2}}]"
    (folder / "mine.yaml").write_text(STUDY.replace("training: {lr: 0.01}", wrapped))
    plan = load_plan([Path("mine.yaml")])
    found = {key: setting.origin for key, setting in run_settings(plan, _run("slow"))}
    assert found["wrappers.top_k.share"] == "mine.yaml, line 9"
    assert found["wrappers.top_k.memory"] == "method.toml of top_k"


def test_two_runs_differ_in_settings_and_accuracy(capsys):
    runs = [_run(method).path for method in ("fedvpt", "slow")]
    lines = _said(capsys, "diff", *runs, "--study", "mine.yaml").splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert found["options.prompts"][:2] == ["1", "2"]
    assert found["training.lr"][:2] == ["0.3", "0.01"]
    assert "training.epochs" not in found, "both have it"
    assert found["participating_mean"] == ["66.67", "46.67", "-20.00"]


def test_settings_that_a_run_was_not_made_with_are_not_shown_as_its_own(folder, capsys):
    file = folder / "mine.yaml"
    name = _run("fedvpt").path
    file.write_text(STUDY.replace("epochs: 3", "epochs: 5"))
    for words in (["show", name], ["diff", name, _run("slow").path]):
        with pytest.raises(FedLoomError, match=r"fedvpt/seed0: its settings, .* of mine\.yaml"):
            invoked(*words, "--study", "mine.yaml")
        _said(capsys, *words, "--study", "mine.yaml", "--set", "training.epochs=3")


def test_a_run_of_fewer_rounds_than_its_study_has_is_refused(capsys):
    name = _run("fedvpt").path
    for words in (["show", name], ["diff", name, _run("slow").path]):
        line = r"fedvpt/seed0: .*number of rounds \(4\), must .*mine\.yaml; .*--set"
        with pytest.raises(FedLoomError, match=line):
            invoked(*words, "--study", "mine.yaml", "--set", "rounds=6")
        _said(capsys, *words, "--study", "mine.yaml")


def test_settings_from_the_command_line_are_named_and_the_last_of_a_key_counts(capsys):
    words = ["--set", "training.epochs=7", "clients_per_round=5", "--set", "training.epochs=3"]
    shown = _said(capsys, "show", _run("fedvpt").path, "--study", "mine.yaml", *words)
    for key, value in {"training.epochs": 3, "clients_per_round": 5}.items():
        assert re.search(rf"^{key} +{value} +--set {key}={value}$", shown, re.MULTILINE)


def test_a_run_that_is_not_there_is_named_with_the_nearest(folder):
    with pytest.raises(FedLoomError, match="did you mean 'digits/six/micro_vit/slow/seed0'"):
        invoked("show", "digits/six/micro_vit/slowly/seed0", "--study", "mine.yaml")
    with pytest.raises(FedLoomError, match=r"study default .* has no partition 'six'"):
        invoked("show", _run("slow").path)
    with pytest.raises(FedLoomError, match="must be the folder of a run"):
        invoked("show", "results/runs/digits")


# for every kind of result: labels that mine.yaml uses, and labels that no study below uses
KINDS = {
    "runs/{}/evaluation.parquet": (_run("slow").path, _run("fedvpt_deep").path),
    "choices/{}/trials.parquet": ("digits/six/micro_vit/slow", "digits/six/micro_vit/fedvpt_deep"),
    "datasets/{}/images.arrow": ("digits", "letters"),
    "partitions/{}.parquet": ("digits/six/seed0", "digits/seven/seed0"),
    "prototypes/{}/seed0.safetensors": ("digits/six/micro_vit", "digits/six/micro_clip"),
    "features/{}.safetensors": ("digits/micro_vit", "digits/micro_clip"),
    "features/{}.json": ("digits/micro_vit", "digits/micro_clip"),  # a receipt
    "patches/{}.safetensors": ("digits/micro_vit", "digits/micro_clip"),
    "patches/{}.json": ("digits/micro_vit", "digits/micro_clip"),
    "block_accuracy/{}.parquet": ("digits/micro_vit", "digits/micro_clip"),
    "tables/{}/main.md": ("mine", "old"),
    "figures/{}/loss.pdf": ("mine", "old"),
    "report/{}.html": ("mine", "old"),
    "studies/{}.yaml": ("mine", "old"),
}
TRIAL = "runs/styles/four_classes.validation/micro_vit/head_tuning.0.1/seed{}/evaluation.parquet"
BLOCKS = """\
study: {name: blocks}
figures: {depth: {kind: block_accuracy}}
select: {datasets: [glyphs], partitions: [iid], tables: [], figures: [depth]}
"""


def test_only_what_no_study_uses_is_listed_and_deleted(folder, capsys, monkeypatch):
    (folder / "blocks.yaml").write_text(BLOCKS)
    studies = ["mine.yaml", "blocks.yaml", "micro/micro_cross_dataset", str(ROOT / "config.yaml")]
    used = {kind.format(labels) for kind, (labels, _) in KINDS.items()}
    used |= {
        TRIAL.format(1000),  # used by the default study
        "logs/train/old.log",
        "block_accuracy/glyphs/micro_vit.parquet",  # used by a study without runs
        "features/noisy_letters/micro_clip.safetensors",  # used by clients of another dataset
    }
    unused = {kind.format(labels) for kind, (_, labels) in KINDS.items()}
    unused |= {"studies/old.parquet", TRIAL.format(1001)}
    of_runs = {kind for kind in KINDS if kind.startswith(("runs", "tables", "features"))}
    for names, number in ((used, 0), (unused, 1)):  # the receipts of jobs go with their results
        names |= {f"receipts/{kind.format(KINDS[kind][number])}.json" for kind in of_runs}
    _write(*(Path("results", name) for name in used | unused))
    before = {str(file.relative_to("results")) for file in Path("results").rglob("*.*")}
    gone = {
        re.sub(r"/(images|evaluation|trials|seed0|main|loss)\.\w+$", "", name)
        for name in unused
        if not name.startswith("receipts")
    }
    monkeypatch.setattr("click.confirm", lambda question: False)
    lines = _said(capsys, "clean", *studies).splitlines()
    assert {line.split()[-1].removeprefix("results/") for line in lines[:-1]} == gone
    assert lines[-1].split(maxsplit=2)[2] == f"in all: {len(gone)} folders and files"
    assert all(Path("results", name).exists() for name in before)
    _said(capsys, "clean", *studies, "--yes")
    assert {name for name in before if not Path("results", name).exists()} == unused
    assert _said(capsys, "clean", *studies).startswith("nothing to delete")


def test_runs_in_the_record_of_a_study_are_its_own(capsys):
    """`fedloom run mine.yaml --set select.methods=[fedvpt_deep]` leaves such a record."""
    run = _run("fedvpt_deep")
    _write(paths.path_for(paths.EVALUATION, run), paths.path_for(paths.TRIALS, run))
    write_table(paths.path_for(paths.RECORD, study="mine"), pa.Table.from_pylist([vars(run)]))
    assert _said(capsys, "clean", "mine.yaml", "--yes").startswith("nothing to delete")


def test_what_killed_jobs_left_half_written_is_deleted(folder, capsys):
    """A killed job leaves a folder as large as its cache; the folder of a live job is kept."""
    alive = temporary.temporary_name(Path("results/features/digits/micro_vit.safetensors"))
    left = alive.with_name(alive.name.replace(f"-{os.getpid()}-", "-0-"))
    _write(alive / "part", left / "part")
    (line, _) = _said(capsys, "clean", "mine.yaml", "--yes").splitlines()
    assert line.split()[-1] == str(left)
    assert alive.exists() and not left.exists()


def test_nothing_is_deleted_beside_a_run(folder):
    _write(folder / ".snakemake/locks/0.input.lock")
    with pytest.raises(FedLoomError, match="Snakemake"):
        invoked("clean", "mine.yaml", "--yes")
