"""Compute t-SNE maps, the same on every call."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from fedloom.common.errors import FedLoomError

PERPLEXITY = 30
POINTS = 2000  # per panel; t-SNE of more takes minutes and shows no more


def sample(frame: pd.DataFrame) -> pd.DataFrame:
    """Return at most POINTS rows, evenly spaced."""
    if len(frame) <= POINTS:
        return frame
    return frame.iloc[np.linspace(0, len(frame) - 1, POINTS).round().astype(int)]


def embed(rows: Sequence[np.ndarray] | pd.Series, where: Path | str) -> np.ndarray:
    """Map N vectors of width d to points [N, 2]; the perplexity is 30, less for few vectors.

    Raises:
        FedLoomError: fewer than four vectors, or one that is not finite; names `where`.
    """
    if len(rows) < 4:
        raise FedLoomError(f"{where}: t-SNE needs at least 4 vectors, found {len(rows)}")
    from sklearn.manifold import TSNE

    vectors = np.stack(list(rows))  # [N, d]
    if not np.isfinite(vectors).all():
        raise FedLoomError(f"{where}: a vector is not finite")
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    start = "pca" if vectors.shape[1] > 1 and np.ptp(vectors, axis=0).any() else "random"
    # the rule has one thread; more of them that share cores with other jobs take many times longer
    with threadpool_limits(1):
        return TSNE(perplexity=perplexity, init=start, random_state=0).fit_transform(vectors)
