"""ResNets, for the long-tailed rows: torchvision's, and the small ones that CIFAR is trained on.

Every client may have separate weights, by name, as in a ViT. Batch norm has two modes. By default
it uses running statistics, the backbone's or, given by name among the weights, a client's.
`forward_batch` uses those of the batch, of each client alone and without the images that only fill
it up, and returns the moments that new running statistics are made of.

Shapes: K clients, B batch, d width, C classes, c channels.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

import safetensors.torch
import torch
import torch.nn.functional as F
import torchvision.models
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from fedloom.backbones.base import Pixels, check_file, loading
from fedloom.backbones.blocks import Weights, check_weights, per_client
from fedloom.backbones.vit import linear
from fedloom.common.checkout import resource
from fedloom.common.device import arithmetic
from fedloom.common.errors import FedLoomError

PREPROCESSING = {  # as torchvision has it for ImageNet
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bilinear",
}
SMALL = {  # blocks per stage, and how many times as wide as He et al.'s
    "resnet8_wide": (1, 4),
    "resnet20": (3, 1),
    "resnet32": (5, 1),
    "resnet44": (7, 1),
    "resnet56": (9, 1),
}
LARGE = ("resnet18", "resnet34", "resnet50")
STATISTICS = ("running_mean", "running_var")


class Norm(nn.Module):
    """Batch norm with the parameters of a `BatchNorm2d`, that can leave images out of a batch.

    With a `mask` [B] of the images that count it uses the statistics of the batch, and keeps its
    `moments`, mean and mean square [B, c] of each image.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        for name in STATISTICS:
            self.register_buffer(name, getattr(norm, name))
        self.mask: Tensor | None = None
        self.moments: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Normalise feature maps [B, c, H, W]."""
        mean, variance = self.running_mean, self.running_var
        if self.mask is not None:
            self.moments = {"mean": x.mean((2, 3)), "square": x.square().mean((2, 3))}
            share = self.mask / self.mask.sum()  # [B]
            mean = share @ self.moments["mean"]  # [c]
            variance = share @ (x - mean[:, None, None]).square().mean((2, 3))
        scale = self.weight / (variance + self.eps).sqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class _Halved(nn.Module):
    """A shortcut without weights: every second pixel, between channels of zeros (option A)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map features [B, c, H, W] to [B, 2 c, H / 2, W / 2]."""
        before = x.shape[1] // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, x.shape[1] - before))


class SmallResNet(nn.Module):
    """The ResNet of 6 n + 2 layers for images of 32 pixels (He et al., CVPR 2016, Section 4.2).

    Wider ones have convolutions in their shortcuts (option B), as in the released codes of CReFF
    and FEDIC.
    """

    def __init__(self, blocks: int, wide: int = 1):
        """Build a network of `blocks` blocks a stage, each `wide` times as wide."""
        super().__init__()
        first = 16 * wide
        self.conv1, self.bn1 = nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.BatchNorm2d(first)
        widths = (first, first, 2 * first, 4 * first)
        for stage in (1, 2, 3):
            inputs, outputs = widths[stage - 1 : stage + 1]
            shortcut: nn.Module | None = None
            if stage > 1 and wide > 1:
                convolution = nn.Conv2d(inputs, outputs, 1, 2, bias=False)
                shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
            elif stage > 1:
                shortcut = _Halved()
            parts = [BasicBlock(inputs, outputs, min(stage, 2), shortcut)]
            parts += [BasicBlock(outputs, outputs) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*parts))
        self.fc = nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, 64 wide] of normalised images [B, 3, 32, 32]."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        return x.mean((2, 3))


# what training keeps of an image, as a multiple of its first feature map: measured of a ResNet-50
SAVED_MAPS = 27


class FrozenResNet:
    """A ResNet whose weights are frozen unless a method brings clients' own.

    Attributes:
        device: where the frozen weights are.
        model: the network without its classifier, with `Norm` for batch norm.
        width: d, the length of a feature.
        image_floats: size of an image's first feature map, which is the largest.
    """

    def __init__(
        self,
        model: nn.Module,
        size: int,
        device: torch.device | str = "cpu",
        precision: str = "float32",
    ):
        """Freeze `model`, which gives features, for images of `size` pixels."""
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.BatchNorm2d):
                parent, _, last = name.rpartition(".")
                setattr(model.get_submodule(parent), last, Norm(module))
        self.model = model.eval().requires_grad_(False).to(device)
        self._norms = {k: m for k, m in model.named_modules() if isinstance(m, Norm)}
        self.device, self.precision = torch.device(device), precision
        self.pixels = Pixels((size, size), 3, PREPROCESSING, device)
        with torch.no_grad():
            where = next(model.parameters()).device
            image = torch.zeros(1, 3, size, size, device=where)
            self.width: int = model(image).shape[1]
            self.image_floats: int = model.get_submodule("conv1")(image).numel()
        self.training_bytes = SAVED_MAPS * 4 * self.image_floats

    def init_weights(self, pattern: str = "") -> dict[str, Tensor]:
        """Return the pretrained weights by name, as `layer1.0.conv1.weight`, without client axis.

        Only names that the regular expression `pattern` is found in.
        """
        named = self.model.named_parameters()
        return {name: value.detach() for name, value in named if re.search(pattern, name)}

    def init_statistics(self) -> dict[str, Tensor]:
        """Return the running statistics of batch norm by name, as `bn1.running_mean` [c]."""
        return {name: value.clone() for name, value in self.model.named_buffers()}

    def init_head(self, num_classes: int) -> Tensor:
        """Return a linear head [C, d] of zeros, without bias."""
        return torch.zeros(num_classes, self.width, device=self.device)

    def features(self, images: Tensor, weights: Weights | None = None) -> Tensor:
        """Compute features [K, B, d] of uint8 images [K, B, H, W, channels], by running statistics.

        `weights` {name: [K, ...]} are the clients' values of some weights and statistics.
        """
        check_weights(weights, self.model)
        with torch.no_grad():
            x = self.pixels(images.flatten(0, -4))
        with arithmetic(self.precision, self.device):
            if weights:
                return per_client(self.model, x.unflatten(0, images.shape[:2]), weights)
            with torch.no_grad():
                return self.model(x).unflatten(0, images.shape[:-3])

    def forward(self, images: Tensor, head: Tensor, weights: Weights | None = None) -> Tensor:
        """Compute the logits [K, B, C] of a linear head per client [K, C, d] on `features`."""
        return linear(self.features(images, weights), head)

    def forward_batch(
        self, images: Tensor, head: Tensor, weights: Weights, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute logits [K, B, C] as `forward` does, with the statistics of each client's batch.

        The mask [K, B] is false for images that only fill up a batch. The moments {name: [K, B, c]}
        of every image are what a loss adds to the counters of `init_counters`.
        """
        check_weights(weights, self.model)
        with torch.no_grad():
            x = self.pixels(images.flatten(0, -4)).unflatten(0, images.shape[:2])

        def single(own: dict[str, Tensor], x: Tensor, mask: Tensor) -> Any:
            """Return features [B, d] of one client's images, and moments [B, c] by name."""
            for norm in self._norms.values():
                norm.mask = mask
            try:
                features = torch.func.functional_call(self.model, own, (x,))
                items = [(k, item) for k, m in self._norms.items() for item in m.moments.items()]
            finally:
                for norm in self._norms.values():
                    norm.mask, norm.moments = None, {}
            return features, {f"{name}.{kind}": value for name, (kind, value) in items}

        with arithmetic(self.precision, self.device):
            features, moments = torch.vmap(single)(dict(weights), x, mask.to(x.dtype))
        images_seen = torch.ones_like(mask, dtype=features.dtype)
        return linear(features, head), {**moments, "images": images_seen}

    def init_counters(self, clients: int) -> dict[str, Tensor]:
        """Return counters of zeros [K, c], for `train_locally` to add moments to."""
        moments = {
            f"{name}.{kind}": torch.zeros(clients, len(norm.weight), device=self.device)
            for name, norm in self._norms.items()
            for kind in ("mean", "square")
        }
        return {"images": torch.zeros(clients, device=self.device), **moments}

    def statistics(self, counters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return running statistics [K, c] by name: averages over the images of all steps.

        That is batch norm with a cumulative average (torch's `momentum=None`), where every image
        counts alike.
        """
        result, images = {}, counters["images"][:, None]
        for name in self._norms:
            mean, square = (counters[f"{name}.{kind}"] / images for kind in ("mean", "square"))
            result[f"{name}.running_mean"] = mean
            result[f"{name}.running_var"] = (square - mean.square()).clamp(min=0)
        return result

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Compute the features `final` [N, d] to cache of uint8 images [N, H, W, channels]."""
        if cache != "features":
            raise FedLoomError(f"a ResNet has no cache of {cache}")
        return {"final": self.features(images)}


def build(name: str, size: int | None) -> tuple[nn.Module, int]:
    """Build an untrained model without classifier, and return it with its image size."""
    if name in SMALL:
        return SmallResNet(*SMALL[name]), size or 32
    if name not in LARGE:
        known = ", ".join([*SMALL, *LARGE])
        raise FedLoomError(f"backbone {name}: no such ResNet; there are {known}")
    model = cast(nn.Module, torchvision.models.get_model(name, weights=None))
    model.fc = nn.Identity()
    return model, size or 224


def load(spec: dict[str, Any], device: torch.device | str = "cpu") -> FrozenResNet:
    """Build a backbone from an entry of the config's `backbones`, see `base.load`.

    Untrained weights (`weights: none`) are drawn with a fixed seed: they are the same in all runs.
    """
    name, weights = spec["name"], spec["weights"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, size = build(name, spec.get("image_size"))
    if weights != "none":
        path = resource(weights)
        check_file(name, path)
        with loading(name, weights):
            tensors = safetensors.torch.load_file(path)
            model.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("fc.")})
    return FrozenResNet(model, size, device, spec.get("precision", "float32"))
