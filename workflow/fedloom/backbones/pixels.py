"""Images as an image store keeps them, made into what a backbone reads."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class Pixels:
    """uint8 images of any size, grey or coloured, to a backbone's normalised input.

    Attributes:
        size: height, width.
        channels: 1 or 3.
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
        """`mean` and `std` have a number, or one per channel; all but bilinear is bicubic."""
        self.size, self.channels = tuple(size), channels
        self._interpolation = "bilinear" if interpolation == "bilinear" else "bicubic"
        shape = (channels, 1, 1)
        self._mean = torch.tensor(mean, device=device).expand(channels).view(shape)
        self._std = torch.tensor(std, device=device).expand(channels).view(shape)

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [N, H, W, channels] to the normalised float input [N, channels', H', W']."""
        x = images.movedim(-1, 1).float() / 255
        if x.shape[1] == 1 and self.channels == 3:
            x = x.expand(-1, 3, -1, -1)
        elif x.shape[1] == 3 and self.channels == 1:
            luma = torch.tensor([0.299, 0.587, 0.114], device=x.device)  # ITU-R BT.601
            x = (x * luma.view(3, 1, 1)).sum(1, keepdim=True)
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, self.size, mode=self._interpolation, antialias=True).clamp(0, 1)
        return (x - self._mean) / self._std
