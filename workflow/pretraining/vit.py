"""Pretrain the micro ViT by supervised classification of *source* glyphs.

No image of a data set is used, and no digit (see `fedloom.data.sources.glyphs`). `pretrain`
writes the half-precision weights and the card that describes them; `quality` measures a
file of weights as it is on disk, in half precision, since every run loads it so.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.backbones import vit
from fedloom.common.files import write_text
from fedloom.common.receipts import sha256
from fedloom.data.sources import glyphs
from pretraining.loop import augment, batches, descend, digest, write

LINEAR_PROBE_AT_LEAST = 0.93
PROTOTYPES_AT_LEAST = 0.85

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the weights; the defaults are those of the bundled file."""

    seed: int = 0
    steps: int = 4500
    batch: int = 128  # images
    classes: int | None = None  # the first `classes` source classes; None: all
    peak_rate: float = 1.5e-3  # AdamW, OneCycle: up over 5% of the steps, then a cosine to 0
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    ramp: float = 0.4  # share of the steps over which the augmentation grows to its full strength
    threads: int = 2  # torch's threads; they change the last bits, since sums are split among them


def pretrain(weights: Path, card: Path, seed: int = 0, **changes: Any) -> dict[str, float]:
    """Train, save, measure the saved weights, write the card, and return `quality`'s numbers.

    `changes` are other values for fields of `Recipe`, for trials; the bundled file has none.
    Sets torch's number of threads and flush-denormal for the process. Each file appears under
    its name only once it is complete. Equal recipes give equal bytes of weights on one kind of
    machine. A file that misses a bound is still written, with a warning: the card says so, and
    the tests refuse it.
    """
    recipe = Recipe(seed=seed, **changes)
    torch.set_num_threads(recipe.threads)
    torch.set_flush_denormal(True)  # up to 1.3 times faster, and part of the recipe
    start = time.monotonic()
    model = train(recipe)
    minutes = (time.monotonic() - start) / 60
    save(model, weights, recipe)
    found = quality(weights)
    log.info("linear probe %(linear_probe).4f, prototypes %(prototypes).4f", found)
    if not reached(found):
        log.warning("the weights miss a bound: see %s", card)
    write_text(card, _card(model, recipe, found, minutes, weights))
    return found


def reached(found: dict[str, float]) -> bool:
    """Return True if `quality`'s numbers are good enough for a default backbone."""
    return (
        found["linear_probe"] >= LINEAR_PROBE_AT_LEAST
        and found["prototypes"] >= PROTOTYPES_AT_LEAST
    )


# ---- training ---------------------------------------------------------------------------------


def begin(recipe: Recipe, num_classes: int) -> VisionTransformer:
    """Return an untrained micro ViT with a head."""
    with torch.random.fork_rng(devices=[]):  # timm's initialisers draw from the global stream
        torch.manual_seed(recipe.seed)
        # "jax" is Xavier's rule, which follows the width; timm's fixed 0.02 was made for width 768
        model = timm.create_model("micro_vit", num_classes=num_classes, weight_init="jax")
    assert isinstance(model, VisionTransformer)
    return model


def train(
    recipe: Recipe, begin: Callable[[Recipe, int], VisionTransformer] = begin
) -> VisionTransformer:
    """Return a micro ViT without its head, trained on the source glyphs and left in eval mode.

    `begin` returns the model before the first step, for a number of classes.
    """
    images, labels, _, names = glyphs.render_set(
        glyphs.classes("source", recipe.classes), noise=0.0
    )
    images = torch.from_numpy(images[..., 0])
    labels = torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(recipe.seed)
    model = begin(recipe, len(names)).train()
    picked = batches(len(images), recipe.batch, generator)

    def loss(step: int) -> tuple[Tensor, Tensor]:
        rows = next(picked)
        strength = min(1.0, step / (recipe.ramp * recipe.steps))
        logits = model(augment(images[rows], strength, generator))
        right = logits.detach().argmax(1) == labels[rows]
        return F.cross_entropy(logits, labels[rows], label_smoothing=recipe.label_smoothing), right

    log.info("%d source classes, %d images, %d steps", len(names), len(images), recipe.steps)
    descend(loss, list(model.parameters()), recipe)
    model.reset_classifier(0)
    return model.eval()


def save(model: nn.Module, path: Path, recipe: Recipe, name: str = "micro_vit") -> None:
    """Write the weights of the model `name` in half precision."""
    about = asdict(recipe) | {
        "model": name,
        "source": digest(glyphs.classes("source", recipe.classes)),
    }
    tensors = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    write(path, tensors, about)


# ---- measuring --------------------------------------------------------------------------------


def quality(weights: Path, name: str = "micro_vit") -> dict[str, float]:
    """Measure two accuracies of a file of weights of the model `name`, in 0..1.

    `linear_probe`: logistic regression on features of scikit-learn's digits, fixed 70/30
    split. `prototypes`: 100 target glyph classes, none of them seen in pretraining. A class's
    prototype is the mean of its unit-length features over the six faces of DejaVu Sans and
    DejaVu Serif, two noisy draws each; test images are two other draws in each of the six faces
    of DejaVu Sans Mono and STIX; the prototype of greatest cosine wins.
    """
    backbone = vit.load({"name": name, "weights": str(weights)})
    return {"linear_probe": _linear_probe(backbone), "prototypes": _prototypes(backbone)}


