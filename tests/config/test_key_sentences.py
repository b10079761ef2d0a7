"""Every key that a user may write has a description, which is a sentence."""

from collections.abc import Iterator

import pytest

from fedloom.config.config_schema import config_schema, whole
from fedloom.config.kind_plugins import KindManifest, ManifestWithOptions
from fedloom.config.recipes import RecipeKeys
from fedloom.hooks.manifest import MethodManifest, discover_methods
from fedloom.machine.install import ROOT
from fedloom.report.tables.paper_claims import PaperClaims

MODELS = (RecipeKeys, PaperClaims, MethodManifest, ManifestWithOptions, KindManifest)
SCHEMAS = [config_schema(), *(model.model_json_schema() for model in MODELS)]
PLUGINS = [
    *discover_methods().values(),
    *discover_methods(ROOT / "examples/methods").values(),
    MethodManifest.of(ROOT / "plugins/_template/method.toml", None),
]


def is_sentence(text: str) -> bool:
    """Return True if a text begins with a capital or a value, and ends with a full stop."""
    return (text[:1].isupper() or text[:1] == "`") and text.endswith((".", ".)"))


def described(schema: dict, root: dict) -> Iterator[tuple[str, str]]:
    """Yield name and description of the keys of a schema, and of those within them."""
    for entry in schema.get("anyOf", []):
        yield from described(entry, root)
    for key, sub in schema.get("properties", {}).items():
        meant = whole(sub, root)
        if "const" not in meant:  # a constant key only names the kind
            yield key, meant.get("description", "")
        yield from described({**meant, "properties": {}}, root)
    for inner in (*schema.get("patternProperties", {}).values(), *schema.get("$defs", {}).values()):
        yield from described(inner, root)


@pytest.mark.parametrize("root", SCHEMAS, ids=lambda root: root.get("title", "config"))
def test_every_key_is_described_by_a_sentence(root):
    sections = set(root["properties"]) if "study" in root["properties"] else set()
    found = [pair for pair in described(root, root) if pair[0] not in sections]
    assert found
    assert [pair for pair in found if not is_sentence(pair[1])] == []


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_option_of_a_plugin_is_described_by_a_sentence(plugin):
    texts = {name: option["description"] for name, option in plugin.option_schemas.items()}
    assert {name: text for name, text in texts.items() if not is_sentence(text)} == {}
