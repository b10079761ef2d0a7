"""What keeps the house in order beyond the import contracts in pyproject.toml."""

import ast
import re
import subprocess
import sys
import tomllib
from typing import get_args

import grimp
import networkx
import pytest

from fedloom.hooks.manifest import discover_methods
from fedloom.hooks.manifest_sections import Look
from fedloom.machine.install import ROOT
from fedloom.report.figures import style

LIBRARY = ROOT / "workflow/fedloom"


def _imports(text: str):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


NUMERIC = {"numpy", "scipy", "sklearn", "torch"}
# what leads past the backbones' public methods, into timm's or open_clip's own modules
INSIDE = {"functional_call", "model", "register_forward_hook", "register_forward_pre_hook"}


def private_reach(text: str) -> list[str]:
    """Return what a plugin's module imports or reads that is not public."""
    found = []
    for name in _imports(text):
        library = name.split(".")[0]
        if name != "fedloom.toolbox" and library not in NUMERIC | sys.stdlib_module_names:
            found.append(f"import {name}")
        if library in ("importlib", "os", "pathlib", "sys"):
            found.append(f"import {name}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and (node.attr.startswith("_") or node.attr in INSIDE):
            found.append(f".{node.attr}")
        if isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names if alias.name.lstrip("_") in INSIDE]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "vars"):
            found += [a.value for a in node.args[1:] if getattr(a, "value", "") in INSIDE]
    return found


def test_plugins_know_the_toolbox_and_nothing_else():
    """Third parties' plugins can do what ours do, because ours have no private way in."""
    plugins = [*discover_methods().values(), *discover_methods(ROOT / "examples/methods").values()]
    for plugin in plugins:
        for file in plugin.folder.rglob("*.py"):
            assert not private_reach(file.read_text()), file


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import fedloom.toolbox as fl", []),
        ("from fedloom.toolbox import hookimpl", []),
        ("from . import matching", []),
        ("import torch.nn.functional as F", []),
        ("from fedloom.federated.task import Task", ["import fedloom.federated.task"]),
        ("import timm", ["import timm"]),
        ("import sys", ["import sys"]),
        ("vit.model.blocks", [".model"]),
        ("vit._embedding", ["._embedding"]),
        ("block.register_forward_hook(hook)", [".register_forward_hook"]),
        ("from torch.func import functional_call", ["functional_call"]),
        ("torch.func.functional_call(module, weights, x)", [".functional_call"]),
        ("getattr(vit, 'model')", ["model"]),
    ],
)
def test_private_reach_is_found(line, found):
    assert private_reach(line) == found


def test_no_name_is_that_of_a_plugin_and_of_an_example():
    assert not set(discover_methods()) & set(discover_methods(ROOT / "examples/methods"))


def test_the_core_knows_no_method_by_name():
    names = set(discover_methods())
    for file in LIBRARY.rglob("*.py"):
        constants = {
            node.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not constants & names, file


def test_the_snakefile_needs_no_torch():
    """Every job of a cluster parses the Snakefile again, and should not wait for torch."""
    modules = [m for m in _imports(_python_of_snakefile()) if m.startswith("fedloom")]
    assert "fedloom.planning.load_plan" in modules
    code = f"import sys, {', '.join(modules)}; plan = fedloom.planning.load_plan.load_plan([]); "
    code += "plan.figures; [w] = [vars(r) | {'end': 1} for r in plan.runs[:1]]; "
    code += "plan.resources('train', __import__('types').SimpleNamespace(**w)); "
    code += "heavy = {'torch', 'timm', 'open_clip', 'matplotlib'} & sys.modules.keys(); "
    code += "sys.exit(', '.join(heavy) or 0)"
    environment = {"PYTHONPATH": str(ROOT / "workflow")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT)


def _python_of_snakefile() -> str:
    """Return the imports of the Snakefile, which is Python up to its first rule."""
    lines = (ROOT / "Snakefile").read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith(("import ", "from ")))


def test_looks_of_the_plan_are_looks_that_figures_can_draw():
    markers, _ = get_args(Look.__annotations__["marker"])  # or none
    assert set(get_args(markers)) == set(style.MARKERS)


def test_the_floors_in_the_documentation_are_those_of_the_contract():
    """docs/architecture.md draws the layers of the import contract, in its order."""
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    page = (ROOT / "docs/architecture.md").read_text()
    drawing = page.split("```text\n", 2)[-1].split("```")[0]
    drawn = [re.split(r"\s{2,}", line)[0] for line in drawing.splitlines()]
    asked = [
        ", ".join(module.removeprefix("fedloom.") for module in layer.split(" : "))
        for layer in layers["contracts"][0]["layers"]
    ]
    assert drawn == asked


def test_the_toolbox_needs_no_open_clip():
    """Importing open_clip takes seconds, and methods on a ViT do without it."""
    code = "import sys, fedloom.toolbox; sys.exit('open_clip' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT / "workflow")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_no_import_leads_back_not_even_one_for_types():
    """The contract of import-linter leaves out imports for types, which may lead up, not around."""
    graph = grimp.build_graph("fedloom", exclude_type_checking_imports=False, cache_dir=None)
    imports = networkx.DiGraph()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            imports.add_edge(module, imported)
    circles = [part for part in networkx.strongly_connected_components(imports) if len(part) > 1]
    assert imports.number_of_edges() > 500 and not circles
