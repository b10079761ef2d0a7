"""What people get wrong in a config, as they see it: one line, no traceback, nothing written."""

import math
import os
import resource
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest

from default_config import default_config
from fedloom.commands.planning import CONFIG, load_plan, resolve
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import sha256
from fedloom.config.reading import merge, read
from fedloom.config.rounds import Reported, evaluated_rounds, job_ends, reported
from fedloom.study.plan import Plan
from fedloom.study.runs import Run, runs

DEFAULT = default_config()
BAD = {
    "unknown key": ("study: {round: 3}", "study.round: unknown key; did you mean 'rounds'?"),
    "unknown section": ("studdy: {}", "config key studdy: unknown key; did you mean 'study'?"),
    "wrong type": ("study: {rounds: many}", "study.rounds: must be an integer, got 'many'"),
    "a list for a mapping": ("methods: [fedvpt]", "methods: must be a mapping, got ['fedvpt']"),
    "a fraction for a whole number": (
        "study: {rounds: 20.0}",
        "study.rounds: must be an integer, got 20.0",
    ),
    "not a number": (
        "study: {training: {lr: .nan}}",
        "training.lr: must be a finite number, got nan",
    ),
    "a list for a word": (
        "datasets: {new: {source: [sklearn_digits]}}",
        "datasets.new.source: no source '['sklearn_digits']'",
    ),
    "half a character": (
        'tables: {new: {kind: accuracy, title: "\\ud800"}}',
        "bad.yaml: '\\ud800' holds half a character",
    ),
    "too many rounds": ("study: {rounds: 10000}", "study.rounds: must be "),
    "duplicate key": (
        "study: {rounds: 3, rounds: 4}",
        'bad.yaml, line 1, column 20: found duplicate key "rounds"',
    ),
    "unknown method": (
        "methods: {new: {plugin: fedvtp}}",
        "methods.new.plugin: no method 'fedvtp'; did you mean 'fedvpt'?",
    ),
    "unknown label": (
        "select: {methods: [pep_fedtp]}",
        "select.methods: no label 'pep_fedtp'; did you mean 'pep_fedpt'?",
    ),
    "unknown dataset": (
        "datasets: {new: {source: sklearn_digit}}",
        "datasets.new.source: no source 'sklearn_digit'; did you mean 'sklearn_digits'?",
    ),
    "unknown partition": (
        "partitions: {new: {scheme: dirichlett, clients: 3}}",
        "partitions.new.scheme: no scheme 'dirichlett'; did you mean 'dirichlet'?",
    ),
    "missing key of a partition": (
        "partitions: {new: {scheme: dirichlet, kind: client, clients: 3}}",
        "partitions.new.alpha: missing",
    ),
    "option out of bounds": (
        "methods: {new: {plugin: pep_fedpt, options: {tau: 0}}}",
        "methods.new.options.tau: ",
    ),
    "unknown option": (
        "methods: {new: {plugin: pep_fedpt, options: {taau: 1}}}",
        "methods.new.options.taau: unknown key; did you mean 'tau'?",
    ),
    "label with two meanings": (
        "methods: {fedvpt: {plugin: fedvpt, options: {prompts: 9}}}",
        "methods.fedvpt means one thing in",
    ),
    "missing weights": (
        "backbones: {new: {library: timm, name: micro_vit, weights: no.safetensors}}\n"
        "select: {backbones: [new]}",
        "backbones.new.weights: no such file",
    ),
    "missing weights of a CLIP": (
        "backbones: {new: {library: open_clip, name: micro_clip, weights: no.safetensors}}\n"
        "select: {backbones: [new]}",
        "backbones.new.weights: no such file",
    ),
    "unknown library": (
        "backbones: {new: {library: openclip, name: RN50-quickgelu, weights: openai}}",
        "backbones.new.library: no library 'openclip'; did you mean 'open_clip'?",
    ),
    "unknown key of a dataset": (
        "datasets: {new: {source: folder, root: x, domain: true}}",
        "datasets.new.domain: unknown key; did you mean 'domains'?",
    ),
    "missing key of a dataset": (
        "datasets: {new: {source: torchvision, root: x}}",
        "datasets.new.name: missing",
    ),
    "too many glyphs": (
        "datasets: {new: {source: glyphs, classes: 200}}",
        "datasets.new.classes: must be less than or equal to 120, got 200",
    ),
    "domains by alpha of no kind": (
        "partitions: {new: {scheme: domain, alpha: 0.5}}",
        "partitions.new: alpha needs kind",
    ),
    "domains held out twice": (
        "partitions: {new: {scheme: domain, clients_per_domain: 3, held_out: 0.1, "
        "held_out_per_domain: 1}}\nselect: {partitions: [new]}",
        "partitions.new: held_out and held_out_per_domain; set one of them",
    ),
    "domains without a client to train": (
        "partitions: {new: {scheme: domain, held_out_per_domain: 1}}\nselect: {partitions: [new]}",
        "partitions.new: held_out_per_domain: 1 of 1 clients leave none to train",
    ),
    "too large a cohort": (
        "study: {clients_per_round: 19}\nselect: {partitions: [pathological]}",
        "study.clients_per_round: 19 is more than the 18 participating clients of "
        "partitions.pathological",
    ),
    "unknown kind of table": (
        "tables: {new: {kind: acuracy}}",
        "tables.new.kind: no kind 'acuracy'; did you mean 'accuracy'?",
    ),
    "unknown key of a figure": (
        "figures: {new: {kind: convergence, metrik: loss}}",
        "figures.new.metrik: unknown key; did you mean 'metric'?",
    ),
    "unknown table": (
        "select: {tables: [mian]}",
        "select.tables: no label 'mian'; did you mean 'main'?",
    ),
    "a table of a method that does not run": (
        "tables: {new: {kind: accuracy, methods: [fedvptt]}}\nselect: {tables: [new]}",
        "tables.new.methods: no label 'fedvptt'; did you mean 'fedvpt'?",
    ),
    "a figure of what is not evaluated": (
        "figures: {new: {kind: convergence, metric: global}}\nselect: {figures: [new]}",
        "figures.new: metric global needs study.global_test: true",
    ),
    "a figure of artefacts that no method gives": (
        "select: {methods: [fedvpt], figures: [weights]}",
        "figures.weights: the study runs none of its methods that gives 'soft_weights'",
    ),
    "a method on a backbone of another family": (
        "select: {methods: [fedvpt, promptfl]}",
        "methods.promptfl works on a clip, backbones.micro_vit is a vit",
    ),
    "a figure of artefacts that the method's options exclude": (
        "select: {methods: [fedvpt, pep_no_ccmp], figures: [bare]}\n"
        "methods: {pep_no_ccmp: {plugin: pep_fedpt, options: {ccmp: false}}}\n"
        "figures: {bare: {kind: soft_weights, classes: [0]}}",
        "figures.bare: the study runs none of its methods that gives 'soft_weights'",
    ),
    "a published row of a label that is not there": (
        "tables: {new: {kind: accuracy, published: {paper: pep_fedpt, table: 1, "
        "rows: {fedvtp: FedVPT}, columns: {digits/pathological: CIFAR-100 pathological}}}}\n"
        "select: {tables: [new]}",
        "tables.new.published.rows: no 'fedvtp' here; did you mean 'fedvpt'?",
    ),
    "a wrapper twice": (
        "methods: {new: {plugin: pep_fedpt, wrappers: "
        "[{plugin: dp_laplace}, {plugin: dp_laplace}]}}",
        "methods.new.wrappers: a wrapper stands there twice; name each once",
    ),
    "a held-out table without held-out clients": (
        "partitions: {new: {scheme: pathological, clients: 20, classes_per_client: 2}}\n"
        "select: {partitions: [new], tables: [heldout]}",
        "tables.heldout: no partition of the study holds clients out (held_out)",
    ),
    "an unknown row of a paper": (
        "tables: {new: {kind: accuracy, published: {paper: pep_fedpt, table: 4, "
        "rows: {fedvpt: Only Sharde}, columns: {styles/domains: Pathological}}}}\n"
        "select: {tables: [new]}",
        "published.rows.fedvpt: no 'Only Sharde' in the paper; did you mean 'Only Shared'?",
    ),
    "superclasses that are not there": (
        "select: {methods: [sgpt], tables: [mine]}\n"
        "tables: {mine: {kind: clustering, superclasses: nowhere.yaml}}",
        "tables.mine.superclasses: no such file 'nowhere.yaml'",
    ),
    "more rounds averaged than evaluated": (
        "study: {rounds: 4}",
        "study.report.last_evaluations: 3, but only 2 rounds are evaluated",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_one_clear_line(case, tmp_path, monkeypatch):
    text, line = BAD[case]
    (tmp_path / "bad.yaml").write_text(text + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:  # as the Snakefile does, before it names any rule
        load_plan([tmp_path / "bad.yaml"])
    said = str(end.value.code)
    assert said.startswith("error: ") and said.isprintable()
    assert line in said
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "case", ["an unknown row of a paper", "more rounds averaged than evaluated"]
)
def test_snakemake_ends_with_that_line_alone(case, tmp_path):
    text, line = BAD[case]
    (tmp_path / "bad.yaml").write_text(text + "\n")
    command = [sys.executable, "-m", "snakemake", "-n", "-s", ROOT / "Snakefile"]
    done = subprocess.run(
        [*command, "--configfile", tmp_path / "bad.yaml", "--directory", tmp_path / "work"],
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    errors = [x for x in output.splitlines() if "rror" in x]
    assert done.returncode != 0
    assert "Traceback" not in output
    assert len(errors) == 1, output
    assert errors[0].startswith("error: ")
    assert line in errors[0]
    assert not (tmp_path / "work" / "results").exists()


def test_an_error_of_the_schema_names_file_and_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("# a study\nstudy:\n  rounds: 5\n  clients_per_round: many\n")
    with pytest.raises(FedLoomError, match=r"\(.*mine.yaml, line 4\)$"):
        resolve(merge([(CONFIG, DEFAULT), (path, read(path))]), [CONFIG, path])


def test_both_files_of_a_label_with_two_meanings_are_named():
    first, second = {"methods": {"x": {"plugin": "a"}}}, {"methods": {"x": {"plugin": "b"}}}
    with pytest.raises(FedLoomError, match=r"methods.x means .*a.yaml and another in .*b.yaml"):
        merge([(Path("a.yaml"), first), (Path("b.yaml"), second)])
    assert merge([(Path("a.yaml"), first), (Path("b.yaml"), first)]) == first


def test_a_study_may_redefine_the_labels_of_tables_and_figures():
    one = {"tables": {"main": {"kind": "communication", "target": 80}}}
    two = {"tables": {"main": {"kind": "accuracy"}}}
    assert merge([(Path("a.yaml"), one), (Path("b.yaml"), two)]) == two


def test_labels_of_later_files_come_last_and_lists_are_replaced():
    one = {"methods": {"b": {"plugin": "b"}}, "select": {"methods": ["b"], "tables": ["t"]}}
    two = {"methods": {"a": {"plugin": "a"}}, "select": {"methods": ["a"]}}
    merged = merge([(Path("1"), one), (Path("2"), two)], {"study": {"rounds": 3}})
    assert list(merged["methods"]) == ["b", "a"]
    assert merged["select"] == {"methods": ["a"], "tables": ["t"]}
    assert merged["study"] == {"rounds": 3}


BAD_FILES = {
    "nothing": (b"", "expected a mapping of keys, found nothing"),
    "a list": (b"- a\n", "expected a mapping of keys, found list"),
    "a word": (b"word\n", "expected a mapping of keys, found str"),
    "no YAML": (b"study: {name: [}\n", "line 1, column "),
    "a tab": (b"study:\n\tname: x\n", "line 2, column 1: found character"),
    "another encoding": ("name: \u00e9\n".encode("latin-1"), "not UTF-8"),
    "zero bytes": (b"name: \x00\n", "unacceptable character"),
    "a list for a key": (b"? [a]\n: b\n", "cannot be a key"),
    "a python object": (b"a: !!python/object:os.system {}\n", "config key a"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_no_config_is_one_line(case, tmp_path):
    content, line = BAD_FILES[case]
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(FedLoomError) as error:
        resolve(merge([(CONFIG, DEFAULT), (path, read(path))]))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_and_a_missing_file_are_one_line(tmp_path):
    with pytest.raises(FedLoomError, match="a folder, pipe"):
        read(tmp_path)
    with pytest.raises(FedLoomError, match=r"no.yaml: No such file or directory"):
        read(tmp_path / "no.yaml")


def _bomb(file):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 9):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    file.write_text("\n".join(lines))


ENDLESS = {
    "a YAML bomb": (_bomb, "more than 100000 values, each alias"),
    "a pipe": (os.mkfifo, "a folder, pipe, socket or device"),
    "a device": (lambda file: file.symlink_to("/dev/zero"), "a folder, pipe, socket or device"),
    "a large file": (lambda file: file.write_text("#" * 2**23), "larger than 4 MiB"),
}


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("included", [False, True])
def test_a_file_that_would_never_be_read_to_its_end(case, included, tmp_path):
    make, line = ENDLESS[case]
    file = study = tmp_path / "file.yaml"
    make(file)
    if included:
        study = tmp_path / "study.yaml"
        study.write_text("include: [file.yaml]")
    script = "import sys; from fedloom.commands.planning import load_plan; load_plan([sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", script, study], capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(ROOT / "workflow")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)),
    )  # fmt: skip
    assert done.stderr.startswith(f"error: {file}: ") and line in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("label", ["x" * 101, "x\n", "-x", "a/b", "\u00e9"])
