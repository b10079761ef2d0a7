"""List the facts that identify a plugin's backbone, beside its name and its image size."""

from fedloom.common.json_types import JsonDict
from fedloom.config.kind_plugins import FILES_DIGEST, plugins_of_type
from fedloom.config.settings import BackboneSettings
from fedloom.planning.staleness import plugin_digest


def plugin_facts(backbone: BackboneSettings) -> JsonDict:
    """Return the options of a plugin's backbone, and digests of its files and of the plugin's code.

    A backbone of FedLoom's own libraries has none.
    """
    plugin = plugins_of_type("backbone").get(backbone.library)
    if plugin is None:
        return {}
    settings = backbone.settings
    facts: JsonDict = {name: settings[name] for name in plugin.option_schemas}
    facts["plugin_sha256"] = plugin_digest(plugin)
    if FILES_DIGEST in settings:
        facts[FILES_DIGEST] = settings[FILES_DIGEST]
    return facts
