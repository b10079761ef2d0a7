"""The sources of data that ship with FedLoom, by the names that a config gives them."""

from fedloom.common.schema import Keys
from fedloom.data.sources.folder import Folder
from fedloom.data.sources.glyphs import Glyphs
from fedloom.data.sources.lists import Lists
from fedloom.data.sources.parquet import Parquet
from fedloom.data.sources.several import Several
from fedloom.data.sources.sklearn_digits import SklearnDigits
from fedloom.data.sources.synthetic import Synthetic
from fedloom.data.sources.torchvision import Torchvision

KINDS: dict[str, type[Keys]] = {
    "folder": Folder,
    "glyphs": Glyphs,
    "lists": Lists,
    "parquet": Parquet,
    "several": Several,
    "sklearn_digits": SklearnDigits,
    "synthetic": Synthetic,
    "torchvision": Torchvision,
}
