"""Pretrain a micro backbone on drawn characters, without replacing the bundled one.

PYTHONPATH=workflow .venv/bin/python -m pretraining micro_vit
"""

import argparse
import logging
from pathlib import Path

from pretraining import clip, vit, vit_gap

MODELS = {"micro_vit": vit, "micro_vit_gap": vit_gap, "micro_clip": clip}


def main() -> None:
    """Write weights and card of a model into a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--folder", type=Path, default=Path("results/pretrained"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    weights = given.folder / f"{given.model}.safetensors"
    card = weights.with_suffix(".md")
    MODELS[given.model].pretrain(weights, card, given.seed, threads=given.threads)


if __name__ == "__main__":
    main()
