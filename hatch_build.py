"""A wheel's files beside the library: the same tree, below fedloom/bundle (machine/install.py)."""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = ("Snakefile", "config.yaml", "examples", "plugins", "profiles")
OF_WORKFLOW = ("new_study", "papers", "recipes", "resources", "rules", "studies")


class Bundle(BuildHookInterface):
    """Adds the files; an editable install needs none, it reads the checkout."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Add what is there: images of containers install packages without FedLoom's files."""
        names = [*FILES, *(f"workflow/{name}" for name in OF_WORKFLOW)]
        if version != "editable":
            build_data["force_include"] |= {
                str(Path(self.root, name)): f"fedloom/bundle/{name}"
                for name in names
                if Path(self.root, name).exists()
            }
