"""Clients of different size with the same mix of classes: quantity skew.

Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022.
"""

from typing import Any

import numpy as np

from fedloom.data.source_toolbox import deal


def divide(labels: np.ndarray, settings: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Draw the clients' shares of all images from Dir(beta), and deal the images at random.

    Args:
        labels: classes of the N training images, int [N].
        settings: the number of `clients`, and `beta`.

    Returns:
        The client of each image, int [N].
    """
    shares = rng.dirichlet(np.full(settings["clients"], settings["beta"]))  # [K]
    return deal(np.arange(len(labels)), shares, rng)
