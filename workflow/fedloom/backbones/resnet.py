"""ResNets, for methods on long-tailed data: torchvision's, and small ones for CIFAR.

Each client may have weights of its own, by name, as in a ViT. Batch norm uses one of two kinds of
statistics:

1. By default it uses running statistics. They are the backbone's own, or a client's if they are
   among the weights.
2. In `forward_batch` it uses the statistics of each client's batch. That function also returns the
   moments from which new running statistics are computed.

In shapes, c is a number of channels.
"""

from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
import torchvision.models
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from fedloom.backbones.backbone import (
    Device,
    HeadedBackbone,
    Pixels,
    check_model,
    fixed_seed,
    loading,
    preprocessing,
)
from fedloom.backbones.client_layers import Weights, apply_per_client, check_weights
from fedloom.backbones.vit import linear
from fedloom.backbones.weights import (
    check_finite,
    checked_weights_file,
    load_tensors,
    without_prefix,
)
from fedloom.common.json_types import JsonDict
from fedloom.config.settings import compute_settings
from fedloom.machine.device import arithmetic

PREPROCESSING = {
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "interpolation": "bilinear",
}
# number of blocks per stage, and width as a multiple of He et al.'s
SMALL_RESNETS = {
    "resnet8_wide": (1, 4),
    "resnet20": (3, 1),
    "resnet32": (5, 1),
    "resnet44": (7, 1),
    "resnet56": (9, 1),
}
LARGE_RESNETS = ("resnet18", "resnet34", "resnet50")
MOMENTS = ("mean", "square")
# activations that training keeps of an image, as a multiple of its first feature map (ResNet-50)
SAVED_MAPS = 27


class Norm(nn.Module):
    """Batch norm that can leave out images of a batch, with the parameters of a `BatchNorm2d`.

    Without a `mask`, it uses running statistics. With a `mask` [B] of the images that count, it
    uses the statistics of these images. It then also writes the mean and the mean square [B, c] of
    each image to `moments`.
    """

    def __init__(self, norm: nn.BatchNorm2d, name: str):
        super().__init__()
        self.name = name
        self.weight = norm.weight
        self.bias = norm.bias
        self.eps = norm.eps
        running: Any = (norm.running_mean, norm.running_var)
        self.running_mean, self.running_var = map(nn.Buffer, running)
        self.mask: Tensor | None = None
        self.moments: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised feature maps, for feature maps [B, c, H, W]."""
        mean = self.running_mean
        variance = self.running_var
        if self.mask is not None:
            # the moments of each image, from which running statistics are computed
            means = x.mean((2, 3))
            for moment, value in zip(MOMENTS, (means, x.square().mean((2, 3))), strict=True):
                self.moments[f"{self.name}.{moment}"] = value

            # mean and variance of the batch, over the images that count
            share = self.mask / self.mask.sum()  # [B]
            mean = share @ means  # [c]
            variance = share @ (x - mean[:, None, None]).square().mean((2, 3))

        # normalise with one scale and one shift
        scale = self.weight / (variance + self.eps).sqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class _Halved(nn.Module):
    """A shortcut without weights (option A): take every second pixel, and add channels of zeros."""

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, 2 c, H / 2, W / 2] for features [B, c, H, W]."""
        before = x.shape[1] // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, x.shape[1] - before))


class _MeanOfPixels(nn.Module):
    """The pooling of torchvision's ResNets, to the bit, by an operator that has a batching rule.

    torch.vmap computes AdaptiveAvgPool2d client by client if the channels of a pixel lie side by
    side, and warns of it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, c, 1, 1] for feature maps [B, c, H, W]."""
        return x.mean((-1, -2), keepdim=True)


class SmallResNet(nn.Module):
    """The ResNet of 6 n + 2 layers for images of 32 pixels (He et al., CVPR 2016, Section 4.2).

    Args:
        blocks: n, the number of blocks per stage.
        wide: width as a multiple of the paper's. Wider networks have convolutions in their
            shortcuts (option B), as in the released codes of CReFF and FEDIC.
    """

    def __init__(self, blocks: int, wide: int = 1):
        super().__init__()
        first = 16 * wide
        self.conv1 = nn.Conv2d(3, first, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)

        # three stages of blocks; the second and the third halve the image
        widths = (first, first, 2 * first, 4 * first)
        for stage in (1, 2, 3):
            inputs, outputs = widths[stage - 1 : stage + 1]

            # a stage that halves the image needs a shortcut: option B in wide networks, else option
            # A
            shortcut: nn.Module | None = None
            if stage > 1 and wide > 1:
                convolution = nn.Conv2d(inputs, outputs, 1, 2, bias=False)
                shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
            elif stage > 1:
                shortcut = _Halved()

            parts = [BasicBlock(inputs, outputs, min(stage, 2), shortcut)]
            parts += [BasicBlock(outputs, outputs) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*parts))

        # draw the weights last, in the order of the modules
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, 64 wide] for normalised images [B, 3, 32, 32]."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        return x.mean((2, 3))


