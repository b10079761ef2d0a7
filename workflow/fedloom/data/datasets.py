"""Where images come from: one function per source of config.schema.yaml's `dataset`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedloom.data import store


def fixed_test_split(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Stratified test split [N] bool of a dataset that has no official one; always the same."""
    from sklearn.model_selection import train_test_split

    _, test = train_test_split(
        np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=0
    )
    chosen = np.zeros(len(labels), bool)
    chosen[test] = True
    return chosen


def sklearn_digits(spec: dict, images: Path, about: Path) -> None:
    """1,797 digits of 8 x 8 pixels with 17 grey levels, stretched to 0..255."""
    import sklearn
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    test = fixed_test_split(digits.target, spec["test_fraction"])

    def examples() -> Iterator[store.Example]:
        for image, label, held in zip(pixels, digits.target, test, strict=True):
            yield store.Example(image, int(label), bool(held), "scan")

    names = [str(name) for name in digits.target_names]
    provenance = f"sklearn.datasets.load_digits, scikit-learn {sklearn.__version__}"
    store.write(images, about, examples(), pixels.shape[1:], names, provenance)


SOURCES = {"sklearn_digits": sklearn_digits}


def build(spec: dict, images: Path, about: Path) -> None:
    """Write the store and its description for one entry of the config's `datasets`."""
    SOURCES[spec["source"]](spec, images, about)
