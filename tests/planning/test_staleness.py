"""What reruns after an edit: the static import closure of what a job runs."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT
from fedloom.planning import staleness
from fedloom.planning.load_plan import resolve
from fedloom.planning.paths import four_digits
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.run_labels import Wildcards

LIBRARY = ROOT / "workflow/fedloom"


def _names(files):
    """Return the modules of fedloom among the files, named as report/figures/grid."""
    resolved = [Path(file).resolve() for file in files]
    inside = [file for file in resolved if file.is_relative_to(LIBRARY)]
    return {str(file.relative_to(LIBRARY).with_suffix("")) for file in inside}


def _sources_of(*plugins):
    return staleness.source_files((), map(manifest.find_method, plugins))


def _sources(rule, job):
    return _names(staleness.source_files(*RULES[rule].code(job)))


def _train_job(plan, run):
    """Return the job that trains the first round of a run."""
    return plan.job("train", Wildcards(**vars(run), end=four_digits(1)))


def test_editing_a_piece_of_the_toolbox_reruns_the_methods_that_call_it():
    users = {
        name
        for name in manifest.discover_methods()
        if "toolbox/cross_attention" in _names(_sources_of(name))
    }
    assert users == {"fedmvp", "fedtpg", "pfedmma", "pfedmoap", "pfpt"}
    assert "toolbox/__init__" not in _names(_sources_of("fedmvp"))


def test_a_run_depends_on_what_trains_it_and_not_on_reports():
    plan = Plan(resolve(default_config()))
    names = _sources("train", _train_job(plan, plan.runs[0]))
    loop = {"training_job", "round", "evaluate", "local_training", "build_task"}
    assert {f"federated/{name}" for name in loop | {"task", "state"}} <= names
    assert {"data/federation", "backbones/vit", "common/trees", "hooks/defaults"} <= names
    assert "jobs/train_job" in names
    assert not any(
        name.startswith(("report", "backbones/clip", "planning/plan", "planning/rules"))
        for name in names
    )


def test_an_edited_plugin_changes_the_digest_of_its_runs_alone(tmp_path, monkeypatch):
    own = {"my_head": "head_tuning", "my_vpt": "fedvpt"}
    for name, shipped in own.items():
        shutil.copytree(manifest.find_method(shipped).folder, tmp_path / "plugins" / name)
        toml = tmp_path / "plugins" / name / "method.toml"
        toml.write_text(toml.read_text().replace(f'"{shipped}"', f'"{name}"', 1))
    monkeypatch.chdir(tmp_path)
    config = default_config()
    config["methods"] = {name: {"plugin": name} for name in own}
    config["select"] |= {"methods": list(own), "tables": ["main"], "figures": []}

    def digests():
        plan = Plan(resolve(config))
        return {run.method: plan.sources("train", _train_job(plan, run)) for run in plan.runs}

    before = digests()
    file = tmp_path / "plugins/my_vpt/plugin.py"
    file.write_text(file.read_text() + "# edited\n")
    after = digests()
    assert before["my_head"] == after["my_head"]
    assert before["my_vpt"] != after["my_vpt"]


def test_a_figure_depends_on_its_kind_and_what_it_imports():
    config = default_config()
    config["figures"] |= {"heat": {"kind": "grid"}}
    config["methods"] |= {
        "g": {"plugin": "fedvpt", "grid": {"prompts": [1, 2], "weighted": [True]}}
    }
    config["select"] |= {"methods": ["g"], "figures": ["heat"]}
    names = _sources("figure", Plan(resolve(config)).job("figure", SimpleNamespace(label="heat")))
    assert {"report/figures/grid_plots", "report/figures/style", "report/metrics"} <= names
    assert {
        "config/grids",
        "planning/output_runs",
        "jobs/figure_job",
    } <= names
    assert "report/figures/maps" not in names
    assert not any(name.startswith(("federated", "toolbox", "backbones")) for name in names)


def test_a_source_and_a_scheme_depend_on_themselves_alone():
    plan = Plan(resolve(default_config()))
    digits = _sources("dataset", plan.job("dataset", SimpleNamespace(dataset="digits")))
    assert "data/sources/sklearn_digits" in digits and "data/sources/glyphs" not in digits
    schemes = {
        name: _sources("partition", plan.job("partition", SimpleNamespace(**labels)))
        for name in ("iid", "domains")
        for labels in ({"dataset": "digits", "partition": name, "seed": 0},)
    }
    assert "data/schemes/iid" in schemes["iid"] and "data/schemes/dirichlet" not in schemes["iid"]
    assert {f"data/schemes/{k}" for k in ("domain", "dirichlet", "iid")} <= schemes["domains"]


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Yield an installed package with the template as a method `mine`, and a wrapper `around`."""
    site = tmp_path / "site"
    plugin = site / "theirs/methods/mine"
    around = site / "theirs/around"
    for folder in (site / "theirs", site / "theirs/methods", plugin, around):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("")
    text = (ROOT / "plugins/_template/method.toml").read_text()
    (plugin / "method.toml").write_text(text.replace('name = "template"', 'name = "mine"'))
    code = (ROOT / "plugins/_template/plugin.py").read_text()
    imports = "from theirs.maths import near\nfrom . import own\nfrom ... import maths\n"
    (plugin / "plugin.py").write_text(imports + code)
    (plugin / "own.py").write_text("import numpy\n")
    shutil.copy(ROOT / "plugins/_template/options.py", plugin)
    toml = 'kind = "wrapper"\nname = "around"\ntitle = "A"\n[paper]\ncitation = "C"\n'
    (around / "method.toml").write_text(toml)
    (around / "plugin.py").write_text("from theirs import maths\n")
    (site / "theirs/maths.py").write_text("from theirs import deep\nnear = 1\n")
    (site / "theirs/deep.py").write_text("")
    info = site / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    entry = "[fedloom.methods]\nmine = theirs.methods.mine\naround = theirs.around\n"
    (info / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(site)
    _forget("theirs")  # another test may have imported it
    yield site
    _forget("theirs")


def _forget(package):
    """Make Python import a package anew."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


def _of(site):
    files = {Path(file).resolve() for file in _sources_of("mine")}
    return {str(file.relative_to(site)) for file in files if file.is_relative_to(site)}


def test_modules_of_an_installed_plugins_package_count_wherever_they_lie(theirs):
    own = _of(theirs)
    assert {
        "theirs/methods/mine/plugin.py",
        "theirs/methods/mine/own.py",
        "theirs/methods/mine/method.toml",
        "theirs/maths.py",
        "theirs/deep.py",
    } <= own
    assert {"theirs/__init__.py", "theirs/methods/__init__.py"} <= own


def test_a_job_has_the_modules_that_plugins_share_anew_and_once(theirs):
    """A job imports shared modules anew, and its method and wrapper have the same ones."""
    mine, around = (manifest.find_method(name) for name in ("mine", "around"))
    loader.load_hooks(mine, wrappers=[around])
    first = sys.modules["theirs.maths"]
    first.near = "left behind"
    loader.load_hooks(mine, wrappers=[around])
    shared = sys.modules["theirs.maths"]
    assert shared is not first and shared.near == 1
    assert sys.modules["theirs.methods.mine.plugin"].maths is shared
    assert sys.modules["theirs.around.plugin"].maths is shared


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(FedLoomError, match=r"fedloom.report.figures.pie"):
        staleness.source_files(("fedloom.report.figures.pie",))


def test_a_module_that_is_no_python_is_one_line(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def (")
    with pytest.raises(FedLoomError, match=r"bad.py") as error:
        staleness._imports(file)
    assert "\n" not in str(error.value)
