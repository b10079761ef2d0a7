"""Check that the plugins with which a model was trained are here."""

from collections.abc import Collection
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.config.kind_plugins import missing_plugin, plugins_of_type
from fedloom.config.kinds import KINDS
from fedloom.hooks.manifest import discover_methods
from fedloom.planning.job_specs import RunSpec


def check_plugins(file: Path, spec: RunSpec, made_with: str, advice: str) -> None:
    """Check that the plugins of a model are here, and have the options that it was trained with.

    Args:
        file: the file that names the plugins, with which an error begins.
        spec: what the model was trained with: a method, its wrappers and a backbone.
        made_with: the words of an error for the version that wrote the file.
        advice: what to do about a plugin with other options, with which an error ends.

    Raises:
        FedLoomError: a plugin is missing, or is of a version with other options.
    """
    # the backbone
    library = spec.backbone.library
    if library not in KINDS["backbones"]:
        raise missing_plugin(file, library)
    plugin = plugins_of_type("backbone").get(library)
    if plugin is not None:
        new = plugin.option_schemas.keys() - spec.backbone.settings.keys()
        if new:
            raise _changed(file, made_with, library, new, advice)

    # the method and its wrappers
    method = spec.method
    installed = discover_methods()
    options = {wrapper.plugin: wrapper.options for wrapper in method.wrappers}
    options[method.plugin] = method.options
    for name, given in options.items():
        if name not in installed and name not in installed.errors:
            raise missing_plugin(file, name)
        different = given.keys() ^ installed[name].option_schemas.keys()
        if different:
            raise _changed(file, made_with, name, different, advice)


def _changed(
    file: Path, made_with: str, name: str, options: Collection[str], advice: str
) -> FedLoomError:
    """Return the error about a plugin with other options; see `check_plugins`."""
    return FedLoomError(
        f"{file}: {made_with}, whose plugin '{name}' has other options "
        f"({', '.join(sorted(options))}) than the one here; {advice}"
    )
