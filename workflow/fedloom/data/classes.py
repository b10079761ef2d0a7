"""The classes of a dataset: their names, and whether those of two domains are one."""

import logging

import numpy as np

from fedloom.common.errors import FedLoomError

log = logging.getLogger(__name__)


def renamed(classes: list[str], named: bool, names: list[str] | None) -> tuple[list[str], bool]:
    """Return the classes' names, `names` if they are given, and whether they are more than numbers.

    Raises:
        FedLoomError: there are not as many `names` as classes, or two classes have one name.
    """
    if names is not None:
        if len(names) != len(classes):
            raise FedLoomError(f"class_names has {len(names)} names for {len(classes)} classes")
        classes, named = names, True
    first: dict[str, int] = {}
    for label, name in enumerate(classes):
        if first.setdefault(name, label) != label:
            raise FedLoomError(
                f"classes {first[name]} and {label} are both called {name!a}; give every class a "
                "name of its own (class_names, or where the names come from)"
            )
    return classes, named


def check_names(classes: list[str]) -> None:
    """Require names that a log, a table and a prompt can show.

    Raises:
        FedLoomError: a name is not text.
    """
    for name in classes:
        if not name.isprintable():
            raise FedLoomError(f"class {name!a}: a name that is not UTF-8 text; set class_names")


def per_domain(
    labels: np.ndarray, classes: list[str], domains: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Make one class of every class in every domain (class_per_domain).

    Args:
        labels: int [N].
        domains: str [N].

    Returns:
        The new labels [N], and the new names "domain/class", in the order of domains and, within a
        domain, of the old classes.

    Raises:
        FedLoomError: all images are of one domain.
    """
    names, domain = np.unique(domains.astype(str), return_inverse=True)
    if len(names) == 1:
        raise FedLoomError(
            f"class_per_domain: all images are of one domain ('{names[0]}'); leave it out, or say "
            "what the domains are"
        )
    cells, new = np.unique(domain * len(classes) + labels, return_inverse=True)
    pairs = [divmod(int(cell), len(classes)) for cell in cells]
    return new, [f"{names[where]}/{classes[label]}" for where, label in pairs]


def log_shared_classes(
    labels: np.ndarray, classes: list[str], domains: np.ndarray, optional: bool
) -> None:
    """Log how many classes occur in more than one domain, and are one class each.

    Args:
        labels: int [N].
        domains: str [N].
        optional: True if the dataset has the key `class_per_domain`.
    """
    _, domain = np.unique(domains, return_inverse=True)
    cells = np.unique(domain * len(classes) + labels)
    count = np.bincount(cells % len(classes), minlength=len(classes))
    shared = np.flatnonzero(count > 1)
    if len(shared):
        hint = "; set class_per_domain: true to keep them apart" if optional else ""
        log.info(
            "%d of %d classes occur in more than one domain, as '%s' in %d, and are one class "
            "each%s",
            len(shared),
            len(classes),
            classes[shared[0]],
            count[shared[0]],
            hint,
        )
