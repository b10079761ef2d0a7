"""Frozen backbones, the only place that knows the insides of timm and open_clip.

Shapes, everywhere: K clients in a cohort, B batch, T tokens, P prompts, d width, C classes,
M blocks (numbered from 1), L text length.
"""

import hashlib
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.common.errors import FedLoomError, one_line, shortened


class Pixels:
    """Resize, recolour and normalise uint8 images of any size, as a backbone was pretrained.

    Attributes:
        size: height and width of the backbone's input.
        channels: of the backbone's input, 1 or 3.
    """

    def __init__(
        self,
        size: tuple[int, int],
        channels: int,
        preprocessing: Mapping[str, Any],
        device: torch.device | str = "cpu",
    ):
        """Set up the conversion by the library's `mean` and `std`, and its `interpolation`.

        Mean and standard deviation are a number, or one per channel. An interpolation other than
        "bilinear" is taken as bicubic.
        """
        self.size, self.channels = (size[0], size[1]), channels
        bilinear = preprocessing["interpolation"] == "bilinear"
        self._interpolation = "bilinear" if bilinear else "bicubic"
        self._mean, self._std = (
            torch.tensor(preprocessing[key], device=device).expand(channels).view(channels, 1, 1)
            for key in ("mean", "std")
        )
        luma = torch.tensor([0.299, 0.587, 0.114], device=device)  # ITU-R BT.601
        self._luma = luma.view(3, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Convert uint8 [N, H, W, channels] to normalised floats [N, channels', H', W']."""
        x = images.movedim(-1, 1) / 255  # of its own memory, which all that follows writes to
        if x.shape[1] == 1 and self.channels == 3:
            x = x.repeat(1, 3, 1, 1)
        elif x.shape[1] == 3 and self.channels == 1:
            x = (x * self._luma).sum(1, keepdim=True)
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode=self._interpolation, antialias=True).clamp_(0, 1)
        return x.sub_(self._mean).div_(self._std)


class Backbone(Protocol):
    """The part of a backbone that the runtime uses; methods use that of FrozenViT or FrozenCLIP.

    Attributes:
        device: where the frozen weights are.
        pixels: turns images of the store into the backbone's input.
        image_floats: size of an image within the backbone: T d of T tokens.
        training_bytes: activations that training keeps of an image for the backward pass.
    """

    device: torch.device
    pixels: Pixels
    image_floats: int
    training_bytes: int

    @property
    def model(self) -> nn.Module:
        """The library's model, frozen."""
        ...

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Compute the tensors to cache for uint8 images [N, H, W, channels], by name.

        A cache is "features", or for a CLIP "patches", which are many times as large.
        """
        ...


def load(family: str, settings: dict[str, Any], device: torch.device | str = "cpu") -> Backbone:
    """Build a backbone of a family (vit, clip or resnet) from a label's settings.

    The weights "none" are random. The family's module is imported here: open_clip takes seconds.
    """
    return importlib.import_module(f"fedloom.backbones.{family}").load(settings, device)


def weights_digest(backbone: Backbone) -> str:
    """Compute the sha256 of a backbone's weights as they were loaded, by name, type and shape."""
    result = hashlib.sha256()
    for name, value in sorted(backbone.model.state_dict().items()):
        result.update(f"{name} {value.dtype} {[*value.shape]}".encode())
        result.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return result.hexdigest()


def check_file(name: str, path: Path, suffixes: tuple[str, ...] = (".safetensors",)) -> None:
    """Require that the weights of backbone `name` are a file that runs no code when it is read."""
    if path.suffix not in suffixes:
        raise FedLoomError(
            f"backbone {name}: weights '{path}': only {' and '.join(suffixes)} are read (a pickle "
            "runs code when it is opened); convert it with safetensors.torch.save_file"
        )
    if not path.is_file():
        raise FedLoomError(f"backbone {name}: weights '{path}': no such file")


@contextmanager
def loading(name: str, weights: str) -> Iterator[None]:
    """Turn an exception of a library, its hub or safetensors into a line that names the weights."""
    try:
        yield
    except FedLoomError:
        raise
    except Exception as error:  # the libraries raise whatever they like
        reason = shortened(one_line(error)) or type(error).__name__
        raise FedLoomError(f"backbone {name}: cannot load weights '{weights}': {reason}") from error
