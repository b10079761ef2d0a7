"""The reference of hooks, their arguments and the toolbox, from signatures and docstrings.

Modules are read, not imported.
"""

import ast
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from schema_pages import about, cell, type_of
from source_pages import source_link

from fedloom.hooks.training_options import Training
from fedloom.machine.install import ROOT

LIBRARY = ROOT / "workflow/fedloom"
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$")
ENTRY = re.compile(r"^ {4}(\w+): (.*)$")

Definition = ast.FunctionDef | ast.ClassDef

# what hooks get and give, in the words of a plugin: title, module, class
ARGUMENTS = {
    "task": ("federated/task.py", "Task"),
    "task.data": ("data/federation.py", "Federation"),
    "task.backbone of every method": ("backbones/backbone.py", "Backbone"),
    "task.backbone of a ViT or ResNet method": ("backbones/backbone.py", "HeadedBackbone"),
    "task.backbone of a ViT method": ("backbones/vit.py", "FrozenViT"),
    "task.backbone of a CLIP method": ("backbones/clip/model.py", "FrozenCLIP"),
    "task.backbone of a method that trains a ResNet": ("backbones/resnet.py", "FrozenResNet"),
    "task.declared": ("federated/task.py", "MethodFacts"),
    "task.prototypes": ("federated/task.py", "WarmStart"),
    "clients": ("federated/task.py", "Cohort"),
    "history, which select_clients gets": ("federated/task.py", "History"),
    "batch": ("data/batch.py", "Batch"),
    "Update, which client_update returns": ("federated/task.py", "Update"),
    "Trained, which train_locally returns": ("federated/local_training.py", "Trained"),
}


def definitions(path: Path) -> dict[str, Definition]:
    """Return the functions and classes at the top of a module, by name."""
    tree = ast.parse(path.read_text())
    return {node.name: node for node in tree.body if isinstance(node, Definition)}


def signature(node: Definition) -> str:
    """Return the line that defines a function or class, as code; a class with its fields."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
        text = f"{node.name}({arguments}){returns}"
        return re.sub(r"(: |-> )'([^']+)'", r"\1\2", text)  # annotations that are strings
    fields = [ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign)]
    return "\n    ".join([f"class {node.name}:", *fields])


def body(text: str) -> str:
    """Return a docstring as Markdown: each of its sections becomes a list."""
    lines = []
    inside = False
    for line in text.replace("<", "&lt;").splitlines():
        if SECTION.match(line):
            inside = True
            lines += ["", f"**{line.strip()}**", ""]
        elif inside and (match := ENTRY.match(line)):
            lines.append(f"- `{match[1]}`: {match[2]}")
        elif inside and line.startswith(" " * 8):
            lines.append("    " + line.strip())
        elif inside:
            lines.append(line.strip())
        else:
            lines.append(line)
    return "\n".join(lines)


def chapter(node: Definition, file: Path) -> str:
    """Return heading, signature, docstring and source of one function or class of a file."""
    text = ast.get_docstring(node)
    if not text:
        raise PluginError(f"{node.name}: functions that plugins may call need a docstring")
    parts = [f"## {node.name}", f"```text\n{signature(node)}\n```", body(text)]
    return "\n\n".join([*parts, f"Source: {source_link(file, node.lineno)}"])


def hooks_page() -> str:
    """Return the reference of the hooks."""
    path = LIBRARY / "hooks/hookspecs.py"
    head = ast.get_docstring(ast.parse(path.read_text())) or ""
    chapters = [chapter(node, path) for node in definitions(path).values() if node.decorator_list]
    return "\n\n".join(["# Hooks", head, *chapters])


def described(node: ast.ClassDef) -> dict[str, str]:
    """Return the attributes that a class's docstring describes."""
    _, _, text = (ast.get_docstring(node) or "").partition("Attributes:\n")
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"^ {4}([\w, ]+): (.*)$", line):
            names = [name.strip() for name in match[1].split(",")]
            entries |= dict.fromkeys(names, match[2])
        elif not line.startswith(" " * 8):
            break
        else:
            entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
    return entries