def _features(backbone: vit.FrozenViT, images: np.ndarray) -> Tensor:
    """Return what heads classify, float32 [N, 96], of images uint8 [N, H, W, 1]."""
    chunks = torch.from_numpy(images).split(256)
    return torch.cat([backbone.class_tokens(chunk)[:, -1] for chunk in chunks])


def _linear_probe(backbone: vit.FrozenViT) -> float:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)  # [N, 64] in 0..16, [N]
    pixels = np.asarray(pixels)
    labels = np.asarray(labels)
    scans = np.round(pixels.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)[..., None]
    tokens = _features(backbone, scans).numpy()
    rows = np.arange(len(labels))  # the split of the source sklearn_digits
    _, chosen = train_test_split(rows, test_size=0.3, stratify=labels, random_state=0)
    test = np.isin(rows, chosen)
    probe = LogisticRegression(max_iter=5000).fit(tokens[~test], labels[~test])
    return float(probe.score(tokens[test], labels[test]))


def _prototypes(backbone: vit.FrozenViT) -> float:
    families = {True: ("DejaVu Sans", "DejaVu Serif"), False: ("DejaVu Sans Mono", "STIX")}
    tokens = {}
    labels = {}
    for known, names in families.items():
        images, numbers, faces, _ = glyphs.render_set(
            glyphs.classes("target", 100), draws=2, seed=0 if known else 1
        )
        rows = np.isin(faces, [face for face, family in glyphs.faces().items() if family in names])
        images, labels[known] = images[rows], numbers[rows]
        tokens[known] = F.normalize(_features(backbone, images), dim=1)
    member = F.one_hot(torch.from_numpy(labels[True])).float()  # [N, C]
    nearest = (tokens[False] @ F.normalize(member.T @ tokens[True], dim=1).T).argmax(1)
    return float((nearest == torch.from_numpy(labels[False])).float().mean())


# ---- the card ---------------------------------------------------------------------------------


def _card(
    model: nn.Module, recipe: Recipe, found: dict[str, float], minutes: float, weights: Path
) -> str:
    source = len(glyphs.classes("source", recipe.classes))
    families = list(dict.fromkeys(glyphs.faces().values()))
    rows = "\n".join(f"| {name} | {value} |" for name, value in asdict(recipe).items())
    verdict = "Both bounds are met." if reached(found) else "**A bound is missed: do not use it.**"
    return f"""# micro_vit

The bundled ViT, the backbone of the default study: a timm `VisionTransformer`
with 12 blocks, width 96, 3 heads, 16 patch tokens of 8 x 8 pixels and a class token, a stem of
three convolutions, for 32 px images of one channel (mean 0.5, std 0.5).
{sum(p.numel() for p in model.parameters()):,} parameters, {weights.stat().st_size / 1e6:.2f} MB
in half precision, sha256 `{sha256(weights)}`.

## Training

    PYTHONPATH=workflow .venv/bin/python -m pretraining micro_vit

Supervised classification of {source:,} Unicode characters drawn in {len(glyphs.faces())} faces
({", ".join(families)}: a regular, a bold and an italic one
of each) bundled with matplotlib; a face without the character is skipped. Cross-entropy on
the class token, AdamW, OneCycle. Stroke width, affine maps, smooth warps, loss of resolution
down to 8 x 8, contrast and noise are varied on the fly. It saw no digits, no characters that
look nearly like a digit in any face (Z and b, which only resemble digits, are classes), and no
images of any data set. It took {minutes:.1f} minutes on {recipe.threads} CPU threads.

| setting | value |
|---|---|
{rows}

Equal settings give equal bytes on one kind of machine; another processor or torch release may
round differently and end in slightly different weights.

## Accuracy

Measured on the saved weights.

| measure | accuracy | bound |
|---|---|---|
| linear probe, scikit-learn's digits (never seen), 70/30 split | {found["linear_probe"]:.1%} \
| {LINEAR_PROBE_AT_LEAST:.0%} |
| nearest prototype, 100 characters (never seen) | {found["prototypes"]:.1%} \
| {PROTOTYPES_AT_LEAST:.0%} |

{verdict}
The probe is a logistic regression on the final norm's class token of the digits resized from 8
to 32 px. Prototypes are means over the faces of DejaVu Sans and DejaVu Serif (two noisy draws
each); the images to classify are drawn in DejaVu Sans Mono and STIX. Accented forms and
near-doubles of target characters were not in the training set either.

## Limits

It exists so that the whole workflow runs, and its methods can be compared, on two CPU cores
without a download. It knows white strokes on black; it has seen no photographs, colours or
textures. Results with it say nothing about the accuracy of a ViT-B.

## Licences

The weights were made from drawings of these fonts and contain no part of a font file. DejaVu:
Bitstream Vera's licence, with changes in the public domain and glyphs from Arev under the same
terms (`LICENSE_DEJAVU`). STIX 1.0: SIL Open Font License 1.1 (`LICENSE_STIX`). Both texts are
beside the fonts in matplotlib's data folder. The weights themselves are under this repository's
licence.
"""