class FrozenResNet(HeadedBackbone):
    """A ResNet whose weights are frozen, unless a method gives each client weights.

    Attributes:
        width: d, the length of a feature.
        image_floats: size of an image's first feature map, which is the largest.
    """

    def __init__(
        self,
        model: nn.Module,
        size: int,
        device: Device = "cpu",
        precision: str = "float32",
        spec: JsonDict | None = None,
    ):
        """Freeze `model`, which computes features of images of `size` x `size` pixels.

        Images are normalised by ImageNet's mean and deviation, or as `spec` says, an entry of the
        config's `backbones`.
        """
        # replace batch norms by norms that can leave out images of a batch
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.BatchNorm2d):
                model.set_submodule(name, Norm(module, name))
        super().__init__(model, device, precision)
        self._norms = [module for module in model.modules() if isinstance(module, Norm)]

        # how images become pixels
        normal = PREPROCESSING
        if spec:
            normal = preprocessing(spec, PREPROCESSING, 3)
        self.pixels = Pixels(size, 3, normal, device)

        # sizes, from a pass of one image
        with torch.no_grad():
            image = torch.zeros(1, 3, size, size, device=next(model.parameters()).device)
            self.width: int = model(image).shape[1]
            self.image_floats: int = model.get_submodule("conv1")(image).numel()
        self.training_bytes = SAVED_MAPS * 4 * self.image_floats

    def init_statistics(self) -> dict[str, Tensor]:
        """Return the running statistics of batch norm by name, such as `bn1.running_mean` [c]."""
        return {name: value.clone() for name, value in self.model.named_buffers()}

    def features(self, images: Tensor, weights: Weights | None = None) -> Tensor:
        """Return features [K, B, d] of uint8 images [K, B, H, W, channels].

        `weights` {name: [K, ...]} are the clients' values of some weights and running statistics.
        """
        check_weights(weights, self.model)
        x = self.pixels(images.flatten(0, -4))
        shape = images.shape[:-3]
        with arithmetic(self.precision, self.device):
            if weights:
                return apply_per_client(self.model, x.unflatten(0, shape), weights)
            return self.model(x).unflatten(0, shape)

    def forward(self, images: Tensor, head: Tensor, weights: Weights | None = None) -> Tensor:
        """Return logits [K, B, C] of each client's linear head [K, C, d] on `features`."""
        return linear(self.features(images, weights), head)

    def forward_batch(
        self, images: Tensor, head: Tensor, weights: Weights, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits [K, B, C] with the statistics of each client's batch, and the moments.

        The mask [K, B] is false for images that only fill up a batch. The moments are {name: [K, B,
        c]}. A loss returns them as extras, which are added to the counters of `init_counters`.
        """
        check_weights(weights, self.model)
        x = self.pixels(images.flatten(0, -4)).unflatten(0, images.shape[:2])

        # the pass of one client: set the mask in all norms, and remove it again even after an error
        def single(own: dict[str, Tensor], x: Tensor, mask: Tensor) -> Any:
            moments: dict[str, Tensor] = {}
            for norm in self._norms:
                norm.mask = mask
                norm.moments = moments
            try:
                return torch.func.functional_call(self.model, own, (x,)), moments
            finally:
                for norm in self._norms:
                    norm.mask = None
                    norm.moments = {}

        with arithmetic(self.precision, self.device):
            features, moments = torch.vmap(single)(dict(weights), x, mask.to(x.dtype))

        # each image also adds 1 to the counter of images
        images_of_one = torch.ones_like(features[..., 0])
        return linear(features, head), {"images": images_of_one, **moments}

    def init_counters(self, clients: int) -> dict[str, Tensor]:
        """Return counters of zeros [K, c], to which `train_locally` adds moments."""
        counters = {"images": torch.zeros(clients, device=self.device)}
        for norm in self._norms:
            for moment in MOMENTS:
                zeros = torch.zeros(clients, len(norm.weight), device=self.device)
                counters[f"{norm.name}.{moment}"] = zeros
        return counters

    def statistics(self, counters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return running statistics [K, c] by name, averaged over the images of all steps."""
        result = {}
        images = counters["images"][:, None]
        for norm in self._norms:
            mean, square = (counters[f"{norm.name}.{moment}"] / images for moment in MOMENTS)
            result[f"{norm.name}.running_mean"] = mean
            result[f"{norm.name}.running_var"] = (square - mean.square()).clamp(min=0)
        return result

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Return the features of images as `final` [N, d]."""
        return {"final": self.features(images)}


def load(spec: JsonDict, device: Device = "cpu") -> FrozenResNet:
    """Return a ResNet for an entry of the config's `backbones` (see `backbone.load_backbone`).

    Untrained weights (`weights: none`) are drawn with a fixed seed, so they are the same in all
    runs.
    """
    name = spec["name"]
    weights = spec["weights"]
    check_model(name, [*SMALL_RESNETS, *LARGE_RESNETS], "FedLoom")

    # draw the untrained model
    with fixed_seed():
        if name in SMALL_RESNETS:
            model: Any = SmallResNet(*SMALL_RESNETS[name])
        else:
            model = torchvision.models.get_model(name, weights=None)
            model.avgpool = _MeanOfPixels()
            model.fc = nn.Identity()

    if weights != "none":
        path = checked_weights_file(name, weights)
        with loading(name, weights):
            tensors = without_prefix(safetensors.torch.load_file(path), model.state_dict())
            load_tensors(model, tensors, name, path)
        check_finite(model, name, weights)

    size = spec.get("image_size")
    if not size and name in SMALL_RESNETS:
        size = 32
    elif not size:
        size = 224
    return FrozenResNet(model, size, device, compute_settings(spec).precision, spec)
