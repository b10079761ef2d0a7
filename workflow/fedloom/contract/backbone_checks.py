"""Check that a plugin's library of backbones keeps its contract: `fedloom check --backbone NAME`.

All checks run on the small model that backbone.toml names as its example, with random weights.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.backbones import sizes
from fedloom.backbones.blocks import PLACES, run_block
from fedloom.backbones.plugin_vit import build_model, load, of_parts
from fedloom.backbones.vit import FrozenViT, insert
from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.config.kind_plugins import BackboneManifest
from fedloom.contract.deterministic import DeterministicOnly
from fedloom.hooks.loader import reimport_plugins
from fedloom.hooks.plugin_code import run_plugin_code

# the largest difference of two ways to compute the same features, relative to the largest feature
CLOSE = 1e-4
# clients, images of each, and prompts
CLIENTS = 2
IMAGES = 3
PROMPTS = 2
# standard deviation of the noise on weights
NOISE = 0.02


class Example:
    """The example of a plugin: its own model, and the ViT that FedLoom makes of it.

    Attributes:
        settings: the entry of the config.
        model: the plugin's model, which returns features [N, d] for normalised images.
        vit: the same weights, run block by block.
        images: uint8 [K, B, H, W, channels].
    """

    def __init__(self, plugin: BackboneManifest):
        """Build the example's model, and add noise to all of its random weights."""
        reimport_plugins([plugin])
        self.plugin = plugin
        self.settings: JsonDict = plugin.example_entry()
        self.model: Any = build_model(plugin, self.settings)

        # a library may draw zeros, which would hide a mistake
        self.generator = torch.Generator().manual_seed(0)
        for parameter in self.model.parameters():
            noise = torch.randn(parameter.shape, generator=self.generator)
            parameter.data += NOISE * noise

        # the same weights as FedLoom runs them, and images of each client
        parts = of_parts(plugin, self.model, self.settings)
        self.vit = FrozenViT(parts, spec=self.settings)
        shape = (CLIENTS, IMAGES, *self.vit.pixels.size, self.vit.pixels.channels)
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=self.generator)

    def weights_of_clients(self) -> dict[str, Tensor]:
        """Return noisy weights [K, ...] of each client, by name.

        If the blocks cannot be opened, their weights are left out.
        """
        weights = {}
        for name, value in self.vit.init_weights().items():
            if self.vit.opens_blocks or not name.startswith("blocks."):
                noise = torch.randn(CLIENTS, *value.shape, generator=self.generator)
                weights[name] = value + NOISE * noise
        return weights

    def require_close(self, found: Tensor, expected: Tensor, what: str) -> None:
        """Raise a FedLoomError that says `what` unless two tensors are nearly equal."""
        if found.shape != expected.shape:
            raise FedLoomError(
                f"{what}: got the shape {list(found.shape)} instead of {list(expected.shape)}"
            )
        difference = float((found - expected).abs().max() / expected.abs().max())
        if not difference <= CLOSE:
            raise FedLoomError(f"{what}: they differ by {difference:.2g} of the largest number")


def draws_the_same_weights(example: Example) -> None:
    """Check that every run has the same random weights."""
    first, second = (build_model(example.plugin, example.settings).state_dict() for _ in range(2))
    for name, value in first.items():
        if not torch.equal(value, second[name]):
            raise FedLoomError(
                f"build must draw the same weights each time, got another '{name}'; draw with "
                "torch's own random numbers"
            )


def computes_the_features_of_its_model(example: Example) -> None:
    """Check that the parts, one after the other, compute what the plugin's model computes."""
    with torch.no_grad():
        own = example.model(example.vit.pixels(example.images.flatten(0, 1)))
        found = example.vit.features(example.images).flatten(0, 1)
    example.require_close(
        found, own, "the parts of blocks(model) must give the features that model(images) returns"
    )


