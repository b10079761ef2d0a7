"""Give every client one domain, or a part of one."""

from typing import Any

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.data.image_list import NO_DOMAIN
from fedloom.data.schemes import dirichlet, iid, imbalance
from fedloom.data.schemes.base import Group


def groups(domains: np.ndarray, settings: dict[str, Any]) -> list[Group]:
    """Return each domain, divided by itself: by Dirichlet, by imbalance, or at random.

    Which of them follows from the keys: `alpha`, `dominant_share`, or none of the two.

    Args:
        domains: str [N] of the dataset's images. Test images of NO_DOMAIN are in no group.

    Raises:
        FedLoomError: the dataset has one domain.
    """
    names = np.setdiff1d(domains.astype(str), [NO_DOMAIN])
    if len(names) == 1:
        raise FedLoomError(
            f"all images of the dataset are of one domain ('{names[0]}'); use another scheme"
        )
    inner = settings | {"clients": settings["clients_per_domain"]}
    divide = iid.divide
    if "alpha" in settings:
        divide = dirichlet.divide
    elif "dominant_share" in settings:
        divide = imbalance.divide_pooled
    return [Group(f" of domain '{name}'", domains == name, divide, inner) for name in names]
