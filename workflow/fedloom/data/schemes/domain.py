"""Give every client one domain, or a part of one."""

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import domain_names
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import Count, Natural, Number, PositiveShare, Several, require_other_keys
from fedloom.config.partitions import MinImages, SchemeKind
from fedloom.data.schemes import dirichlet, iid, imbalance
from fedloom.data.schemes.dealing import ImageGroup


class Domain(SchemeKind):
    """Every client holds images of one domain. Several clients of a domain divide it at random; by
    `dirichlet` if alpha and kind are given; or by `imbalance` if dominant_share and
    dominant_classes are given.
    """

    clients_per_domain: Count = 1
    """Number of clients of each domain."""
    alpha: Annotated[Number, Field(gt=0)] | None = None
    """Concentration of the Dirichlet distribution, set together with `kind`."""
    kind: Literal["client", "class", "class_capped"] | None = None
    """Which proportions are drawn, see the scheme `dirichlet`; set together with `alpha`."""
    min_images: MinImages = None
    dominant_share: PositiveShare | None = None
    """Share of each class's images that is divided evenly over the clients that the class
    dominates; the rest is divided over all clients of the domain (PFPT's 4-dataset). It is set
    together with `dominant_classes`."""
    dominant_classes: PositiveShare | None = None
    """Share of the domain's classes that dominate a client, but at least one class. It is set
    together with `dominant_share`."""
    held_out_per_domain: Natural = 0
    """Number of clients of each domain that never train and are only evaluated, in place of
    `held_out`."""
    held_out_domains: Several[str] | None = None
    """Domains whose clients never train and are only evaluated, in place of `held_out`. `grid:
    {held_out_domains: [[a], [b], [c]]}` leaves out one domain after the other."""

    @model_validator(mode="after")
    def _divided_in_one_way(self) -> Self:
        """Refuse two ways to divide a domain or to hold clients out, and keys that lack another.

        Also refuse a partition in which no client of a domain trains.
        """
        if self.alpha is not None and self.dominant_share is not None:
            raise ValueError("alpha and dominant_share; divide a domain by one of them")

        ways = ("held_out", "held_out_per_domain", "held_out_domains")
        chosen = [key for key in ways if getattr(self, key)]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)}; set one of them")

        held = self.held_out_per_domain
        clients = self.clients_per_domain
        if held >= clients:
            raise ValueError(
                f"held_out_per_domain must be below {clients}, the clients of a domain, got {held}"
            )

        return require_other_keys(
            self,
            alpha="kind",
            kind="alpha",
            min_images="alpha",
            dominant_share="dominant_classes",
            dominant_classes="dominant_share",
        )


def groups(domains: np.ndarray, settings: JsonDict) -> list[ImageGroup]:
    """Return one group of images per domain; `domains`, str [N], are the domains of all images.

    Images of NO_DOMAIN are in no group. The keys `alpha` and `dominant_share` choose the scheme by
    which each group is divided. Raises a FedLoomError if there is only one domain.
    """
    names = domain_names(domains.tolist())
    if len(names) == 1:
        raise FedLoomError(
            f"all images of the dataset are of one domain ('{names[0]}'); use another scheme"
        )

    # the scheme within a domain
    inner = settings | {"clients": settings["clients_per_domain"]}
    divide = iid.divide
    if "alpha" in settings:
        divide = dirichlet.divide
    elif "dominant_share" in settings:
        divide = imbalance.divide_pooled
    return [ImageGroup(f" of domain '{name}'", domains == name, divide, inner) for name in names]
