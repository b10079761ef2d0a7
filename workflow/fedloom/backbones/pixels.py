"""Convert images of an image store to the input of a backbone."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


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
        mean: Sequence[float],
        std: Sequence[float],
        interpolation: str,
        device: torch.device | str = "cpu",
    ):
        """Set up the conversion.

        Args:
            mean, std: one number, or one per channel.
            interpolation: "bilinear"; any other name is taken for bicubic.
        """
        height, width = size
        self.size, self.channels = (height, width), channels
        self._interpolation = "bilinear" if interpolation == "bilinear" else "bicubic"
        shape = (channels, 1, 1)
        self._mean = torch.tensor(mean, device=device).expand(channels).view(shape)
        self._std = torch.tensor(std, device=device).expand(channels).view(shape)
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
