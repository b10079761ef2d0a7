"""Turn the labels that a source finds into classes."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from fedloom.common.errors import FedLoomError

log = logging.getLogger(__name__)

# a whole number; a table writes 0 as 0.0 if the column has an empty cell
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
# the most digits of a label that is a number; the number must fit into 64 bits
MOST_DIGITS = 18
FRACTION = re.compile(r"[+-]?\d*\.\d+")


class Classes(NamedTuple):
    """The classes of N images."""

    # the class of every image, int [N]
    numbers: np.ndarray
    # the label of every class: numbers in order of their values, words in alphabetical order
    labels: list[str]
    # False if the labels are mere numbers
    named: bool


def tidy(name: str) -> str:
    """Return a name without blanks around it, and with accents in one spelling (Unicode's NFC)."""
    return normalize("NFC", name.strip())


def tidy_names(names: Sequence[str]) -> list[str]:
    """Return each name as `tidy` does; the log lists names that were written in several ways."""
    # the ways in which each tidy name is written
    written: dict[str, set[str]] = {}
    for name in {*names}:
        written.setdefault(tidy(name), set()).add(name)
    for name, ways in written.items():
        if len(ways) > 1:
            log.warning(
                "'%s' is one name, written with blanks around it or in %d ways of Unicode",
                name,
                len(ways),
            )

    return [tidy(name) for name in names]


def are_numbers(labels: Iterable[str]) -> bool:
    """Return True if all labels are mere numbers, which a text prompt cannot use."""
    return all(WHOLE.fullmatch(label) for label in labels)


def _integer(label: str) -> int:
    """Return the value of a label that is a whole number."""
    return int(label.partition(".")[0])


def classes_from_labels(labels: Sequence[str], where: Callable[[int], str]) -> Classes:
    """Return the classes of images with these labels.

    Labels must be all whole numbers or all words. Numbers with one value, such as 07, 7 and 7.0,
    are one class.

    Args:
        labels: the label of each of N images.
        where: returns the place from which the label of an image comes, for errors.

    Raises:
        FedLoomError: a label is no class (see `_check_label`), or numbers are mixed with words. In
            such a mixture, a misspelt number would become a class.
    """
    # the first image of each label, for errors
    labels = tidy_names(labels)
    first = dict[str, int]()
    for image, label in enumerate(labels):
        first.setdefault(label, image)
    numeric = {label for label in first if WHOLE.fullmatch(label)}

    # check each label, and that all are numbers or all are words
    for label, image in sorted(first.items(), key=lambda item: item[1]):
        _check_label(label, label in numeric, partial(where, image))
    if numeric and len(numeric) < len(first):
        word = min(first.keys() - numeric, key=first.__getitem__)
        number = min(numeric, key=first.__getitem__)
        raise FedLoomError(
            f"{where(first[word])}: labels must be numbers alone, which class_names can name, or "
            f"words alone, got '{word}' beside '{number}'; correct it"
        )

    # classes in order
    if numeric:
        labels = [str(_integer(label)) for label in labels]
    distinct = sorted({*labels}, key=int if numeric else str)
    number_by_label = {label: number for number, label in enumerate(distinct)}
    return Classes(np.array([number_by_label[label] for label in labels]), distinct, not numeric)


def _check_label(label: str, is_number: bool, where: Callable[[], str]) -> None:
    """Refuse a label that is empty, a fraction, negative, too long, or of several lines."""
    if not label:
        raise FedLoomError(f"{where()}: a label must be a name or a number, got none")
    if is_number and len(label) > MOST_DIGITS:
        raise FedLoomError(
            f"{where()}: a label that is a number must have at most {MOST_DIGITS} digits, "
            f"got {len(label)}; name the column with the classes"
        )
    if is_number and _integer(label) < 0:
        raise FedLoomError(
            f"{where()}: a label that is a number must be 0 or more, got '{label}', which "
            "often stands for a hidden label; leave such images out"
        )
    if FRACTION.fullmatch(label) and not is_number:
        raise FedLoomError(
            f"{where()}: a label must be a whole number or a word, got '{label}'; name "
            "the column with the classes"
        )
    if not label.isprintable():
        raise FedLoomError(
            f"{where()}: a label must be one line of text, got {label!a}; correct it"
        )
