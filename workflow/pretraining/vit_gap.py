"""Train the micro ViT further without its class token, so that the mean of its patches is read.

It begins with the bundled weights of the micro ViT, and is trained and measured as these were, in a
tenth of their steps.
"""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from fedloom.common.files import write_text
from fedloom.common.receipts import sha256
from fedloom.machine.install import ROOT
from pretraining import vit

NAME = "micro_vit_gap"
BEGINNING = ROOT / "workflow/resources/micro_vit.safetensors"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe(vit.Recipe):
    """The settings that determine the weights; the defaults are those of the bundled file."""

    steps: int = 450
    peak_rate: float = 5e-4
    ramp: float = 0.05  # the weights have seen augmentation at its full strength


def pretrain(weights: Path, card: Path, seed: int = 0, **changes: Any) -> dict[str, float]:
    """Train, save, measure the saved weights, write the card, and return `quality`'s numbers.

    See `vit.pretrain`, whose rules hold here, too.
    """
    recipe = Recipe(seed=seed, **changes)
    torch.set_num_threads(recipe.threads)
    torch.set_flush_denormal(True)
    model = train(recipe)
    save(model, weights, recipe)
    found = quality(weights)
    log.info("linear probe %(linear_probe).4f, prototypes %(prototypes).4f", found)
    if not vit.reached(found):
        log.warning("the weights miss a bound: see %s", card)
    write_text(card, _card(model, recipe, found, weights))
    return found


def train(recipe: Recipe) -> VisionTransformer:
    """Return a micro ViT that pools its patches, trained on the source glyphs, in eval mode."""
    return vit.train(recipe, _begin)


def _begin(recipe: vit.Recipe, num_classes: int) -> VisionTransformer:
    """Return the model with the micro ViT's weights, and a head of zeros."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = timm.create_model(NAME, num_classes=num_classes)
    assert isinstance(model, VisionTransformer)
    assert isinstance(model.head, nn.Linear)

    # leave out the class token, and its position in front of those of the patches
    tensors = {k: v.float() for k, v in safetensors.torch.load_file(BEGINNING).items()}
    del tensors["cls_token"]
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    model.load_state_dict(tensors, strict=False)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def save(model: nn.Module, path: Path, recipe: Recipe) -> None:
    """Write the weights in half precision."""
    vit.save(model, path, recipe, NAME)


def quality(weights: Path) -> dict[str, float]:
    """Measure two accuracies of a file of weights, in 0..1 (see `vit.quality`)."""
    return vit.quality(weights, NAME)


def _card(model: nn.Module, recipe: Recipe, found: dict[str, float], weights: Path) -> str:
    """Return the card that describes the weights, in Markdown."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in asdict(recipe).items())
    verdict = "Both bounds are met."
    if not vit.reached(found):
        verdict = "**A bound is missed: do not use it.**"
    return f"""# micro_vit_gap

The bundled ViT without a class token: [micro_vit](micro_vit.md), whose heads classify the mean of
its 16 patch tokens after the final norm (global average pooling). It is there so that methods run
on such a backbone without a download.
{sum(p.numel() for p in model.parameters()):,} parameters, {weights.stat().st_size / 1e6:.2f} MB
in half precision, sha256 `{sha256(weights)}`.

## Training

    PYTHONPATH=workflow .venv/bin/python -m pretraining micro_vit_gap

It began with micro_vit's weights, without the class token and its position, and a head of zeros. It
was then trained as micro_vit was, on the same drawings, with cross-entropy on the mean of the
patches.

| setting | value |
|---|---|
{rows}

Equal settings give equal bytes on one kind of machine; another processor or torch release may
round differently and end in slightly different weights.

## Accuracy

Measured on the saved weights, as micro_vit's.

| measure | accuracy | bound |
|---|---|---|
| linear probe, scikit-learn's digits (never seen), 70/30 split | {found["linear_probe"]:.1%} \
| {vit.LINEAR_PROBE_AT_LEAST:.0%} |
| nearest prototype, 100 characters (never seen) | {found["prototypes"]:.1%} \
| {vit.PROTOTYPES_AT_LEAST:.0%} |

{verdict}

## Limits and licences

Those of [micro_vit](micro_vit.md).
"""
