"""Build the ViT of a plugin with a library of backbones."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import safetensors.torch
from torch import nn

from fedloom.backbones.backbone import Device, fixed_seed, loading
from fedloom.backbones.vit import FrozenViT
from fedloom.backbones.vit_parts import Transform, ViTOfParts, ViTParts, check_transform
from fedloom.backbones.weights import (
    check_finite,
    checked_weights_file,
    load_tensors,
    without_prefix,
)
from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.config.kind_plugins import (
    FILES_DIGEST,
    BackboneManifest,
    missing_plugin,
    plugins_of_type,
)
from fedloom.config.settings import compute_settings
from fedloom.hooks.loader import import_plugin, reimport_plugins
from fedloom.hooks.plugin_code import run_plugin_code

Result = TypeVar("Result")


def load(library: str, spec: JsonDict, device: Device = "cpu") -> FrozenViT:
    """Return a ViT of a plugin for an entry of the config's `backbones`.

    Raises:
        FedLoomError: the plugin is not here, raises an exception, or returns an object of another
            type or shape than it must; or the files that its options name are not those of the
            plan.
    """
    plugin = plugins_of_type("backbone").get(library)
    if plugin is None:
        raise missing_plugin(f"backbone {spec['name']}", library)
    reimport_plugins([plugin])
    _check_files(plugin, spec)
    parts = of_parts(plugin, build_model(plugin, spec), spec)
    vit = FrozenViT(parts, device, *compute_settings(spec), spec)
    vit.plugin = plugin
    return vit


def _check_files(plugin: BackboneManifest, spec: JsonDict) -> None:
    """Check that the files that options name are those of the plan, if it states their digest.

    Raises:
        FedLoomError: they are others, or missing.
    """
    planned = spec.get(FILES_DIGEST)
    if planned is None:
        return
    found = plugin.digest_of_files(spec)
    if found != planned:
        raise FedLoomError(
            f"backbone {spec['name']}: the files of {', '.join(plugin.paths)} must be those of the "
            f"plan (sha256 {planned[:12]}...), got others ({str(found)[:12]}...); put those back"
        )


def build_model(plugin: BackboneManifest, spec: JsonDict) -> nn.Module:
    """Return the plugin's own model for evaluation, with the weights of an entry of the config.

    Raises:
        FedLoomError: the plugin returns no module, or the weights are not those of the model.
    """
    name = spec["name"]
    weights = spec["weights"]
    path = None
    if weights not in ("hub", "none"):
        path = checked_weights_file(name, weights)

    # a plugin may change what it gets
    with fixed_seed():
        model = call(plugin, "build", nn.Module, deepcopy(spec))
    if path is not None:
        with loading(name, weights):
            tensors = without_prefix(safetensors.torch.load_file(path), model.state_dict())
            if hasattr(import_plugin(plugin), "convert"):
                tensors = call(plugin, "convert", dict, tensors, model)
            load_tensors(model, tensors, name, path)
    if weights != "none":
        check_finite(model, name, weights)

    # a hub's weights may have another number format; study.precision says how to compute
    return model.float().eval()


def of_parts(plugin: BackboneManifest, model: nn.Module, spec: JsonDict) -> ViTOfParts:
    """Return the plugin's model as the parts that FedLoom runs.

    Raises:
        FedLoomError: what the plugin returns is not what it must be.
    """
    transform = call(plugin, "transform", Transform, deepcopy(spec))
    try:
        check_transform(transform, spec.get("image_size"))
    except FedLoomError as error:
        raise FedLoomError(f"{plugin.file}: transform: {error}") from error

    parts = call(plugin, "blocks", ViTParts, model)
    try:
        return run_plugin_code(lambda: ViTOfParts(parts, transform), [plugin], "a part")
    except FedLoomError as error:
        raise FedLoomError(f"{plugin.file}: blocks: {error}") from error


def call(plugin: BackboneManifest, name: str, result_type: type[Result], *arguments: Any) -> Result:
    """Call a function of a plugin, and return its result.

    Raises:
        FedLoomError: the plugin lacks the function, it raises an exception, or its result is of
            another type.
    """
    function: Callable[..., object] | None = getattr(import_plugin(plugin), name, None)
    if not callable(function):
        raise FedLoomError(
            f"{plugin.file}: a library of backbones needs the functions build(settings), "
            f"transform(settings) and blocks(model), got no {name}"
        )
    result = run_plugin_code(lambda: function(*arguments), [plugin], name)
    if not isinstance(result, result_type):
        raise FedLoomError(
            f"{plugin.file}: {name} must return a {result_type.__name__}, got "
            f"{type(result).__name__}"
        )
    return result
