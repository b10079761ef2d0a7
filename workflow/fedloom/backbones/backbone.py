"""Frozen backbones: only the package `backbones` knows the insides of timm and open_clip.

Shapes, in all modules: K clients in a cohort, B images in a batch, T tokens, P prompts, d width, C
classes, M blocks (numbered from 1), L text length.
"""

import hashlib
import importlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones.compiled import can_compile
from fedloom.common.errors import FedLoomError, one_line, shorten, suggestion
from fedloom.common.json_types import JsonDict
from fedloom.config.settings import FAMILIES
from fedloom.hooks.discovery import PluginManifest

Device = torch.device | str
# the weights of red, green and blue in a grey value (ITU-R BT.601)
LUMA = (0.299, 0.587, 0.114)
# keys that an entry of the config's `backbones` may have
NORMALISATION = ("mean", "std")
log = logging.getLogger(__name__)


class Pixels:
    """Convert uint8 images of any size to a backbone's input: resize, convert colours, normalise.

    Attributes:
        size: height and width of the backbone's input.
        channels: number of channels of the backbone's input, 1 or 3.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        channels: int,
        preprocessing: Mapping[str, Any],
        device: Device = "cpu",
    ):
        """Take the `mean`, `std` and `interpolation` that the backbone was pretrained with.

        Any interpolation but "bilinear" counts as bicubic.
        """
        self.channels = channels
        self.size: tuple[int, int]
        if isinstance(size, int):
            self.size = (size, size)
        else:
            self.size = (size[0], size[1])

        self._interpolation = "bicubic"
        if preprocessing["interpolation"] == "bilinear":
            self._interpolation = "bilinear"

        # one number per channel, [channels or 1, 1, 1]
        self._mean, self._std, self._luma = (
            torch.tensor(numbers, device=device).view(-1, 1, 1)
            for numbers in (preprocessing["mean"], preprocessing["std"], LUMA)
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Convert uint8 [N, H, W, channels] to normalised floats [N, channels', H', W']."""
        # a copy, so that the next steps may change it in place
        x = images.movedim(-1, 1) / 255

        # convert grey images for a model of colour images, or the other way round
        if x.shape[1] == 1 and self.channels == 3:
            x = x.repeat(1, 3, 1, 1)
        elif x.shape[1] == 3 and self.channels == 1:
            x = (x * self._luma).sum(1, keepdim=True)

        if x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode=self._interpolation, antialias=True).clamp_(0, 1)
        return x.sub_(self._mean).div_(self._std)


