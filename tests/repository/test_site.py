"""The built site of the documentation."""

import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import is_dataclass

import pytest

from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.backbones.vit import FrozenViT
from fedloom.cli.run import bundled_studies
from fedloom.config.kinds import KINDS
from fedloom.config.reading import merge_configs, read
from fedloom.data.batch import Batch
from fedloom.data.federation import Federation
from fedloom.federated.local_training import Trained
from fedloom.federated.task import Cohort, History, Task, Update, WarmStart
from fedloom.hooks.manifest import discover_methods
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import resolve
from pages_of_docs import blocks_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site strictly: a broken link, or a page outside of the navigation, fails."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow"), "NO_MKDOCS_2_WARNING": "1"}
    # not --quiet, which would hide warnings from --strict as well
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_loads_nothing_from_the_network(site):
    loads = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?(?:https?:)?//[^>]*')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        assert not loads.findall(text), page
        assert 'class="mermaid"' not in text, f"{page}: the theme would fetch mermaid"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_the_site_can_be_searched_as_a_file(site):
    """Browsers start no worker and read no JSON from a file; the theme takes these instead."""
    assert (site / "search/search_index.js").read_text().startswith("var __index = {")
    assert "assets/iframe-worker/shim.js" in (site / "index.html").read_text()
    assert "IFrameWorker" in (site / "assets/iframe-worker/shim.js").read_text()


def test_formulas_of_cards_are_typeset(site):
    for page in (ROOT / "docs/methods").glob("*.md"):
        written = sum(block.language == "math" for block in blocks_of(page))
        card = (site / f"methods/{page.stem}.html").read_text()
        assert card.count('<math display="block">') == written, page
    assert "<mfrac>" in (site / "methods/fedavg.html").read_text()


def test_links_to_source_lead_to_a_line(site):
    for page in ("reference/hooks", "reference/toolbox", "methods/fedvpt"):
        text = (site / f"{page}.html").read_text()
        links = re.findall(r'href="\.\./(source/[^"#]+)#([^"]+)"', text)
        assert links, page
        for file, line in links:
            assert f'id="{line}"' in (site / file).read_text(), (page, file)


def test_the_gallery_shows_every_kind(site):
    page = (site / "reference/gallery.html").read_text()
    for section in ("tables", "figures"):
        for kind in KINDS[section]:
            (entry,) = re.findall(rf'<h3 id="{kind}">.*?(?=<h[23])', page, re.DOTALL)
            assert ("<table>" if section == "tables" else "<img") in entry, kind
    kept = (ROOT / "docs/gallery").glob("*.png")
    assert sum(file.stat().st_size for file in kept) < 700_000
    for study in (ROOT / "docs/gallery").glob("*.yaml"):
        resolve(merge_configs([(f, read(f)) for f in (ROOT / "config.yaml", study)]), [study])


def test_the_site_says_what_the_schemas_and_plugins_say(site):
    config = (site / "reference/config.html").read_text()
    for room in KINDS.values():
        for kind in room:
            assert re.search(rf"<h3[^>]*>\w+: {kind}<", config), kind
    for name, plugin in discover_methods().items():
        card = (site / f"methods/{name}.html").read_text()
        for option in plugin.option_schemas:
            assert f"<td><code>{option}</code></td>" in card, f"{name}: {option}"
    studies = (site / "reference/studies.html").read_text()
    for path in bundled_studies.all_studies():
        assert f">{path.parent.name}/{path.stem}<" in studies, path


def test_the_site_lists_everything_that_a_hook_gets(site):
    page = (site / "reference/arguments.html").read_text()
    for kind in (
        Task,
        Cohort,
        History,
        Update,
        WarmStart,
        Batch,
        Federation,
        Trained,
        FrozenViT,
        FrozenCLIP,
    ):
        fields = {field.name for field in dataclasses.fields(kind)} if is_dataclass(kind) else set()
        for name in fields | {name for name in vars(kind) if not name.startswith("_")}:
            row = f"<td><code>{name}</code></td>"
            heading = rf"<h3[^>]*>{name}<"
            assert row in page or re.search(heading, page), f"{kind.__name__}.{name}"