def holds_all_weights(example: Example) -> None:
    """Check that every weight on which features depend belongs to a part.

    A weight that a part keeps as a plain tensor would be neither trained nor moved to a GPU.
    """
    named = dict(example.model.named_parameters())
    for weight in named.values():
        weight.requires_grad_()
    features = example.model(example.vit.pixels(example.images.flatten(0, 1)))
    slopes = torch.autograd.grad(features.square().sum(), [*named.values()], allow_unused=True)
    for weight in named.values():
        weight.requires_grad_(False)

    held = {id(weight) for weight in example.vit.model.parameters()}
    for (name, weight), slope in zip(named.items(), slopes, strict=True):
        if slope is not None and id(weight) not in held:
            raise FedLoomError(
                f"the features depend on the weight '{name}', so a part must have it as a "
                "torch.nn.Parameter, or have its layer as an attribute"
            )


def counts_its_patches(example: Example) -> None:
    """Check that prefix and patch_size agree with the number of tokens."""
    order = example.vit.order
    across = example.vit.pixels.size[0] // example.vit.patch_size
    if order.patches != across**2:
        raise FedLoomError(
            f"prefix and patch_size must agree with the embedding: images of "
            f"{example.vit.pixels.size[0]} pixels have {across}^2 patches of "
            f"{example.vit.patch_size}, got {order.own_count} tokens with a prefix of "
            f"{order.prefix}"
        )


def trains_its_weights(example: Example) -> None:
    """Check the features with weights of each client, against the model with each one's weights.

    All weights are the clients' own, or only those around the blocks if these cannot be opened.
    """
    weights = example.weights_of_clients()
    with torch.no_grad():
        found = example.vit.features(example.images, weights)
        single = [
            functional_call(
                example.vit.model,
                {name: value[k] for name, value in weights.items()},
                example.vit.pixels(example.images[k]),
            )
            for k in range(CLIENTS)
        ]
    example.require_close(
        found, torch.stack(single), "features with weights of each client must be the model's"
    )


def keeps_images_apart(example: Example) -> None:
    """Check that the features of an image do not depend on the others of its batch."""
    with torch.no_grad():
        whole = example.vit.features(example.images)
        single = example.vit.features(example.images[:, :1])
    example.require_close(
        single, whole[:, :1], "the features of an image must be the same in any batch"
    )


def takes_prompts(example: Example) -> None:
    """Check that blocks take more tokens than an image's own, and that gradients reach prompts."""
    vit = example.vit
    generator = example.generator
    prompts = torch.stack([vit.init_prompts(PROMPTS, generator) for _ in range(CLIENTS)])
    prompts.requires_grad_()
    tokens = vit.blocks(insert(vit.embed(example.images), prompts), read="pooled")
    features = vit.pool(tokens)
    (slope,) = torch.autograd.grad(features.square().sum(), prompts)
    if not slope.isfinite().all() or not slope.abs().sum():
        raise FedLoomError(
            f"prompts between blocks must get gradients, got "
            f"{'zeros' if slope.isfinite().all() else 'NaN or infinity'}"
        )


def opens_its_blocks(example: Example) -> None:
    """Check that block_parts name the parts of each block, if the plugin states any.

    The block, part by part, must compute what the library's block computes, also with weights of
    each client. Functions must reach all places.
    """
    vit = example.vit
    if not vit.opens_blocks:
        return
    for number, block in enumerate(vit.model.blocks):
        tokens = torch.randn(
            CLIENTS, IMAGES, vit.order.own_count, vit.width, generator=example.generator
        )
        where = f"block_parts of blocks[{number}]"
        expected = block(tokens.flatten(0, 1)).unflatten(0, (CLIENTS, IMAGES))
        example.require_close(
            run_block(block, tokens, {}, {}), expected, f"{where} must give the block's output"
        )
        _check_weights(example, block, tokens, where)
        _check_places(example, block, tokens, where)


