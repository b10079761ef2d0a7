"""What people get wrong in a config, as they see it: one line, no traceback, nothing written."""

import subprocess
import sys
from copy import deepcopy
from types import SimpleNamespace

import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import sha256
from fedloom.config.protocols import evaluated_rounds, job_ends, reported_rounds
from fedloom.config.reading import parse, read
from fedloom.config.settings import ReportedRounds
from fedloom.hooks import manifest
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import DEFAULT_CONFIG, load_plan, resolve
from fedloom.planning.plan import Plan
from fedloom.planning.runs import study_runs
from refusals import refused

DEFAULT = default_config()

BAD = [  # a study, and what its error holds
    ("study: {round: 3}", "study.round: unknown key; did you mean 'rounds'?"),
    ("studdy: {}", "config key studdy: unknown key; did you mean 'study'?"),
    ("methods: [fedvpt]", "methods: must be a mapping, got ['fedvpt']"),
    ("study: {training: {lr: .nan}}", "training.lr: must be a finite number, got nan"),
    ("study: {rounds: 10000}", "study.rounds: must be "),
    ("study: {rounds: 3, rounds: 4}", 'yaml, line 1, column 20: found duplicate key "rounds"'),
    ("study: {rounds: 4, report: {last_evaluations: 3}}",
     "study.report.last_evaluations: must be at most 2, the number of evaluated rounds"),
    ("datasets: {new: {source: [sklearn_digits]}}", "datasets.new.source: no source '['sklearn_"),
    ("datasets: {new: {source: folder, root: x, domain: true}}", "new.domain: unknown key"),
    ("datasets: {new: {source: glyphs, classes: 200}}", "equal to 120, got 200"),
    ("partitions: {new: {scheme: dirichlett, clients: 3}}", "no scheme 'dirichlett'; did you mean"),
    ("partitions: {new: {scheme: dirichlet, kind: client, clients: 3}}", "new.alpha: missing"),
    ("partitions: {new: {scheme: domain, alpha: 0.5}}", "partitions.new: alpha needs kind"),
    ("partitions: {new: {scheme: domain, clients_per_domain: 3, held_out: 0.1, "
     "held_out_per_domain: 1}}", "partitions.new: held_out and held_out_per_domain; set one"),
    ("partitions: {new: {scheme: domain, held_out_per_domain: 1}}",
     "held_out_per_domain must be below 1"),
    ("partitions: {new: {scheme: iid, clients: 3, arrivals: {of: classes, at: [5, 3]}}}",
     "partitions.new.arrivals: "),
    ("partitions: {new: {scheme: iid, clients: 3, arrivals: {of: classes, at: [1, 3]}}}",
     "partitions.new.arrivals.at[0]: "),
    ("methods: {new: {plugin: fedvtp}}", "methods.new.plugin: no method 'fedvtp'; did you mean"),
    ("methods: {new: {plugin: pep_fedpt, options: {tau: 0}}}", "methods.new.options.tau: "),
    ("methods: {new: {plugin: pep_fedpt, options: {taau: 1}}}", "options.taau: unknown key; did"),
    ("methods: {fedvpt: {plugin: fedvpt, options: {prompts: 9}}}", "methods.fedvpt means one"),
    ("methods: {new: {plugin: pep_fedpt, wrappers: [{plugin: dp_laplace}, {plugin: dp_laplace}]}}",
     "methods.new.wrappers: the list has a wrapper twice"),
    ("select: {methods: [pep_fedtp]}", "select.methods: no label 'pep_fedtp'; did you mean"),
    ("select: {methods: [sgptt]}", "select.methods: no label 'sgptt'; did you mean 'sgpt'?"),
    ("select: {tables: [mian]}", "select.tables: no label 'mian'; did you mean 'main'?"),
    ("select: {methods: [fedvpt, promptfl]}", "methods.promptfl works on a clip, backbones.micro_"),
    ("backbones: {new: {library: timm, name: micro_vit, weights: no.safetensors}}\n"
     "select: {backbones: [new]}", "backbones.new.weights: the file '"),
    ("backbones: {new: {library: open_clip, name: micro_clip, weights: no.safetensors}}\n"
     "select: {backbones: [new]}", "backbones.new.weights: the file '"),
    ("study: {clients_per_round: 19}\nselect: {partitions: [pathological]}",
     "study.clients_per_round: must be at most 18, the participating clients of partitions.path"),
    ("tables: {new: {kind: acuracy}}", "tables.new.kind: no kind 'acuracy'; did you mean"),
    ("tables: {new: {kind: accuracy, methods: [fedvptt]}}\nselect: {tables: [new]}",
     "tables.new.methods: no label 'fedvptt'; did you mean 'fedvpt'?"),
    ("figures: {new: {kind: convergence, metric: global}}\nselect: {figures: [new]}",
     "figures.new: metric global needs study.global_test: true"),
    *((f"partitions: {{all: {{scheme: iid, clients: 20}}}}\nfigures: {{new: {{kind: {kind}}}}}\n"
       "methods: {taus: {plugin: pep_fedpt, grid: {tau: [0.05, 0.5]}}}\n"
       "select: {partitions: [pathological, all], methods: [taus], figures: [new]}",
       "figures.new: metric held_out_mean needs held-out clients, and partitions.all holds none")
      for kind in ("seed_points, metrics: [held_out_mean]", "two_metrics, x: held_out_mean",
                   "accuracy_bars, metric: held_out_mean",
                   "option_line, metrics: [held_out_mean]")),
    *((f"{section}: {{new: {{kind: {kind}}}}}\nselect: {{{section}: [new]}}",
       f"{section}.new: kind {kind} needs study.confusion: true")
      for section, kind in (("tables", "scores"), ("figures", "reliability"),
                            ("figures", "confusion"))),
    ("study: {confusion: true}\nfigures: {new: {kind: confusion}}\nselect: {figures: [new], "
     "methods: [head_tuning, fedvpt, fedvpt_deep, p_pt, pep_fedpt, sgpt, pfpt, pfedpg, fedpr, "
     "ditto]}", "figures.new: must show at most 9 combinations of scenario, backbone and method, "
     "got 10; name some of them in methods, scenarios or backbones"),
    ("select: {methods: [fedvpt], figures: [weights]}",
     "figures.weights: the study runs none of its methods that gives 'soft_weights'"),
    ("select: {methods: [fedvpt, pep_no_ccmp], figures: [bare]}\n"
     "methods: {pep_no_ccmp: {plugin: pep_fedpt, options: {ccmp: false}}}\n"
     "figures: {bare: {kind: soft_weights, classes: [0]}}",
     "figures.bare: the study runs none of its methods that gives 'soft_weights'"),
    ("tables: {new: {kind: accuracy, published: {paper: pep_fedpt, table: 1, "
     "rows: {fedvtp: FedVPT}, columns: {digits/pathological: CIFAR-100 pathological}}}}\n"
     "select: {tables: [new]}", "tables.new.published.rows: the study has no 'fedvtp'; did you"),
    ("tables: {new: {kind: accuracy, published: {paper: pep_fedpt, table: 4, "
     "rows: {fedvpt: Only Sharde}, columns: {styles/four_classes: Pathological}}}}\n"
     "select: {tables: [new]}", "published.rows.fedvpt: the paper has no 'Only Sharde'; did you"),
    ("partitions: {new: {scheme: pathological, clients: 20, classes_per_client: 2}}\n"
     "select: {partitions: [new], tables: [heldout]}", "tables.heldout: at least one partition"),
    ("select: {methods: [sgpt], tables: [mine]}\n"
     "tables: {mine: {kind: clustering, superclasses: nowhere.yaml}}",
     "tables.mine.superclasses: the file 'nowhere.yaml' does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), BAD)
def test_one_clear_line(text, line, tmp_path, monkeypatch):
    (tmp_path / "bad.yaml").write_text(text + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedLoomError) as end:
        load_plan([tmp_path / "bad.yaml"])
    said = str(end.value)
    assert said.isprintable()
    assert line in said
    assert not (tmp_path / "results").exists()


def test_snakemake_ends_with_that_line_alone(tmp_path):
    (tmp_path / "bad.yaml").write_text("study: {report: {last_evaluations: 30}}")
    command = [sys.executable, "-m", "snakemake", "-n", "-s", ROOT / "Snakefile"]
    done = subprocess.run(
        [*command, "--configfile", tmp_path / "bad.yaml", "--directory", tmp_path / "work"],
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    (error,) = [x for x in output.splitlines() if "rror" in x]
    assert done.returncode != 0
    assert "Traceback" not in output
    assert error.startswith("error: ") and "study.report.last_evaluations" in error
    assert not (tmp_path / "work" / "results").exists()


PLACED = [  # a study, and the line of the value that its error names
    ("# a study\nstudy:\n  rounds: 5\n  clients_per_round: many\n", 4),
    ("select:\n  methods:\n    - fedvpt\n    - fedvptt\n", 4),
    ("methods:\n  new:\n    plugin: fedvpt\n    options: {prompt: 3}\n", 4),
    ("tables:\n  new:\n    kind: accuracy\n    methods: [fedvptt]\nselect: {tables: [new]}\n", 4),
    ("methods:\n  new.one:\n    plugin: fedvpt\n    wrappers:\n      - plugin: top_kk\n", 5),
    ("study:\n  tune: {values: {lrr: [1]}, trials: 1}\n", 2),
    ("datasets:\n  mine: {source: glyphs}\nselect:\n  scenarios:\n    - mine/no\n", 5),
]


@pytest.mark.parametrize(("text", "line"), PLACED)
def test_an_error_names_file_and_line(text, line, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(FedLoomError, match=rf"\(.*mine.yaml, line {line}\)$"):
        load_plan([path])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rounds=many", "study.rounds: must be an integer, got 'many'"),
        ("study.training.lrr=0.1", "study.training.lrr: unknown key; did you mean 'lr'?"),
        ("ruonds=4", "study.ruonds: unknown key; did you mean 'rounds'?"),
        ("selectt.methods=[fedvpt]", "selectt: unknown key; did you mean 'select'?"),
        ("select.methods=[fedvptt]", "select.methods: no label 'fedvptt'"),
        ("report.last_evaluations=9", "study.report.last_evaluations: must be at most 6"),
    ],
)
def test_an_error_of_a_change_names_the_argument_and_no_file(change, said):
    with pytest.raises(FedLoomError) as end:
        load_plan(overrides={"set": [change]})
    assert said in str(end.value)
    assert str(end.value).endswith(f" (--set {change})")


@pytest.mark.parametrize("label", ["x" * 101, "x\n", "-x", "a/b", "\u00e9"])
def test_labels_name_files(label):
    with pytest.raises(FedLoomError, match=r"^config key methods"):
        resolved_with(methods={label: {"plugin": "fedvpt"}})


def test_a_plugins_name_needs_no_entry_and_looks_alike_in_every_study():
    alone = resolved_with(select={"methods": ["pfedpg"], "figures": []})
    beside = resolved_with(
        methods={"first": {"plugin": "pfedpg", "options": {"prompts": 1}}},
        select={"methods": ["first", "pfedpg"], "figures": []},
    )
    assert alone.methods["pfedpg"] == beside.methods["pfedpg"]


def test_only_local_weights_have_a_fingerprint():
    tag = {"library": "open_clip", "name": "ViT-B-16-quickgelu", "weights": "openai"}
    study = resolved_with(
        backbones={"clip": tag},
        select={"backbones": ["clip"], "methods": ["promptfl"], "figures": []},
    )
    assert study.backbones["clip"].sha256 is None
    assert resolved_with().backbones["micro_vit"].sha256 == sha256(
        ROOT / DEFAULT["backbones"]["micro_vit"]["weights"]
    )


def resolved_with(**sections):
    """Return the settings of the default study with some keys of its sections changed."""
    changed = deepcopy(DEFAULT)
    for name, content in sections.items():
        changed[name] |= content
    return resolve(changed)


def plans_of(*studies):
    return [Plan(resolved_with(study=study)) for study in studies]


def test_extending_a_study_changes_no_earlier_job():
    sizes = {"rounds_per_job": 7}
    short, long = plans_of({"rounds": 21} | sizes, {"rounds": 30} | sizes)
    assert job_ends(short.settings.study) == [7, 14, 21]
    assert job_ends(long.settings.study) == [7, 14, 21, 28, 30]
    run = study_runs(short.settings)[0]
    for end in ("0007", "0014", "0021"):
        wildcards = SimpleNamespace(**vars(run), end=end)
        assert short.job("train", wildcards) == long.job("train", wildcards)


def test_evaluating_at_the_end_of_a_job_changes_no_reported_number():
    asked = {"rounds": 20, "rounds_per_job": 19, "report": {"last_evaluations": 3}}
    study = resolved_with(study=asked).study
    assert reported_rounds(study) == ReportedRounds((16, 18, 20))
    assert set(evaluated_rounds(study)) >= {16, 18, 19, 20}


def test_the_default_study_compares_a_head_with_the_same_head_told():
    """The control differs from its method by the wrapper alone; fewer seeds decide little."""
    config = read(DEFAULT_CONFIG)
    methods = resolve(config).methods
    assert methods["head_told"].plugin == methods["head_tuning"].plugin
    assert methods["head_told"].options == methods["head_tuning"].options
    assert [wrapper.plugin for wrapper in methods["head_told"].wrappers] == ["class_priors"]
    assert not methods["head_tuning"].wrappers
    assert len(config["study"]["seeds"]) >= 4


def test_a_number_that_no_table_holds_is_one_line():
    with refused("f: a whole number must fit into 64 bits"):
        parse(f"rounds: 0x{'f' * 5000}", "f")


@pytest.mark.parametrize("seed", [2**31, 2**63, -1])
def test_a_seed_fits_the_tables_that_name_it(seed):
    """A seed that the tables cannot hold would fail only after the training."""
    with refused("study.seeds", str(seed)):
        loaded_with = deepcopy(DEFAULT)
        loaded_with["study"]["seeds"] = [seed]
        resolve(loaded_with)


@pytest.mark.parametrize(
    ("word", "near"),
    [("FedVPT", "fedvpt"), ("PEP-FedPT", "pep_fedpt"), ("Head-Tuning", "head_tuning")],
)
def test_the_name_in_tables_finds_the_name_in_studies(word, near):
    with pytest.raises(FedLoomError, match=rf"'{word}'; did you mean '{near}'\?"):
        manifest.find_method(word)
