"""Say on a model card how the data was divided, what a model needs, and which licences apply."""

from collections.abc import Sequence

from timm.models import get_pretrained_cfg

from fedloom.common.files import canonical
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.config.datasets import SourceKind
from fedloom.config.kinds import KINDS
from fedloom.config.recipes import find_recipe, recipe_names
from fedloom.config.settings import VALIDATION, BackboneSettings, local_weights
from fedloom.hooks.discovery import PluginManifest
from fedloom.machine.install import ROOT, resource
from fedloom.planning.run_labels import Run

# keys of a partition that do not divide its images
NOT_OF_THE_DIVISION = {"scheme", "protocol", "transfer_to"}
# `fedloom new` puts plugins beside these folders
SHIPPED_PLUGINS = (ROOT / "plugins/methods", ROOT / "plugins/wrappers")
# the source that joins several datasets
SEVERAL = "several"


def scheme(config: JsonDict | None, run: Run) -> str:
    """Return a sentence on the scheme of a run's partition and its keys.

    Args:
        config: the merged config of a study that has the run; None if no study with it finished.
        run: the run.
    """
    if config is None:
        return ""
    entry = config["partitions"][run.partition.removesuffix(VALIDATION)]
    keys = [f"{key} {_plain(entry[key])}" for key in entry if key not in NOT_OF_THE_DIVISION]
    with_keys = ""
    if keys:
        with_keys = f", with {', '.join(keys)}"
    return f" The scheme is `{entry['scheme']}`{with_keys}."


def _plain(value: JsonValue) -> str:
    """Return a value of a config as text."""
    if isinstance(value, str):
        return value
    return canonical(value)


def plugins(needed: Sequence[PluginManifest], version: str) -> str:
    """Return a sentence for each plugin that a model needs: where people get it.

    Args:
        needed: the model's method, its wrappers, and the plugin of its backbone.
        version: the version of FedLoom that is here.
    """
    sentences: list[str] = []
    for plugin in needed:
        if plugin.folder.parent in SHIPPED_PLUGINS:
            where = f"ships with FedLoom {version}"
        elif plugin.module is None:
            where = "does not ship with FedLoom: put its folder below `plugins` first"
        else:
            where = (
                "does not ship with FedLoom: install the package that has it first (module "
                f"`{plugin.module}`)"
            )
        sentences.append(f"It needs the plugin `{plugin.name}`, which {where}.")
    return " ".join(sentences)


def licences(config: JsonDict | None, run: Run, backbone: BackboneSettings) -> str:
    """Return what is known about the licences of a model's data and backbone.

    For what is not stated, the text asks whoever publishes the model to state it. The first
    arguments are those of `scheme`.
    """
    of_data = {"the data": None}
    if config is not None:
        of_data = _of_data(config["datasets"][run.dataset])
    known = of_data | {"the backbone's weights": _of_weights(backbone)}

    lines = ["The licences of the data and of the backbone may restrict the use of the model.", ""]
    for what, licence in known.items():
        if licence is None:
            licence = (
                "not stated where FedLoom could read it; state it here before you pass the model on"
            )
        lines.append(f"- Of {what}: {licence}.")
    return "\n".join(lines)


def _of_data(entry: JsonDict) -> dict[str, str | None]:
    """Return the licence of a dataset, or those of its parts, by what they are the licences of.

    The licence is None if neither a recipe nor the source states it.
    """
    if entry.get("source") == SEVERAL:
        return {f"the data `{name}`": _of_part(part) for name, part in entry["parts"].items()}
    return {"the data": _of_part(entry)}


def _of_part(entry: JsonDict) -> str | None:
    """Return the licence that the recipe or the source of images states; None if neither does."""
    source = KINDS["datasets"].get(entry.get("source", ""))
    if source is not None:
        assert issubclass(source, SourceKind)
        return source.licence

    # the recipe may have been a file of the user's that is no longer there
    name = entry.get("recipe", "")
    if name not in recipe_names() and not resource(name).is_file():
        return None
    recipe = find_recipe(name)
    of_parts = [of_part for _, of_part in recipe.parts()]
    stated: list[str] = []
    for each in (recipe, *of_parts):
        # with the publisher's page, if there is one
        page = ""
        if each.homepage:
            page = f" ({each.homepage})"
        stated.append(f"{each.title}: {each.licence}{page}")
    return "; ".join(stated)


def _of_weights(backbone: BackboneSettings) -> str | None:
    """Return the licence of a backbone's weights; None if FedLoom does not know it."""
    weights = backbone.settings["weights"]
    if weights == "none":
        return "untrained, so that they have none"

    # the card of weights that ship with FedLoom lies beside them
    file = local_weights(backbone)
    if file is not None and file.is_relative_to(ROOT) and file.with_suffix(".md").is_file():
        return f"`{file.with_suffix('.md').relative_to(ROOT)}` in FedLoom's files names it"

    # timm knows the licences of the weights on its hub
    name = backbone.settings["name"]
    if weights != "hub" or backbone.library != "timm":
        return None
    facts = get_pretrained_cfg(name)
    if facts is None or not facts.license:
        return None
    return f"{facts.license}, as timm states for `{name}`"