def test_labels_name_files(label):
    with pytest.raises(FedLoomError, match=r"^config key methods"):
        _resolved(methods={label: {"plugin": "fedvpt"}})


def test_a_plugins_name_needs_no_entry_and_looks_alike_in_every_study():
    alone = _resolved(select={"methods": ["pfedpg"], "figures": []})
    beside = _resolved(
        methods={"first": {"plugin": "pfedpg", "options": {"prompts": 1}}},
        select={"methods": ["first", "pfedpg"], "figures": []},
    )
    assert alone.methods["pfedpg"] == beside.methods["pfedpg"]


def test_only_local_weights_have_a_fingerprint():
    tag = {"library": "open_clip", "name": "ViT-B-16-quickgelu", "weights": "openai"}
    study = _resolved(
        backbones={"clip": tag},
        select={"backbones": ["clip"], "methods": ["promptfl"], "figures": []},
    )
    assert study.backbones["clip"].sha256 is None
    assert _resolved().backbones["micro_vit"].sha256 == sha256(
        ROOT / DEFAULT["backbones"]["micro_vit"]["weights"]
    )


def _resolved(**sections):
    """The default study with some keys of its sections changed."""
    changed = deepcopy(DEFAULT)
    for name, content in sections.items():
        changed[name] |= content
    return resolve(changed)