class Backbone:
    """The interface of all backbones. Methods use FrozenViT, FrozenCLIP or FrozenResNet.

    Attributes:
        device: the device of the frozen weights.
        pixels: converts images of the store to the backbone's input.
        image_floats: size of an image within the backbone: T d floats for T tokens.
        training_bytes: bytes of the activations that training keeps of an image for the backward
            pass.
        gradient_checkpointing: True if the activations inside a block are not kept for the backward
            pass but computed again.
        compiles: True if frozen blocks are compiled in steps with full batches.
        plugin: the plugin that built it, which errors in its code name; None for a backbone of
            FedLoom's own libraries.
    """

    pixels: Pixels
    image_floats: int
    training_bytes: int
    # a digest of the files of a tokenizer from a hub; "" if there are none
    tokenizer_digest = ""
    plugin: PluginManifest | None = None
    # weights may be trained if their names begin with one of these
    _trainable = ("",)

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        precision: str,
        gradient_checkpointing: bool = False,
        compile_setting: bool | Literal["auto"] = False,
    ):
        """Freeze `model`, whose arithmetic is in `precision`.

        `compile_setting` is `study.compile` (see fedloom.backbones.compiled).
        """
        self.model: Any = model.eval().requires_grad_(False).to(device)
        self.device = torch.device(device)
        self.precision = precision
        self.gradient_checkpointing = gradient_checkpointing
        self.compiles = can_compile(compile_setting, self.device)

    def init_weights(self, pattern: str = "") -> dict[str, Tensor]:
        """Return pretrained weights without a client axis, by name (`blocks.0.mlp.fc1.bias`).

        They are the weights whose names the regular expression `pattern` matches somewhere. `bias$`
        gives all biases. `^blocks\\.1[01]\\.` gives the last two of twelve blocks of a ViT. Names
        of a CLIP's image tower begin with `visual.`. The vocabulary and the positions of its text
        tower are never trained.
        """
        return {
            name: value.detach()
            for name, value in self.model.named_parameters()
            if name.startswith(self._trainable) and re.search(pattern, name)
        }

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Return the tensors of a cache, by name, for uint8 images [N, H, W, channels].

        The cache is "features", or with a CLIP also "patches", which are many times as large.
        """
        raise NotImplementedError


class HeadedBackbone(Backbone):
    """A backbone whose features linear heads classify: a ViT or a ResNet.

    Attributes:
        width: d, the length of a feature.
    """

    width: int

    def init_head(self, num_classes: int) -> Tensor:
        """Return a linear head [C, d] of zeros, without bias, as the papers count it."""
        return torch.zeros(num_classes, self.width, device=self.device)


def load_backbone(library: str, settings: JsonDict, device: Device = "cpu") -> Backbone:
    """Return a backbone of a library, which is timm, open_clip, torchvision or a plugin.

    `settings` is an entry of the config's `backbones`. With the weights "none", weights are random.
    The module of the family is imported here, because the import of open_clip takes seconds.
    """
    if library in FAMILIES:
        module = importlib.import_module(f"fedloom.backbones.{FAMILIES[library]}")
        return module.load(settings, device)
    module = importlib.import_module("fedloom.backbones.plugin_vit")
    return module.load(library, settings, device)


def weights_digest(backbone: Backbone) -> str:
    """Return the sha256 of the names, types, shapes and values of a backbone's weights.

    A tokenizer from a hub counts as a part of the weights, since it changes the texts' features.
    """
    result = hashlib.sha256()
    for name, value in sorted(backbone.model.state_dict().items()):
        result.update(f"{name} {value.dtype} {[*value.shape]}".encode())
        result.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    result.update(backbone.tokenizer_digest.encode())
    return result.hexdigest()


def preprocessing(spec: JsonDict, usual: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """Return the `usual` preprocessing of a model, with the `mean` and `std` that `spec` sets.

    If the weights come from a file, these two are written to the job's log.

    Raises:
        FedLoomError: there are neither as many numbers as `channels` nor a single one.
    """
    # the numbers that the entry of the config sets
    own = {key: spec[key] for key in NORMALISATION if key in spec}
    for key, numbers in own.items():
        if len(numbers) not in (1, channels):
            raise FedLoomError(
                f"backbone {spec['name']}: {key} must have a number for each of the model's "
                f"{channels} channels, or one for all, got {len(numbers)}"
            )
    result = {**usual, **own}

    # a file of weights does not say how images were normalised, so log what is assumed
    if spec["weights"].endswith((".safetensors", ".npz")):
        mean, deviation = (list(result[key]) for key in NORMALISATION)
        origin = "the usual numbers of this model"
        if own:
            origin = "which the keys mean and std set"
        line = "backbone %s: images are normalised by mean %s and standard deviation %s, %s"
        log.info(line, spec["name"], mean, deviation, origin)
    return result


def check_model(name: str, known: Collection[str], library: str) -> None:
    """Check that a library has a model of this name.

    Raises:
        FedLoomError: it has none. The error suggests the nearest name.
    """
    if name not in known:
        hint = shorten(suggestion(name, known))
        raise FedLoomError(f"backbone {name}: {library} has no such model; {hint}")


@contextmanager
def fixed_seed() -> Iterator[None]:
    """Draw random weights with a fixed seed inside this context, so that all runs have the same.

    The process's own random stream stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the GPUs' streams too
        torch.default_generator.manual_seed(0)
        yield


@contextmanager
def loading(name: str, weights: str) -> Iterator[None]:
    """Turn an exception inside this context into a FedLoomError of one line that names the weights.

    Such exceptions come from a library, its hub or safetensors. Logging is off in this context,
    because open_clip logs its errors to the root logger before it raises them.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    except FedLoomError:
        raise
    # libraries may raise any exception
    except Exception as error:
        reason = shorten(one_line(error)) or type(error).__name__
        raise FedLoomError(f"backbone {name}: cannot load weights '{weights}': {reason}") from error
    finally:
        logging.disable(before)