def attributes(node: ast.ClassDef) -> list[tuple[str, str, str]]:
    """Return name, type and description of the fields and properties of a class.

    Raises:
        PluginError: one has no description.
    """
    texts = described(node)
    fields = {
        item.target.id: ast.unparse(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    rows = [(name, fields.get(name, ""), text) for name, text in texts.items()]
    rows += [(name, kind, "") for name, kind in fields.items() if name not in texts]
    for item in methods(node):
        if is_property(item):
            text = (ast.get_docstring(item) or "").split("\n\n")[0].removeprefix("Return ")
            rows.append((item.name, ast.unparse(item.returns) if item.returns else "", text))
    for name, _, text in rows:
        if not text:
            raise PluginError(f"{node.name}.{name}: arguments of hooks need a description")
    return rows


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Return the public methods and properties of a class."""
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    return [function for function in functions if not function.name.startswith("_")]


def is_property(node: ast.FunctionDef) -> bool:
    """Return True for a property, cached or not."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def arguments_page() -> str:
    """Return the reference of the arguments and results of hooks, by attribute."""
    parts = [
        "# Arguments of hooks",
        "This page lists every attribute and method of a hook's arguments and results. Shapes: K"
        " clients of a cohort, B images, T tokens, P prompts, d width, C classes, N images of the"
        " dataset. A `Tree` under [hooks](hooks.md) is a nested dict of tensors and plain numbers:"
        " `server`, `received` (stacked over the cohort, [K, ...]) and `clients.state`.",
    ]
    for title, (path, name) in ARGUMENTS.items():
        node = definitions(LIBRARY / path)[name]
        assert isinstance(node, ast.ClassDef)
        head = (ast.get_docstring(node) or "").partition("Attributes:")[0]
        rows = [
            f"| `{name}` | {f'`{kind}`' if kind else ''} | {cell(text)} |"
            for name, kind, text in attributes(node)
        ]
        table = "\n".join(["| attribute | type | |", "|---|---|---|", *rows])
        parts += [f"## {title}", body(head.strip()), table]
        for item in methods(node):
            if not is_property(item):
                parts.append(chapter(item, LIBRARY / path).replace("## ", "### ", 1))
    keys = Training.model_json_schema()["properties"]
    parts += [
        "## task.training",
        "The study's training options over the method's own (`[training]` in method.toml), and"
        " `rounds`, the number of rounds of the learning rate's schedule. `task.options` holds the"
        " method's own options in the same way, as method.toml defines them.",
        "| attribute | value | |\n|---|---|---|",
    ]
    rows = [f"| `{key}` | {type_of(entry, {})} | {about(entry)} |" for key, entry in keys.items()]
    parts[-1] = "\n".join([parts[-1], *rows])
    return "\n\n".join(parts)


def toolbox_page() -> str:
    """Return the reference of what `fedloom.toolbox` offers."""
    path = LIBRARY / "toolbox/__init__.py"
    tree = ast.parse(path.read_text())
    chapters = []
    values = []
    for node in tree.body:
        name_of_module = getattr(node, "module", None) or ""
        if not isinstance(node, ast.ImportFrom) or not name_of_module.startswith("fedloom."):
            continue
        module = LIBRARY.parent / Path(*name_of_module.split("."))
        file = module.with_suffix(".py")
        file = file if file.exists() else module / "__init__.py"
        known = definitions(file)
        for name in (alias.name for alias in node.names):
            if name in known:
                chapters.append((name, chapter(known[name], file)))
            else:
                values.append(f"- `{name}`, of `{node.module}`")
    listed = [text for _, text in sorted(chapters, key=lambda pair: pair[0].lower())]
    intro = ast.get_docstring(tree) or ""
    return "\n\n".join(["# Toolbox", intro, "\n".join(values), *listed])
