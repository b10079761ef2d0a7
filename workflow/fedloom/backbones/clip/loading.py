"""Load a CLIP of open_clip, with its weights and its tokenizer."""

from typing import Any

import open_clip
import torch

from fedloom.backbones.backbone import Device, check_model, fixed_seed, loading
from fedloom.backbones.clip import micro_clip
from fedloom.backbones.clip.hub_tokenizer import hub_tokenizer
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.backbones.weights import check_finite, checked_weights_file, plain_clip_file
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.json_types import JsonDict
from fedloom.config.settings import compute_settings
from fedloom.config.settings import local_weights_file as named_file
from fedloom.machine.install import resource

# what open_clip says about the images that weights were trained on
OF_IMAGES = ("mean", "std", "interpolation")


def _check_tag(name: str, tag: str, quick_gelu: bool | None) -> None:
    """Check that open_clip has weights with this tag, and that they fit this model.

    Raises:
        FedLoomError: open_clip has no weights with this tag, or they were trained with another
            activation.
    """
    known = open_clip.list_pretrained_tags_by_model(name)
    check_known(tag, known, f"backbone {name}: neither a .safetensors file nor open_clip's weights")
    config: Any = open_clip.get_model_config(name)

    # the model must use the activation with which the weights were trained
    trained_so = open_clip.get_pretrained_cfg(name, tag).get("quick_gelu", False)
    if trained_so and quick_gelu is False:
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' need QuickGELU; leave out quick_gelu, and name the "
            "model that has it, as ViT-B-16-quickgelu"
        )
    if trained_so and not quick_gelu and not config.get("quick_gelu", False):
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' need QuickGELU; name the model {name}-quickgelu"
        )
    if quick_gelu and not trained_so:
        raise FedLoomError(
            f"backbone {name}: weights '{tag}' were trained without QuickGELU; leave out quick_gelu"
        )


def load(spec: dict, device: Device = "cpu") -> FrozenCLIP:
    """Return a CLIP for an entry of the config's `backbones` (see `backbone.load_backbone`)."""
    name = spec["name"]
    weights = spec["weights"]
    quick_gelu = spec.get("quick_gelu")
    check_model(name, open_clip.list_models(), f"open_clip {open_clip.__version__}")

    # a file, a tag of open_clip, or none
    path = None
    tag = None
    if named_file("open_clip", weights) is not None:
        path = checked_weights_file(name, weights)
    elif weights != "none":
        tag = weights
        _check_tag(name, tag, quick_gelu)

    with loading(name, weights), fixed_seed():
        if name == micro_clip.MICRO_CLIP and path:
            model = micro_clip.build_micro_clip(path)
        elif name == micro_clip.MICRO_CLIP:
            model = micro_clip.fresh()
        elif path:
            with plain_clip_file(path) as plain:
                model = _model(name, str(plain), quick_gelu, device)
        else:
            model = _model(name, tag, quick_gelu, device)
        if tag is None:
            _set_usual_preprocessing(model, name)
    if weights != "none":
        check_finite(model, name, weights)

    tokenizer = _tokenizer(spec, device)
    return FrozenCLIP(model, tokenizer, name, device, *compute_settings(spec), spec)


def _model(name: str, weights: str | None, quick_gelu: bool | None, device: Device) -> Any:
    """Return a model of open_clip. `quick_gelu` overrides the model's config, unless it is None."""
    own: Any = {}
    if quick_gelu is not None:
        own["quick_gelu"] = quick_gelu
    return open_clip.create_model(name, pretrained=weights, device=device, **own)


def _tokenizer(spec: JsonDict, device: Device) -> Any:
    """Return the tokenizer of a model: CLIP's own, or one of a hub's repository.

    A model on the device "meta", which is only counted, needs no files of a tokenizer.

    Raises:
        FedLoomError: the tokenizer cannot be read, has other files than the study was planned
            with, or is not needed.
    """
    name = spec["name"]
    config: Any = open_clip.get_model_config(name)
    text_config = config["text_cfg"]
    folder = None
    if "tokenizer" in spec:
        folder = resource(spec["tokenizer"])

    # towers of other libraries have tokenizers too, but cannot be read at all
    if not text_config.get("hf_tokenizer_name") or "hf_model_name" in text_config:
        if folder is not None:
            raise FedLoomError(
                f"backbone {name}: tokenizer is for models whose tokenizer is on the hub, and this "
                "one has CLIP's own; leave out tokenizer"
            )
        return open_clip.SimpleTokenizer(context_length=text_config.get("context_length", 77))

    tokenizer = hub_tokenizer(name, text_config, folder)
    if torch.device(device).type == "meta":
        return tokenizer
    tokenizer.read()

    # planning has noted a digest of local files
    planned = spec.get("tokenizer_sha256", tokenizer.digest)
    if tokenizer.digest != planned:
        raise FedLoomError(
            f"backbone {name}: tokenizer '{folder}' must have the files that the study was planned "
            f"with (digest {planned[:12]}...), got others ({tokenizer.digest[:12]}...); put those "
            "back"
        )
    return tokenizer


def _set_usual_preprocessing(model: Any, name: str) -> None:
    """Give a model the preprocessing on which all of open_clip's weights for its name agree.

    A file of weights does not say how images were normalised, and open_clip would take OpenAI's
    numbers for any model, also for a SigLIP. They stay where open_clip has no weights, or several
    kinds.
    """
    ways = list[JsonDict]()
    for tag in open_clip.list_pretrained_tags_by_model(name):
        settings: Any = open_clip.get_pretrained_cfg(name, tag)
        way = {key: settings[key] for key in OF_IMAGES if key in settings}
        if way not in ways:
            ways.append(way)
    if len(ways) == 1:
        own = model.visual.preprocess_cfg
        open_clip.set_model_preprocess_cfg(model, {**own, **ways[0]})