def test_training_options_are_the_papers_then_the_studys_then_the_labels():
    methods = _resolved(methods={"fast": {"plugin": "fedvpt", "training": {"lr": 0.7}}}).methods
    assert methods["fast"].training["lr"] == 0.7
    assert methods["fast"].training["epochs"] == DEFAULT["study"]["training"]["epochs"]
    assert methods["fast"].training["momentum"] == 0.9
    assert methods["pep_fedpt"].training["lr"] == 0.3


def _plans(*studies):
    return [Plan(_resolved(study=study)) for study in studies]


def test_extending_a_study_changes_no_earlier_job():
    sizes = {"rounds_per_job": 7}
    short, long = _plans({"rounds": 21} | sizes, {"rounds": 30} | sizes)
    assert job_ends(short.settings.study) == [7, 14, 21]
    assert job_ends(long.settings.study) == [7, 14, 21, 28, 30]
    run = runs(short.settings)[0]
    for end in ("0007", "0014", "0021"):
        wildcards = SimpleNamespace(**vars(run), end=end)
        assert short.train_job(wildcards) == long.train_job(wildcards)


def test_the_number_of_rounds_is_part_of_a_run_only_under_a_cosine():
    plain, cosine = _plans({}, {"training": {"schedule": "cosine"}})
    run = runs(plain.settings)[0]
    assert plain.run_spec(run).schedule_rounds is None
    assert cosine.run_spec(run).schedule_rounds == plain.settings.study.rounds


