"""The gallery: a table or figure of every kind with its YAML, kept by docs/gallery/make.py."""

import inspect
from collections.abc import Mapping
from pathlib import Path

import yaml
from schema_pages import sentence
from source_pages import source_link

from fedloom.common.schema import read_yaml
from fedloom.config.kinds import KINDS
from fedloom.machine.install import ROOT

FOLDER = ROOT / "docs/gallery"
INTRO = (
    "# Gallery\n\nEvery kind of table and figure with the YAML that makes it. The numbers show what"
    " a kind looks like, and nothing about methods: they are from the small studies [below]"
    "(#the-studies), of a few rounds and one or two seeds on the bundled backbones."
)


def kinds(section: str) -> Mapping[str, type]:
    """Return the kinds of `tables` or `figures` by name."""
    return KINDS[section]


def entry(section: str, kind: type, study: str, label: str, keys: dict) -> str:
    """Return what a kind shows, the YAML of a study's entry, and its table or figure."""
    about = sentence({"description": kind.__doc__})
    name = keys["kind"]
    block = yaml.safe_dump({section: {label: keys}}, default_flow_style=None, sort_keys=False)
    result = f"![{about}](../gallery/{study}.{label}.png)"
    if section == "tables":
        result = (FOLDER / f"{study}.{label}.txt").read_text()
    source = source_link(Path(inspect.getfile(kind)), inspect.getsourcelines(kind)[1])
    links = f"[Keys](config.md#kind-{name}). Study: [{study}](#{study}). Source: {source}"
    return "\n\n".join([f"### {name}", about, f"```yaml\n{block}```", result, links])


def gallery_page() -> str:
    """Return the page of all kinds, which are all in its studies: else KeyError."""
    studies = sorted(FOLDER.glob("*.yaml"))
    parts = [INTRO]
    for section in ("tables", "figures"):
        made = {
            keys["kind"]: (file.stem, label, keys)
            for file in studies
            for label, keys in read_yaml(file).get(section, {}).items()
        }
        parts.append(f"## {section.capitalize()}")
        parts += [entry(section, kind, *made[name]) for name, kind in kinds(section).items()]
    parts.append("## The studies\n\n`fedloom run docs/gallery/<name>.yaml` takes a minute or two.")
    parts += [f"### {file.stem}\n\n```yaml\n{file.read_text()}```" for file in studies]
    return "\n\n".join(parts)
