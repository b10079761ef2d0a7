"""Read the handwritten digits that ship with scikit-learn."""

from typing import Any

import numpy as np

from fedloom.common.json_types import JsonDict
from fedloom.config.datasets import Expected, SourceKind, TestFraction
from fedloom.data.image_list import ImageList, array_items


class SklearnDigits(SourceKind):
    """1,797 handwritten digits of 8 x 8 pixels that ship with scikit-learn."""

    licence = "scikit-learn (BSD 3-Clause) ships the images and states no other licence for them"

    test_fraction: TestFraction = 0.3

    def expected(self) -> Expected:
        """Return the numbers of images and classes."""
        return Expected(1797, 10)


def read(settings: JsonDict) -> ImageList:
    """List the digits, with a test split by scikit-learn; their 17 grey levels become 0..255."""
    import sklearn
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    # the images; scikit-learn does not annotate what it returns
    digits: Any = load_digits()
    labels = np.asarray(digits.target)
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)  # [N, 8, 8]

    # the test split
    fraction = settings["test_fraction"]
    rows = np.arange(len(labels))
    _, chosen = train_test_split(rows, test_size=fraction, stratify=labels, random_state=0)

    return ImageList(
        items=array_items(pixels),
        labels=labels,
        classes=[str(name) for name in digits.target_names],
        provenance=f"sklearn.datasets.load_digits, scikit-learn {sklearn.__version__}",
        domains=np.full(len(labels), "scan"),
        test=np.isin(rows, chosen),
        test_split=f"{fraction:.6g} of every class, by scikit-learn's train_test_split",
    )
