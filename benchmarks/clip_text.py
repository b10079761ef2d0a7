"""Compare the time of CLIP's text packed and in 77 places per class: ratios, in one run.

    PYTHONPATH=workflow .venv/bin/python benchmarks/clip_text.py

Times text features of one client and their gradient to the context (forward and backward) on the
text tower of a ViT-B-16 with random weights, packed and with every class in 77 places, in turn, and
prints the median of the ratios and the largest difference of the features. One thread; the class
names are turned into tokens before, for both.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.backbones.clip import text as clip_text
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.machine.device import prepare_torch

PLACES = 77  # positions of CLIP's text tower

# CIFAR-100's, whose lengths decide
CLASSES = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905
)


@cache
def tokenized(model: Any, length: int, classes: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return the tokens [C, 77] with placeholders for a context, and their embeddings [C, 77, d].

    Once per length and classes, as CoOp does.
    """
    tokens = open_clip.tokenize(["X " * length + name.replace("_", " ") + "." for name in classes])
    return tokens, model.token_embedding(tokens)


def padded_text(model: Any, contexts: Tensor, classes: tuple[str, ...], places: int) -> Tensor:
    """Return the features [n, C, d_joint] of n contexts before all classes.

    Every prompt has as many positions, whatever is behind its EOT.

    Args:
        contexts: [n, L, d], which stand for the placeholders.
        places: how many positions are computed: all 77, or up to the longest EOT.
    """
    count, length, _ = contexts.shape
    tokens, embedded = tokenized(model, length, tuple(classes))
    shared = embedded[:, :places].expand(count, -1, -1, -1)  # [n, C, places, d]
    learned = contexts[:, None].expand(-1, len(tokens), -1, -1)  # [n, C, L, d]
    x = torch.cat([shared[:, :, :1], learned, shared[:, :, 1 + length :]], 2).flatten(0, 1)
    mask = model.attn_mask[:places, :places]
    x = model.transformer(x + model.positional_embedding[:places], attn_mask=mask)
    ends = model.ln_final(x)[torch.arange(len(x)), tokens.argmax(1).repeat(count)]
    features = F.normalize(ends @ model.text_projection, dim=-1)  # [n C, d_joint]
    return features.unflatten(0, (count, -1))


def seconds(features: Callable[[Tensor], Tensor], context: Tensor) -> float:
    """Return the seconds of one forward and backward pass to the context [L, d]."""
    started = time.perf_counter()
    features(context).sum().backward()
    return time.perf_counter() - started


def main() -> None:
    """Print a Markdown table of ratios."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="timed pairs per line")
    parser.add_argument("--tokens", type=int, default=clip_text.TOKENS_AT_ONCE)
    args = parser.parse_args()
    prepare_torch(1)
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-B-16-quickgelu")
    tokenizer = open_clip.get_tokenizer("ViT-B-16-quickgelu")
    backbone = FrozenCLIP(model, tokenizer, "ViT-B-16", tokens_at_once=args.tokens)
    print("| context | 77 places, s | packed, s | ratio | difference |\n|---|---|---|---|---|")
    for length in (4, 16, 32):
        context = torch.randn(length, backbone.width).mul_(0.02).requires_grad_()
        ways = {
            "places": lambda c: padded_text(model, c[None], CLASSES, PLACES)[0],
            "packed": lambda c: backbone.text_features(c, CLASSES),
        }
        with torch.no_grad():
            found = [features(context) for features in ways.values()]
        apart = (found[0] - found[1]).abs().max().item()
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.pairs):
            for way, features in ways.items():
                times[way].append(seconds(features, context))
        ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
        places, packed = (statistics.median(t) for t in times.values())
        print(f"| {length} | {places:.2f} | {packed:.2f} | {ratio:.1f} | {apart:.1e} |")


if __name__ == "__main__":
    main()
