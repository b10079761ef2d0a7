"""The floors of the house: who may import whom."""

import ast
import re
from pathlib import Path

import pytest

from fedloom.plugins import ROOT, discover

LIBRARY = ROOT / "workflow/fedloom"
# a module may import from its own floor and those below it
FLOORS = [
    {"errors", "files", "rng", "progress", "hookspecs", "heldout", "entries"},
    {"schema", "plugins", "inputs", "grids", "config", "outputs"},
    {"data", "backbones"},
    {"engine", "evaluation"},
    {"report", "contract"},
    {"cli", "launch"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}


def _imports(file: Path):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "file", sorted(LIBRARY.rglob("*.py")), ids=lambda f: str(f.relative_to(LIBRARY))
)
def test_no_import_runs_back_up(file):
    own = file.relative_to(LIBRARY).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for name in _imports(file):
        parts = name.split(".")
        if parts[0] == "fedloom" and len(parts) > 1 and parts[1] in LEVEL:
            assert LEVEL[parts[1]] <= LEVEL[own], f"{own} imports {name}"


def test_runs_are_bound_to_all_of_the_engine_that_trains():
    """Else a result would outlive a change of the code that it came from."""
    rules = (ROOT / "workflow/rules/common.smk").read_text()
    bound = set(re.search(r'^ENGINE = "(.*)"\.split', rules, re.MULTILINE)[1].split())
    folder, found, todo = LIBRARY / "engine", set(), ["__init__", "chunk", "setup"]
    while todo:
        file = folder / f"{todo.pop()}.py"
        names = {n.split(".")[2] for n in _imports(file) if n.startswith("fedloom.engine.")}
        new = {name for name in names if (folder / f"{name}.py").exists()} - found
        found, todo = found | new, [*todo, *new]
    assert {*found, "chunk", "setup"} - bound == {"guard"}, "guard refuses, and changes no number"


def test_plugins_know_the_engine_and_nothing_else():
    allowed = {"fedloom.engine", "fedloom.errors"}
    for method in discover().values():
        for name in _imports(method.folder / "plugin.py"):
            if name.split(".")[0] in ("fedloom", "plugins", "snakemake", "pathlib", "os"):
                assert any(name.startswith(part) for part in allowed), f"{method.name}: {name}"


def test_the_core_knows_no_method_by_name():
    names = set(discover())
    for file in LIBRARY.rglob("*.py"):
        constants = {
            node.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not constants & names, file


def test_the_snakefile_needs_no_torch():
    """Every job of a cluster parses it again."""
    import subprocess
    import sys

    code = "import sys, fedloom.config, fedloom.files; sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT / "workflow")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
