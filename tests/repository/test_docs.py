"""The documentation is executed: the code blocks of README, CONTRIBUTING and docs, and the site."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

import checkout
import command_line
from fedloom.cli.make import templates
from fedloom.common import schema
from fedloom.common.key_path import KeyPath
from fedloom.common.run_tables import RUN_SCHEMAS
from fedloom.config import kind_plugins, kinds
from fedloom.config.reading import merge_configs, read
from fedloom.config.study import Config
from fedloom.contract import driver
from fedloom.hooks import manifest
from fedloom.hooks.manifest import MethodManifest, discover_methods
from fedloom.machine.install import ROOT
from fedloom.planning import runs
from fedloom.planning.load_plan import load_plan, resolve
from pages_of_docs import Block, blocks_of
from plugin_finders import forget_plugins
from pretraining.__main__ import MODELS

pytestmark = pytest.mark.slow


README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


SCRIPT = re.compile(r"\b(?:benchmarks|tests)/[\w/]+\.py")


LANGUAGES = {"sh", "yaml", "toml", "python", "text", "math"}


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def name_of_page(value: object) -> str:
    page = value.page if isinstance(value, Block) else value
    return str(page.relative_to(ROOT))


def _each(language: str):
    """Run a test for each block of a language."""
    return pytest.mark.parametrize(
        "block", [block for block in BLOCKS if block.language == language], ids=name_of_page
    )


def test_every_block_says_its_language():
    """A block without one, or of a language that no test here knows, would not be executed."""
    assert {block.language for block in BLOCKS} <= LANGUAGES
    for page in PAGES:
        assert page.read_text().count("```") == 2 * len(blocks_of(page)), page


@_each("yaml")
def test_a_yaml_block_is_a_study_that_resolves(block, tmp_path, monkeypatch):
    """Every label of a block is checked; what it selects is resolved as a study would be."""
    monkeypatch.chdir(tmp_path)
    if block.page == FIRST_METHOD:
        _make_first_method()
    file = tmp_path / "block.yaml"
    file.write_text(block.text)
    fragment = read(file)
    assert fragment.keys() <= Config.model_fields.keys()
    config = ROOT / "config.yaml"
    resolve(merge_configs([(config, read(config)), (file, fragment)]), [config, file])


@_each("toml")
def test_a_toml_block_is_part_of_a_method_or_of_a_package(block):
    content = tomllib.loads(block.text)
    if "project" in content:
        groups = {f"fedloom.{kind}s" for kind in ("method", "tracker", *kinds.KINDS_FROM_PLUGINS)}
        assert set(content["project"]["entry-points"]) <= groups
        return
    for kind in kinds.KINDS_FROM_PLUGINS:
        if block.text.startswith(f"# {kind}.toml"):
            model = kind_plugins.MANIFESTS.get(kind, kind_plugins.KindManifest)
            schema.validate(model, content, KeyPath(name_of_page(block)))
            return
    template = tomllib.loads((ROOT / "plugins/_template/method.toml").read_text())
    schema.validate(MethodManifest, template | content, KeyPath(name_of_page(block)))


def _pages_with(language: str, but: tuple[Path, ...] = ()):
    """Run a test for each page that has blocks of a language, but some."""
    pages = {block.page: None for block in BLOCKS if block.language == language}
    pages = [page for page in pages if page not in but]
    return pytest.mark.parametrize("page", pages, ids=name_of_page)


# README shows a plugin's file, which imports its neighbour
@_pages_with("python", but=(README,))
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """Blocks of a page build on each other."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "page.py"
    script.write_text("\n".join(b.text for b in blocks_of(page) if b.language == "python"))
    runpy.run_path(str(script), run_name="__main__")


FIRST_METHOD = ROOT / "docs/your-first-method.md"


def _make_first_method() -> None:
    """Make the plugin of FIRST_METHOD in the current folder: a new one, and the page's blocks."""
    folder = templates.new_method("near_home")
    blocks = blocks_of(FIRST_METHOD)
    (code,) = [b.text for b in blocks if b.text.startswith(f"# {folder}/plugin.py\n")]
    (folder / "plugin.py").write_text(code.partition("\n")[2])
    with (folder / "method.toml").open("a") as file:
        file.writelines("\n" + block.text for block in blocks if block.language == "toml")
    forget_plugins()


def test_the_method_that_a_page_grows_keeps_the_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _make_first_method()
    driver.check(discover_methods()["near_home"], [])


def test_the_functions_that_a_page_shows_are_those_of_its_whole_file():
    *steps, whole = [b.text for b in blocks_of(FIRST_METHOD) if b.language == "python"]
    for step in steps:
        for function in step.strip().split("\n\n\n"):
            if "def " in function:
                assert function in whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a checkout for commands, with this interpreter as its .venv, and its own plugins."""
    folder = checkout.copy_to(tmp_path_factory.mktemp("checkout"))
    for name in ("benchmarks", "tests", "examples"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return folder


def _commands(page: Path) -> list[str]:
    """Return the commands of a page, continued lines joined, comments removed."""
    text = "".join(b.text for b in blocks_of(page) if b.language == "sh").replace("\\\n", " ")
    lines = (re.sub(r"\s+#.*", "", line) for line in text.splitlines())
    return list(dict.fromkeys(" ".join(line.split()) for line in lines if line.strip()))


# commands of `fedloom` that are called; other tests run the others
QUICK = {"methods", "datasets", "kinds", "data", "new"}


def _fedloom(words: list[str], folder: Path, monkeypatch) -> None:
    """Run a quick command of `fedloom` in this process; of others, parse the arguments."""
    defaults = (folder / "plugins",)
    monkeypatch.setattr(manifest.discover_methods.__wrapped__, "__defaults__", defaults)
    manifest.discover_methods.cache_clear()
    # no run of a page has been made
    monkeypatch.setattr(runs, "find_finished_run", lambda name: name)
    context = command_line.parsed(*words)
    if method := context.params.get("method"):
        manifest.find_method(method)
    if words[0] in QUICK:
        context.command.invoke(context)


def _check_make(command: str, folder: Path, dry_run: bool) -> None:
    """Let make list what it would do, or start a dry run of the workflow."""
    options = "make -o venv" if dry_run else "make -n -o venv"
    done = subprocess.run(
        ["bash", "-c", command.replace("make", options, 1)],
        cwd=folder,
        env=os.environ | {"MAKEFLAGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"


def _check_packages(names: list[str]) -> None:
    """Check the name of the wheel, and that the extras exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = f"fedloom-{project['version']}-py3-none-any.whl"
    for name in names:
        extras = re.fullmatch(r"fedloom\[([\w,-]+)\]", name)
        known = extras and set(extras[1].split(",")) <= project["optional-dependencies"].keys()
        assert name == wheel or known, name


