"""MkDocs hooks: make pages from schemas, plugins and code, so that they cannot go stale."""

import re
import tomllib
from pathlib import Path
from typing import Any

from code_pages import arguments_page, hooks_page, toolbox_page
from gallery_pages import gallery_page
from math_core import LatexToMathML
from method_pages import card, facts, index
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebook_pages import columns_page, notebook_page
from recipe_pages import recipes_page
from schema_pages import config_page, method_page
from source_pages import write_sources
from study_pages import studies_page

from fedloom.hooks.manifest import MethodManifest, discover_methods
from fedloom.machine.install import ROOT

# pages of the site that are files elsewhere in the checkout
COPIES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "reference/micro_vit.md": "workflow/resources/micro_vit.md",
    "reference/micro_vit_gap.md": "workflow/resources/micro_vit_gap.md",
    "reference/micro_clip.md": "workflow/resources/micro_clip.md",
}
# pages that code makes; the checkout has a file in their place that says so
MADE = {
    "reference/config.md": config_page,
    "reference/method-toml.md": method_page,
    "reference/hooks.md": hooks_page,
    "reference/arguments.md": arguments_page,
    "reference/toolbox.md": toolbox_page,
    "reference/studies.md": studies_page,
    "reference/recipes.md": recipes_page,
    "reference/results.md": columns_page,
    "reference/gallery.md": gallery_page,
}
TEX = LatexToMathML()
FAMILIES = {"vit": "Vision transformers", "clip": "CLIP", None: "Around a method"}


def copied(path: str) -> str:
    """Return a file of the checkout with its links made relative to `docs/`."""
    pages = {source: page for page, source in COPIES.items()}
    text = (ROOT / path).read_text().replace("](docs/", "](")
    text = re.sub(r"\]\(([\w./]+\.md)\)", lambda match: f"]({pages.get(match[1], match[1])})", text)
    return re.sub(r"\[([\w./]+)\]\((?!http)[\w./]+\.cff\)", r"`\1`", text)  # no page of the site


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every plugin into the navigation, methods of one family together; typeset formulas."""
    groups: dict[str, list[str]] = {title: [] for title in FAMILIES.values()}
    for name, plugin in discover_methods().items():
        groups[FAMILIES[plugin.family]].append(f"methods/{name}.md")
    assert config.nav is not None, "mkdocs.yml has `nav`"
    section = next(entry["Methods"] for entry in config.nav if "Methods" in entry)
    section.extend({title: paths} for title, paths in groups.items() if paths)
    fences = [{"name": "math", "class": "formula", "format": formula}]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": fences}
    # the one place of the repository's address
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Source")
    return config


def formula(source: str, *_: Any, **__: Any) -> str:
    """Return a formula, written in LaTeX, as MathML, which browsers draw without a script."""
    return f'<div class="formula">{TEX.convert_with_local_state(source, displaystyle=True)}</div>'


def on_post_build(config: MkDocsConfig) -> None:
    """Write the pages of source files."""
    write_sources(Path(config.site_dir))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no file in `docs/`: of notebooks, and of plugins without a card."""
    bare = {
        f"methods/{name}.md": f"# {plugin.title}\n" for name, plugin in discover_methods().items()
    }
    notebooks = {
        f"notebooks/{file.stem}.md": notebook_page(file)
        for file in sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
    }
    for path, text in ({page: "" for page in COPIES} | bare | notebooks).items():
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fill in a page that is a copy or is made, or complete the card of a method."""
    path = page.file.src_uri
    if path in COPIES:
        return copied(COPIES[path])
    if path in MADE:
        return MADE[path]()
    if path == "methods/index.md":
        return f"{markdown}\n\n{index(discover_methods().values())}"
    if path.startswith("methods/"):
        plugin = discover_methods().get(Path(path).stem)
        if plugin is None:
            raise PluginError(f"docs/{path}: a card of no plugin; rename or remove it")
        return completed(markdown, plugin)
    markdown = re.sub(r"^\[.*\]\(\.\./(examples/.*)\)$", shown, markdown, flags=re.MULTILINE)
    return re.sub(r"\]\((notebooks/\w+)\.ipynb\)", r"](\1.md)", markdown)  # to its page


def shown(link: re.Match[str]) -> str:
    """Return the file of an example in place of a link that is a paragraph."""
    file = ROOT / link[1]
    language = {".py": "python"}.get(file.suffix, file.suffix[1:])
    return f"```{language}\n{file.read_text()}```"


def completed(text: str, plugin: MethodManifest) -> str:
    """Return a card with the facts of method.toml below its title, and the rest at its end."""
    heading, _, rest = text.partition("\n")
    return "\n\n".join([heading, facts(plugin), rest.strip(), card(plugin)])
