"""The default study's config, for tests that build studies on it."""

from typing import Any

from fedloom.config.reading import read
from fedloom.machine.install import ROOT


def default_config() -> dict[str, Any]:
    """Return config.yaml with two seeds, few clients in a round, and without its `tune`.

    With `tune` every method is trained several times.
    """
    config = read(ROOT / "config.yaml")
    config["study"] |= {"seeds": [0, 1], "clients_per_round": 10}
    del config["study"]["tune"]
    return config