CHECKED = set()  # commands of make: one that two pages show is checked once


@_pages_with("sh")
def test_the_commands_of_a_page_work(page, folder, monkeypatch):
    """Commands run in a checkout that has the files which the page's YAML blocks name.

    Commands that take minutes do not run. Of make, only dry runs are started; its other targets,
    the options of Snakemake and scripts are only checked to exist.
    """
    monkeypatch.chdir(folder)
    for block in blocks_of(page):
        title = re.match(r"# (\w+\.yaml)\n", block.text)
        if block.language == "yaml" and title:
            (folder / title[1]).write_text(block.text)
    for command in _commands(page):
        configs = re.findall(r"--configfile ([\w./]+)", command)
        words = [word for word in shlex.split(command) if not re.match("[A-Z_]+=", word)]
        match words:
            case ["make", *_]:
                assert all(Path(config).is_file() for config in configs), command
                if command not in CHECKED:
                    CHECKED.add(command)
                    _check_make(command, folder, dry_run=command.endswith('.yaml -n"'))
            case [".venv/bin/snakemake", *arguments]:
                get_argument_parser().parse_args(arguments)
            case [".venv/bin/fedloom" | "fedloom", *arguments]:
                _fedloom(arguments, folder, monkeypatch)
            case ["pip", "install", *packages]:
                _check_packages(packages)
            case ["cd", "my-study"]:
                assert "fedloom init my-study" in _commands(page)
            case ["cp", "-r", *_] | ["sed", "-i", *_]:
                subprocess.run(words, check=True)
            case [".venv/bin/python", "-m", "pretraining", model]:
                assert model in MODELS
            case _ if paths := SCRIPT.findall(command):
                assert all(Path(path).is_file() for path in paths), command
            case _:
                raise AssertionError(f"no rule here says how to test the command: {command}")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of_page)
def test_links_and_paths_of_a_page_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    top = "workflow|plugins|tests|docs|benchmarks|profiles|examples"
    for path in re.findall(rf"`((?:{top})/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_picture_of_the_architecture_is_that_of_the_imports():
    picture = runpy.run_path(str(ROOT / "docs/pages/architecture_picture.py"))
    drawn = picture["drawing"](picture["folders"]())
    file = ROOT / "docs/assets/architecture.svg"
    assert file.read_text() == drawn, "run docs/pages/architecture_picture.py"


def test_the_picture_of_the_workflow_is_that_of_the_default_study():
    picture = runpy.run_path(str(ROOT / "docs/pages/workflow_picture.py"))
    counts, arrows = picture["boxes_and_arrows"](load_plan())
    rules = set(counts)
    assert rules | set(picture["BELOW"]) == set(picture["PLACES"]), "give each rule a place"
    assert ("choose", "train") in arrows
    assert ("dataset", "train") not in arrows, "it is reached by way of partitions"
    file = ROOT / "docs/assets/workflow.svg"
    assert file.read_text() == picture["drawing"](counts, arrows), "run workflow_picture.py"


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 170


def test_the_method_in_the_readme_is_that_of_its_file():
    (block,) = (b for b in blocks_of(README) if b.language == "python")
    _, code = (ROOT / "plugins/methods/fedvpt/plugin.py").read_text().split('"""\n\n', 1)
    assert block.text == code


def test_every_plugin_has_a_card_and_every_card_a_plugin():
    cards = {path.stem for path in (ROOT / "docs/methods").glob("*.md")} - {"index"}
    assert cards == set(discover_methods())


def test_versions_and_licence_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}  # required by CFF 1.2
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]
    assert citation.get("repository-code") == project.get("urls", {}).get("Source")
    released = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == project["version"]
    assert (ROOT / "LICENSE").read_text().startswith(f"{project['license']} License")


def test_ci_runs_what_a_person_runs():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    steps = [step.get("run") for job in jobs.values() for step in job["steps"]]
    assert ".ci/run" in steps
    assert "make test" in (ROOT / ".ci/run").read_text().splitlines()


def test_hooks_before_a_commit_need_no_network():
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        assert repository["repo"] == "local"
        assert all(hook["language"] == "system" for hook in repository["hooks"])


def test_every_column_of_a_runs_files_is_documented():
    page = (ROOT / "docs/tables-and-figures.md").read_text()
    for name in ("evaluation", "rounds", "clients", "confusion", "calibration"):
        (row,) = re.findall(rf"^\| `{name}.parquet` .*$", page, re.MULTILINE)
        told = re.findall(r"`(\w+)`", row.split("|")[3])
        columns = RUN_SCHEMAS[name].names
        assert list(dict.fromkeys(word for word in told if word in columns)) == columns
