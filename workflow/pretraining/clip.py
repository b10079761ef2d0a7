"""Pretrain the micro CLIP on drawn characters and their names, with CLIP's contrastive loss.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021:
in a batch of images and texts, each image's feature must be nearest to that of its own text, and
vice versa. The image tower starts from the bundled micro ViT's first blocks.

The training set has no class of the data set `glyphs`, no drawing similar to one of them and no
digit, but it has variants of some of its letters in other styles (see `strangers`). The source
classes of the micro ViT are too few to learn the meaning of names: most letters of the target
classes are in none of their names (the best attempt, linear maps on the micro ViT's tokens,
recognised 27% of the unseen classes). So their relatives are added: see `relatives`.
"""

import logging
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import safetensors.torch
import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.backbones.clip import loading as clip
from fedloom.backbones.clip import micro_clip
from fedloom.common.files import write_text
from fedloom.common.receipts import sha256
from fedloom.data.sources import glyphs
from fedloom.machine.install import ROOT
from pretraining.loop import augment, descend, digest, write

ZERO_SHOT_AT_LEAST = 0.5
APART = 0.9  # the greatest cosine allowed between a relative and a target class
TEMPLATE = "a photo of a {}."
TRUNK = ROOT / "workflow/resources/micro_vit.safetensors"
# precede a name that is not in the template, to train all positions of a sequence
FILLERS = tuple(
    """a the this one photo image picture drawing scan print of in on with very quite small large
    dark bright white black clean bad good old new plain simple blurry sharp""".split()  # noqa: SIM905
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """The settings that determine the weights; the defaults are those of the bundled file."""

    seed: int = 0
    steps: int = 2400
    batch: int = 192  # classes; one image and one text of each
    classes: int | None = None  # the first `classes` of them; None: all
    peak_rate: float = 2e-3  # AdamW, OneCycle: up over 5% of the steps, then a cosine to 0
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    template: float = 0.5  # share of the batches whose texts are in TEMPLATE
    fillers: int = 32  # the most FILLERS at the beginning of the other texts
    threads: int = 1  # torch's threads; they change the last bits, since sums are split among them


def pretrain(weights: Path, card: Path, seed: int = 0, **changes: Any) -> dict[str, float]:
    """Train, save, measure the saved weights, write the card, and return `quality`'s numbers.

    See `pretraining.vit.pretrain`.
    """
    recipe = Recipe(seed=seed, **changes)
    torch.set_num_threads(recipe.threads)
    torch.set_flush_denormal(True)
    start = time.monotonic()
    model, rows = train(recipe)
    minutes = (time.monotonic() - start) / 60
    save(model, rows, weights, recipe)
    found = quality(weights)
    log.info("zero-shot %(zero_shot).4f, random context %(random_context).4f", found)
    if found["zero_shot"] < ZERO_SHOT_AT_LEAST:
        log.warning("the weights miss the bound: see %s", card)
    write_text(card, _card(model, recipe, found, minutes, weights))
    return found


# ---- the training set -------------------------------------------------------------------------


def classes(limit: int | None = None) -> list[str]:
    """Return the first `limit` of the source classes and their relatives."""
    return [*glyphs.classes("source"), *relatives()][:limit]


@cache
def relatives() -> tuple[str, ...]:
    """List more Latin, Greek and Cyrillic letters: accented, circled, mathematical, of any face.

    Characters of at least one face whose NFKD form is one letter of the three scripts and maybe
    marks, that are neither source nor target classes, that do not count (Roman numbers), and of
    which no drawing comes near a drawing of a target or a digit, in whatever two faces (`APART`).
    """
    targets = glyphs.classes("target")
    known = {*glyphs.classes("source"), *targets}
    letters = filter(_is_letter, map(chr, range(0x20000)))
    chosen = [
        glyph
        for glyph in letters
        if glyph not in known and any(glyphs.has(glyph, face) for face in glyphs.faces())
    ]
    taboo = [*targets, *"0123456789"]
    near = _nearness(chosen, taboo)
    return tuple(glyph for glyph, cosine in zip(chosen, near, strict=True) if cosine < APART)


def _is_letter(char: str) -> bool:
    """Return True for a letter of the three scripts, in whatever form."""
    base, *marks = unicodedata.normalize("NFKD", char)
    script = unicodedata.name(base, "").partition(" ")[0]
    return (
        script in ("LATIN", "GREEK", "CYRILLIC")
        and unicodedata.category(base)[0] == "L"
        and all(unicodedata.category(mark)[0] == "M" for mark in marks)
        and unicodedata.numeric(char, None) is None  # as Roman numbers are
    )


def _nearness(some: Sequence[str], others: Sequence[str]) -> Tensor:
    """Compute the greatest cosine [N] of a drawing of each of `some` to any of `others`.

    1 for a glyph that some face maps to an empty drawing.
    """
    own, looks = _drawings(some)
    _, theirs = _drawings(others)
    cosine = torch.cat([(part @ theirs.T).amax(1) for part in looks.split(1024)])
    cosine[~looks.any(1)] = 1
    return torch.full((len(some),), -1.0).scatter_reduce(0, own, cosine, "amax")


def _drawings(chosen: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Draw glyphs in every face: the glyph [n] and centred unit-length pixels [n, 1024] of each."""
    images, labels, _, _ = glyphs.render_set(chosen, noise=0.0)
    looks = torch.from_numpy(images).flatten(1).float()
    return torch.from_numpy(labels), F.normalize(looks - looks.mean(1, keepdim=True), dim=1)


def strangers() -> set[str]:
    """List the target classes of which no variant is trained on, in any style or with any mark."""
    bases = {unicodedata.normalize("NFKD", glyph)[0] for glyph in classes()}
    return {glyphs.glyph_name(glyph) for glyph in glyphs.classes("target") if glyph not in bases}


class Texts:
    """Token sequences of class names, as rows of a small vocabulary.

    Attributes:
        rows: [R] of CLIP's vocabulary, ascending.
    """

    def __init__(self, names: Sequence[str]):
        tokenizer = open_clip.get_tokenizer(micro_clip.MICRO_CLIP)
        assert isinstance(tokenizer, SimpleTokenizer)
        ids = {text: tokenizer.encode(text) for text in (*FILLERS, *(f"{n}." for n in names))}
        before = tokenizer.encode(TEMPLATE.partition("{}")[0])
        ends = [tokenizer.sot_token_id, tokenizer.eot_token_id]
        self.rows = torch.tensor(sorted({*ends, *before}.union(*ids.values())))
        place = {row: number for number, row in enumerate(self.rows.tolist())}
        self._start, self._end = ([place[i]] for i in ends)
        self._before = [place[i] for i in before]
        self._fillers = [[place[i] for i in ids[word]] for word in FILLERS]
        self._names = [[place[i] for i in ids[f"{name}."]] for name in names]

    def draw(
        self, chosen: Tensor, recipe: Recipe, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return texts of classes [B] as rows of the small vocabulary [B, L], and their ends [B].

        All of a batch are in the template, or all behind equally many fillers: less padding.
        """
        plain = torch.rand((), generator=generator) < recipe.template
        count = int(torch.randint(recipe.fillers + 1, (), generator=generator))
        words = torch.randint(len(FILLERS), (len(chosen), count), generator=generator)
        texts = []
        for name, drawn in zip(chosen.tolist(), words.tolist(), strict=True):
            filled = [i for word in drawn for i in self._fillers[word]]
            before = self._before if plain else filled
            texts.append([*self._start, *before, *self._names[name], *self._end])
        ends = torch.tensor([len(text) - 1 for text in texts])
        padded = [text + [0] * (int(ends.max()) + 1 - len(text)) for text in texts]
        return torch.tensor(padded), ends


# ---- training ---------------------------------------------------------------------------------


def train(recipe: Recipe) -> tuple[open_clip.CLIP, Tensor]:
    """Return a micro CLIP in eval mode, and the rows of its vocabulary that were trained."""
    chosen = classes(recipe.classes)
    images, labels, _, names = glyphs.render_set(chosen, noise=0.0)
    images = torch.from_numpy(images[..., 0])
    texts = Texts(names)
    count = torch.from_numpy(np.bincount(labels))
    first = count.cumsum(0) - count  # images are ordered by class
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.random.fork_rng(devices=[]):  # open_clip's initialisers draw from the global stream
        torch.manual_seed(recipe.seed)
        model = micro_clip.fresh().train()
    _start_from_micro_vit(model.visual.trunk)
    words = nn.Parameter(model.token_embedding.weight.data[texts.rows])  # far fewer than 49,408

    def loss(_: int) -> tuple[Tensor, Tensor]:
        batch = torch.randperm(len(names), generator=generator)[: recipe.batch]
        draw = torch.rand(len(batch), generator=generator)
        rows = first[batch] + (draw * count[batch]).long()
        tokens, ends = texts.draw(batch, recipe, generator)
        seen = F.normalize(model.visual(augment(images[rows], 1.0, generator)), dim=1)
        read = F.normalize(_text_features(model, words[tokens], ends), dim=1)
        logits = model.logit_scale.exp().clamp(max=100) * seen @ read.T
        own = torch.arange(len(batch))
        both = F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)
        return both / 2, logits.detach().argmax(1) == own

    model.token_embedding.requires_grad_(False)
    log.info("%d classes, %d images, %d steps", len(names), len(images), recipe.steps)
    trained = [p for p in model.parameters() if p.requires_grad]
    # a decaying vocabulary would forget rare words
    descend(loss, [*trained, words], recipe, spared=[words, model.positional_embedding])
    model.token_embedding.weight.data[texts.rows] = words.detach()
    return model.eval(), texts.rows


def _start_from_micro_vit(trunk: nn.Module) -> None:
    weights = safetensors.torch.load_file(TRUNK)
    trunk.load_state_dict({name: weights[name].float() for name in trunk.state_dict()})


def _text_features(model: open_clip.CLIP, words: Tensor, ends: Tensor) -> Tensor:
    """Encode word embeddings [B, L, d] as `encode_text` does, up to the longest text's end."""
    length = words.shape[1]
    x = words + model.positional_embedding[:length]
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    return model.ln_final(x[torch.arange(len(x)), ends]) @ model.text_projection


def save(model: open_clip.CLIP, rows: Tensor, path: Path, recipe: Recipe) -> None:
    """Write the weights in half precision; of the vocabulary, the `rows` [n] that were trained."""
    about = {"model": micro_clip.MICRO_CLIP, "source": digest(classes(recipe.classes))}
    state = {name: value.half() for name, value in model.state_dict().items()}
    state[micro_clip.VOCABULARY] = state[micro_clip.VOCABULARY][rows]
    write(path, state | {micro_clip.ROWS_WEIGHT: rows.to(torch.int32)}, about | asdict(recipe))


# ---- measuring --------------------------------------------------------------------------------


def quality(weights: Path) -> dict[str, float]:
    """Measure a file of weights on the first 100 target classes, which it has not seen; in 0..1.

    `zero_shot`: their names in TEMPLATE; one noisy drawing in each of the twelve faces.
    `strangers`: the same of the images of `strangers` alone, among all 100 names.
    `random_context`: behind 16 tokens of N(0, 0.02) instead, where prompt learning starts.
    """
    backbone = clip.load(
        {"library": "open_clip", "name": micro_clip.MICRO_CLIP, "weights": str(weights)}
    )
    images, labels, _, names = glyphs.render_set(glyphs.classes("target", 100), seed=1)
    parts = torch.from_numpy(images).split(256)
    features = torch.cat([backbone.image_features(part)[0] for part in parts])
    context = backbone.init_context(16, torch.Generator().manual_seed(0))
    texts = {
        "zero_shot": backbone.zero_shot(names, [TEMPLATE]),
        "random_context": backbone.text_features(context, names),
    }
    truth = torch.from_numpy(labels)
    right = {
        name: (backbone.logits(features, text).argmax(1) == truth).float()
        for name, text in texts.items()
    }
    apart = strangers()
    unknown = torch.tensor([names[label] in apart for label in labels])
    found = {name: float(hits.mean()) for name, hits in right.items()}
    return found | {"strangers": float(right["zero_shot"][unknown].mean())}


# ---- the card ---------------------------------------------------------------------------------


def _card(
    model: nn.Module, recipe: Recipe, found: dict[str, float], minutes: float, weights: Path
) -> str:
    source = glyphs.classes("source")
    chosen = classes(recipe.classes)
    rows = "\n".join(f"| {name} | {value} |" for name, value in asdict(recipe).items())
    enough = found["zero_shot"] >= ZERO_SHOT_AT_LEAST
    apart = sum(glyphs.glyph_name(glyph) in strangers() for glyph in glyphs.classes("target", 100))
    verdict = "The bound is met." if enough else "**The bound is missed: do not use it.**"
    return f"""# micro_clip

The bundled CLIP: open_clip's `CLIP`, configured by `micro_clip.json`. Image
tower: a micro ViT of {micro_clip.MICRO_BLOCKS} blocks, width 96, for 32 px images of one
channel (mean 0.5, std 0.5). Text tower: 3 blocks of width 64, 77 positions, CLIP's own
tokenizer. Joint space: 64. {sum(p.numel() for p in model.parameters()):,} parameters, of which the
vocabulary has {model.token_embedding.weight.numel():,}; {weights.stat().st_size / 1e6:.2f} MB in
half precision, since the file holds only the trained rows of the vocabulary (the others are drawn
again when it is loaded); sha256 `{sha256(weights)}`.

## Training

    PYTHONPATH=workflow .venv/bin/python -m pretraining micro_clip

Contrastive, like CLIP's (Radford et al., ICML 2021): within a batch of drawn characters and texts
with their Unicode names ("a photo of a greek small letter alpha."), the feature of each image is
trained to be nearest to that of its own text, and vice versa. Half of the texts begin
with up to {recipe.fillers} random filler words instead, so that the text tower learns names at all
positions. The image tower starts from the first {micro_clip.MICRO_BLOCKS} blocks of
`micro_vit.safetensors`; drawings are augmented as in its training.

It was trained on {len(chosen):,} characters: the {len(source):,} source classes of the micro ViT,
and {len(chosen) - len(source):,} relatives of them, that is, other Latin, Greek and Cyrillic
letters of the same fonts, accented, circled, mathematical. The source classes alone do not teach
what the names of the data set `glyphs` mean, because most of its letters occur in none of their
names. The relatives include none of the 120 classes of that data set, no digits or numeric
characters, and no character with a drawing, in any face, that has a cosine of {APART} or
more to a drawing of one of those in any face. Variants that look different are included:
a circled, a script and a fraktur q, but no plain q. For {apart} of the first 100 classes, no
variant in any style was trained on. It took {minutes:.1f} minutes on {recipe.threads} CPU
thread(s).

| setting | value |
|---|---|
{rows}

Equal settings give equal bytes on one kind of machine; another processor or torch release may
round differently and end in slightly different weights.

## Accuracy

Measured on the saved weights: accuracy among the first 100 classes of `glyphs`, none of which was
trained on, one noisy drawing in each of twelve faces.

| measure | accuracy | bound |
|---|---|---|
| zero-shot, "{TEMPLATE}" | {found["zero_shot"]:.1%} | {ZERO_SHOT_AT_LEAST:.0%} |
| the same, on the {apart} classes without a trained variant | {found["strangers"]:.1%} | |
| a random context of 16 tokens, N(0, 0.02), where prompt learning starts | \
{found["random_context"]:.1%} | |
| chance | 1.0% | |

{verdict}

## Limits

It exists so that the CLIP methods run, and can be compared, on two CPU cores without a download.
It knows white strokes on black and the names of characters. The embeddings of words that occur in
no character's name, the digits' names included, are random. Results with it say
nothing about the accuracy of a real CLIP.

## Licences

The weights were made from drawings of these fonts and contain no part of a font file. DejaVu:
Bitstream Vera's licence, with changes in the public domain and glyphs from Arev under the same
terms (`LICENSE_DEJAVU`). STIX 1.0: SIL Open Font License 1.1 (`LICENSE_STIX`). Both texts are
beside the fonts in matplotlib's data folder. The weights themselves are under this repository's
licence.
"""
