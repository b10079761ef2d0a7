"""A plugin that is broken: an error where a study uses it."""

import os
import shutil

import pytest

from default_config import default_config
from fedloom.cli.inspect import describe
from fedloom.common.errors import FedLoomError
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import load_plan, resolve


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write an installed plugin `theirs`, a copy of head_tuning, and return its folder."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "plugins/methods/head_tuning", site / "theirs")
    (site / "theirs/__init__.py").write_text("")
    info = site / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedloom.methods]\ntheirs = theirs\n")
    monkeypatch.syspath_prepend(site)
    toml = site / "theirs/method.toml"
    toml.write_text(toml.read_text().replace('"head_tuning"', '"theirs"'))
    return site / "theirs"


def _told(capsys, tmp_path, line):
    """Require that a study without the plugin is planned, and one that selects it is refused."""
    load_plan()
    assert not capsys.readouterr().err
    study = tmp_path / "study.yaml"
    study.write_text("select: {methods: [theirs], tables: [main], figures: []}")
    with pytest.raises(FedLoomError, match=line) as error:
        load_plan([study])
    assert "\n" not in str(error.value)
    assert "broken: " in describe.list_methods()


def test_an_option_that_is_no_schema(folder, tmp_path, capsys):
    option = 'type = "string"\ndescription = "x"\ndefault = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"'
    toml = folder / "method.toml"
    toml.write_text(f'{toml.read_text()}\n[options.rate]\n{option}\npattern = "^(a+)+$"\n')
    _told(capsys, tmp_path, r"method.toml: options.rate.pattern: unknown key")


def test_a_plugin_that_is_no_python_hides_no_other(folder):
    (folder / "plugin.py").write_text("def (")
    listed = describe.list_methods().splitlines()
    assert sum(line.startswith("fedvpt ") for line in listed) == 1
    assert [line for line in listed if line.startswith("broken: ")] == [listed[-1]]
    assert "theirs/plugin.py: not valid Python" in listed[-1]


@pytest.mark.parametrize("name", ["plugin.py", "method.toml"])
def test_a_plugin_with_a_byte_order_mark_is_read(folder, name):
    """Editors of Windows write a byte order mark at the beginning of a file."""
    file = folder / name
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert any(line.startswith("theirs ") for line in describe.list_methods().splitlines())


def test_a_wrapper_must_not_hide_a_table_of_its_method(folder, tmp_path):
    """The wrapper is asked first, so nobody would ever see the table of the method."""
    toml = folder / "method.toml"
    toml.write_text(f'{toml.read_text()}\n[artefacts.membership]\ndescription = "x"\n')
    study = tmp_path / "study.yaml"
    study.write_text("methods: {both: {plugin: theirs, wrappers: [{plugin: audit}]}}")
    with pytest.raises(FedLoomError, match=r"methods\.both\.wrappers: .* got 'membership' twice; "):
        load_plan([study])


def test_a_method_toml_that_is_a_folder(folder, tmp_path, capsys):
    (folder / "method.toml").unlink()
    (folder / "method.toml").mkdir()
    _told(capsys, tmp_path, "theirs/method.toml: must be a regular file")


def test_an_entry_point_of_a_package_that_cannot_be_imported(folder, tmp_path, capsys):
    (folder / "__init__.py").write_text("raise SystemExit(3)")
    info = folder.parent / "theirs-1.0.dist-info/entry_points.txt"
    info.write_text("[fedloom.methods]\ntheirs = theirs.inner\n")
    _told(capsys, tmp_path, "fedloom.methods:theirs: theirs.inner: SystemExit: 3")


def test_a_module_that_never_ends_is_an_error_of_the_study_that_runs_it(folder, tmp_path):
    os.mkfifo(folder / "more.py")
    study = tmp_path / "study.yaml"
    study.write_text("select: {methods: [theirs], tables: [main], figures: []}")
    load_plan()
    with pytest.raises(FedLoomError, match=r"more.py: must be a regular file"):
        load_plan([study])


def test_a_source_that_is_broken(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples/sources/medmnist", tmp_path / "plugins/medmnist")
    (tmp_path / "plugins/medmnist/source.toml").write_text("name = 3")
    monkeypatch.chdir(tmp_path)
    config = default_config()
    config["datasets"]["scans"] = {"source": "medmnist", "file": "x"}
    with pytest.raises(FedLoomError, match=r"datasets.scans.source: .*source.toml: "):
        resolve(config)


def test_a_label_of_a_broken_plugin_harms_only_who_selects_it(tmp_path, monkeypatch):
    (tmp_path / "plugins/broken").mkdir(parents=True)
    (tmp_path / "plugins/broken/method.toml").write_text("name = 3")
    monkeypatch.chdir(tmp_path)
    config = default_config()
    config["methods"]["mine"] = {"plugin": "broken"}
    config["select"] |= {"methods": ["fedvpt"], "tables": ["main"], "figures": []}
    assert "mine" not in resolve(config).methods
    config["select"]["methods"] = ["mine"]
    with pytest.raises(FedLoomError, match=r"broken/method.toml: "):
        resolve(config)