def _check_weights(example: Example, block: nn.Module, tokens: Tensor, where: str) -> None:
    """Check a block whose weights are each client's own, against copies of the library's block."""
    weights = {}
    for name, value in block.named_parameters():
        noise = torch.randn(CLIENTS, *value.shape, generator=example.generator)
        weights[name] = value.detach() + NOISE * noise
    single = [
        functional_call(block, {name: value[k] for name, value in weights.items()}, tokens[k])
        for k in range(CLIENTS)
    ]
    found = run_block(block, tokens, weights, {})
    example.require_close(
        found, torch.stack(single), f"{where} must give its output with weights of each client"
    )


def _check_places(example: Example, block: nn.Module, tokens: Tensor, where: str) -> None:
    """Check that an insert at each place is called once, and changes the output."""
    before = run_block(block, tokens, {}, {})
    for place in PLACES:
        seen = list[Tensor]()
        after = run_block(block, tokens, {}, {place: partial(_change, seen)})
        if len(seen) != 1 or torch.equal(before, after):
            raise FedLoomError(
                f"{where}: a function at the place '{place}' must be called once and change the "
                f"output, got {len(seen)} calls; correct the names of the parts"
            )


def _change(seen: list[Tensor], given: Tensor, out: Tensor) -> Tensor:
    """Return another output of a place, and append to `seen` what entered it."""
    seen.append(given)
    return out + 1.0 + given.mean()


def reads_a_file(example: Example) -> None:
    """Check that the weights of the model, written to a file, are read again."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        safetensors.torch.save_file(
            {name: value.contiguous() for name, value in example.model.state_dict().items()}, file
        )
        settings = example.settings | {"weights": str(file)}
        read = load(example.plugin.name, settings)
    with torch.no_grad():
        found = read.features(example.images)
        expected = example.vit.features(example.images)
    example.require_close(found, expected, "a file of weights must give the model's features")


def counts_without_numbers(example: Example) -> None:
    """Check that planning can count the model's sizes, on torch's device without numbers."""
    sizes.count(example.plugin.name, example.settings)


def is_deterministic_on_a_gpu(example: Example) -> None:
    """Check that a training step uses only operations that have a deterministic form on a GPU."""
    weights = {name: v.requires_grad_() for name, v in example.weights_of_clients().items()}
    with DeterministicOnly():
        features = example.vit.features(example.images, weights)
        features.square().sum().backward()
    for name, weight in weights.items():
        if weight.grad is not None and not weight.grad.isfinite().all():
            raise FedLoomError(f"the gradient of '{name}' must be finite, got NaN or infinity")


CHECKS: tuple[Callable[[Example], None], ...] = (
    draws_the_same_weights,
    holds_all_weights,
    counts_its_patches,
    opens_its_blocks,
    computes_the_features_of_its_model,
    keeps_images_apart,
    takes_prompts,
    trains_its_weights,
    is_deterministic_on_a_gpu,
    reads_a_file,
    counts_without_numbers,
)


def _run(check: Callable[[Example], None], example: Example) -> None:
    """Run a check; a FedLoomError names the plugin's file and the check."""
    try:
        check(example)
    except FedLoomError as error:
        raise FedLoomError(f"{example.plugin.file}: {check.__name__}: {error}") from error


def check_backbone(plugin: BackboneManifest) -> str:
    """Run every check on a plugin; return a line that says what was checked.

    Raises:
        FedLoomError: the plugin breaks a rule.
    """
    example = run_plugin_code(lambda: Example(plugin), [plugin], "example")
    for check in CHECKS:
        run_plugin_code(partial(_run, check, example), [plugin], f"check {check.__name__}")
    inside = "its blocks can be trained inside"
    if not example.vit.opens_blocks:
        inside = "without block_parts, its blocks cannot be trained inside"
    return f"{len(CHECKS)} checks on {plugin.example['name']}; {inside}"
