"""Files that ship with FedLoom, and those of the folder in which a person works."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedloom.cli.make.templates import new_folder
from fedloom.common.errors import FedLoomError
from fedloom.hooks import loader, manifest
from fedloom.machine import extras
from fedloom.machine.install import ROOT, resource
from fedloom.planning.load_plan import load_plan

WEIGHTS = "workflow/resources/micro_vit.safetensors"
LABELS = {"dataset": "styles", "partition": "four_classes", "backbone": "micro_vit", "seed": 0}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _own_plugin(folder: Path, name: str) -> None:
    shutil.copytree(ROOT / "plugins/methods/head_tuning", folder / "plugins" / name)
    toml = folder / "plugins" / name / "method.toml"
    toml.write_text(toml.read_text().replace('name = "head_tuning"', f'name = "{name}"'))


def test_a_relative_path_starts_here_and_else_among_the_files_that_ship(here):
    assert resource("data/letters") == here / "data/letters"
    assert resource(WEIGHTS) == ROOT / WEIGHTS
    (here / WEIGHTS).parent.mkdir(parents=True)
    (here / WEIGHTS).touch()
    assert resource(WEIGHTS) == here / WEIGHTS


def test_own_plugins_lie_beside_those_that_ship(tmp_path, monkeypatch):
    _own_plugin(tmp_path, "mine")
    _own_plugin(tmp_path, "fedvpt")
    monkeypatch.chdir(tmp_path)
    assert manifest.find_method("mine").folder == tmp_path / "plugins/mine"
    assert manifest.find_method("head_tuning").folder == ROOT / "plugins/methods/head_tuning"
    with pytest.raises(FedLoomError, match="'fedvpt' is defined twice"):
        manifest.find_method("fedvpt")


def test_a_folder_of_plugins_may_have_rooms(tmp_path, monkeypatch):
    """Plugins may lie in subfolders (methods, wrappers, tables), as those that ship do."""
    _own_plugin(tmp_path, "direct")
    _own_plugin(tmp_path, "in_room")
    (tmp_path / "plugins/methods").mkdir()
    (tmp_path / "plugins/in_room").rename(tmp_path / "plugins/methods/in_room")
    monkeypatch.chdir(tmp_path)
    assert manifest.find_method("direct").folder == tmp_path / "plugins/direct"
    assert manifest.find_method("in_room").folder == tmp_path / "plugins/methods/in_room"
    assert not manifest.discover_methods().errors


def test_every_plugin_that_ships_lies_in_the_room_of_its_kind():
    for plugin in manifest.discover_methods().values():
        assert plugin.folder == ROOT / f"plugins/{plugin.kind}s" / plugin.name


@pytest.mark.parametrize("old", loader.MOVED)
def test_a_plugin_that_imports_a_module_by_its_old_name_is_told_the_new_one(here, old):
    _own_plugin(here, "mine")
    file = here / "plugins/mine/plugin.py"
    file.write_text(f"import {old}\n{file.read_text()}")
    manifest.discover_methods.cache_clear()
    with pytest.raises(FedLoomError, match=f"{old}, which is now {loader.MOVED[old]}; import that"):
        loader.import_plugin(manifest.find_method("mine"))


def test_studies_lie_over_the_folders_config_but_bundled_ones_do_not(here):
    (here / "config.yaml").write_text("study: {name: mine, rounds: 7, confusion: true}\n")
    (here / "other.yaml").write_text("study: {seeds: [5]}\n")
    study = load_plan([Path("other.yaml")]).settings.study
    assert (study.name, study.rounds, study.seeds) == ("mine", 7, [5])
    assert not load_plan([ROOT / "workflow/studies/micro/micro_vit.yaml"]).settings.study.confusion


def test_keys_of_the_folders_config_fit_a_study_that_lies_over_it(here):
    """Keys inherited from config.yaml are adapted to a study, since nobody wrote them for it."""
    own = "study: {rounds: 4, seeds: [0, 1], clients_per_round: 5, report: {last_evaluations: 2}}\n"
    (here / "config.yaml").write_text(own)
    (here / "short.yaml").write_text("study: {name: short, rounds: 1}\n")
    assert load_plan([Path("short.yaml")]).settings.study.report.last_evaluations == 1
    four = "partitions: {four: {scheme: iid, clients: 4}}\nselect: {partitions: [four]}\n"
    (here / "four.yaml").write_text(four)
    assert load_plan([Path("four.yaml")]).settings.study.clients_per_round == 4


@pytest.mark.parametrize(
    ("file", "study"), [("mine.yaml", [Path("mine.yaml")]), ("config.yaml", [])]
)
def test_a_change_drops_no_figure_that_the_file_selects(here, file, study):
    """One of the file's figures needs a method that the change leaves out, which is an error."""
    (here / file).write_text("select: {tables: [main], figures: [accuracy, weights]}\n")
    with pytest.raises(FedLoomError, match=r"figures\.weights"):
        load_plan(study, {"set": ["select.methods=[fedvpt]"]})
    shorter = load_plan(study, {"set": ["study.rounds=2"]})
    assert shorter.settings.study.report.last_evaluations == 1
    assert [*shorter.settings.figures] == ["accuracy", "weights"]


