"""The packages whose versions numbers depend on: stated here and nowhere else."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("fedloom", "numpy", "scipy", "scikit-learn", "pillow", "safetensors")
PACKAGES += ("torch", "torchvision", "timm")
OF_EXTRAS = ("open_clip_torch", "opacus")


def versions() -> dict[str, str]:
    """Return the versions of those that are installed, by name."""
    found = dict[str, str]()
    for name in (*PACKAGES, *OF_EXTRAS):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
