"""Clients of different size with the same mix of classes: quantity skew.

Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.
"""

from typing import Any

import numpy as np

from fedloom.data.source_toolbox import deal


def divide(labels: np.ndarray, settings: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Draw the clients' shares of all images from Dir(beta), and deal images at random.

    Args:
        labels: int [N] of the training images.

    Returns:
        int [N], the client of every image.
    """
    shares = rng.dirichlet(np.full(settings["clients"], settings["beta"]))  # [K]
    return deal(np.arange(len(labels)), shares, rng)
