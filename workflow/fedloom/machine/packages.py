"""List the packages on whose versions the numbers of results depend; no other file lists them."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("fedloom", "numpy", "scipy", "scikit-learn", "pillow", "safetensors")
PACKAGES += ("torch", "torchvision", "timm")
OF_EXTRAS = ("open_clip_torch", "opacus")


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed, by name."""
    found = dict[str, str]()
    for name in (*PACKAGES, *OF_EXTRAS):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