def test_a_change_leaves_out_inherited_figures_that_do_not_suit_it(here):
    """Figures are inherited from the default study, or from the config.yaml below a study."""
    changes = {"set": ["select.methods=[fedvpt]"]}
    assert "weights" not in load_plan(overrides=changes).settings.figures
    (here / "config.yaml").write_text("select: {tables: [main], figures: [accuracy, weights]}\n")
    (here / "mine.yaml").write_text("study: {name: mine}\n")
    plan = load_plan([Path("mine.yaml")], changes)
    assert [*plan.settings.figures] == ["accuracy"]
    assert any("figures.weights" in note for note in plan.settings.notes)


def test_the_trials_of_the_folders_config_belong_to_its_study(here):
    (here / "config.yaml").write_text((ROOT / "config.yaml").read_text())
    (here / "other.yaml").write_text("study: {name: other}\n")
    assert load_plan().settings.study.tune is not None
    assert load_plan([Path("other.yaml")]).settings.study.tune is None


def test_results_outlive_a_move_of_folder_or_environment(tmp_path, monkeypatch):
    seen = []
    for folder in (tmp_path, tmp_path / "below"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        plan = load_plan()
        labels = SimpleNamespace(**LABELS, method="fedvpt", end="0012")
        assert plan.weights_file(labels) == [], "a path to them would change"
        seen.append(plan.job("train", labels))
    assert seen[0] == seen[1]


def test_a_new_folder_holds_a_study_that_plans_and_overwrites_nothing(here, monkeypatch):
    new_folder(Path("new"))
    assert {path.name for path in Path("new").iterdir()} == {
        *(".gitignore", "Snakefile", "config.yaml", "examples", "plugins", "profiles")
    }
    shipped = {file.relative_to(ROOT) for file in ROOT.glob("examples/*/*/*.*")}
    assert shipped == {file.relative_to("new") for file in Path("new").glob("examples/*/*/*")}
    (here / "new/Snakefile").write_text("mine")
    with pytest.raises(FedLoomError, match=r"^new/\S+: already exists"):
        new_folder(Path("new"))
    assert (here / "new/Snakefile").read_text() == "mine"
    monkeypatch.chdir(here / "new")
    assert load_plan().name == "first"  # the README and a notebook use the name "mine"


def test_a_study_may_be_put_into_a_repository_that_is_there(here):
    (here / "mine/.git").mkdir(parents=True)
    (here / "mine/README.md").write_text("mine")
    new_folder(Path("mine"))
    assert (here / "mine/Snakefile").exists() and (here / "mine/README.md").read_text() == "mine"


def test_a_package_of_an_extra_that_is_missing_is_one_line(monkeypatch):
    monkeypatch.setitem(extras.EXTRAS, "no_such_module", "clip")
    with pytest.raises(FedLoomError, match=r"no_such_module: .*; pip install 'fedloom\[clip\]'$"):
        extras.require_extra("no_such_module")
