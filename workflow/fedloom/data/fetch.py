"""Getting a data set's files as its recipe says: torchvision, the hub, archives, or by hand."""

from fedloom.common.checkout import resource
from fedloom.common.errors import FedLoomError
from fedloom.config.recipes import Recipe, find, folder_of
from fedloom.data.download import fetch_archives, fetch_from_hub
from fedloom.data.entries import dataset_entry
from fedloom.data.sources import read


def get(recipe: Recipe, root: str | None = None) -> list[str]:
    """Bring a data set's files below the root, and return the steps that a person must do.

    What is there already is not fetched again; of a data set that is made of others, each is got.

    Args:
        root: default: the recipe's.

    Raises:
        FedLoomError: a download failed, or there can be no such folder.
    """
    root = root or recipe.root
    folder, how = resource(root), recipe.get
    if how.keys() - {"manual"}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedLoomError(f"{recipe.name}: root {folder}: {error.strerror}") from None
    steps = []
    for name in how.get("recipes", ()):
        part = find(name)
        steps += get(part, f"{root}/{folder_of(part)}")
    if how.get("torchvision"):
        entry = {"recipe": str(recipe.file), "root": root, "download": True}
        settings = dataset_entry(recipe.name, entry)
        read(settings.pop("source"), settings)
    if "hub" in how:
        fetch_from_hub(**how["hub"], root=folder)
    if "archives" in how:
        fetch_archives(how["archives"], folder)
    return steps + [step.replace("{root}", str(folder)) for step in how.get("manual", ())]