@pytest.mark.parametrize(("last", "rounds"), [(1, (20,)), (3, (16, 18, 20))])
def test_reported_rounds(last, rounds):
    study = _resolved(study={"rounds": 20, "report": {"last_evaluations": last}}).study
    assert reported(study) == Reported(rounds)


def test_evaluating_at_the_end_of_a_job_changes_no_reported_number():
    asked = {"rounds": 20, "rounds_per_job": 19, "report": {"last_evaluations": 3}}
    study = _resolved(study=asked).study
    assert reported(study) == Reported((16, 18, 20))
    assert set(evaluated_rounds(study)) >= {16, 18, 19, 20}


def test_yamls_merge_keys_work(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert read(path)["b"] == {"x": 1, "y": 3}


def test_an_anchor_that_holds_itself_is_one_line(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("study: &study {name: x, training: *study}\n")
    with pytest.raises(FedLoomError, match=r"study.training: must be a mapping"):
        resolve(merge([(CONFIG, DEFAULT), (path, read(path))]))


def test_a_number_with_an_exponent_is_a_number(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("lr: 5e-4\n")
    assert read(path) == {"lr": 0.0005}


def test_clipping_can_be_turned_off():
    study = _resolved(study={"training": {"clip": None}})
    assert study.methods["fedvpt"].training["clip"] is None


def test_a_method_that_is_not_trained_has_a_spec():
    plan = Plan(_resolved(methods={"fixed": {"plugin": "zero_shot_clip"}}, study={"training": {}}))
    run = Run("digits", "iid", "micro_vit", "fixed", 0)
    assert plan.run_spec(run).schedule_rounds is None


def test_hardly_a_round_of_the_default_study_misses_a_style():
    """Inverted letters' loss is ten times the others': without them, the curve falls and rises."""
    config = read(CONFIG)
    study, scheme = config["study"], config["partitions"]["domains"]
    of_style = scheme["clients_per_domain"] - scheme["held_out_per_domain"]
    clients = of_style * len(config["datasets"]["styles"]["styles"])
    misses, rounds = (
        math.comb(n, study["clients_per_round"]) for n in (clients - of_style, clients)
    )
    assert misses / rounds < 0.002
    assert len(study["seeds"]) >= 4, "fewer give intervals that say little"
