"""Data sets as tests write them to disk, and the stores that sources make of them."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedloom.config.recipes import dataset_entry
from fedloom.data import sources
from fedloom.data.store import ImageStore


def dataset_spec(**entry):
    """Return an entry of the config's `datasets` with its defaults, checked as a config is."""
    return dataset_entry("mine", entry)


def build(folder, **entry):
    """Make the store of a data set in `folder`, and return the store and its receipt."""
    settings = dataset_spec(**entry)
    sources.build_store(settings.pop("source"), settings, folder / "images.arrow")
    return ImageStore(folder / "images.arrow"), json.loads((folder / "images.json").read_text())


def noise(seed, size=(12, 10), mode="RGB"):
    shape = size[::-1] if mode == "L" else (*size[::-1], 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8), mode)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def image_folder(root, *layers, count=4, suffix=".png", mode="RGB"):
    """Write `count` images into every root/a/b, a being of the first layer, b of the second."""
    places = [root]
    for names in layers:
        places = [place / name for place in places for name in names]
    for number, place in enumerate(places):
        for k in range(count):
            save(place / f"{k}{suffix}", noise(100 * number + k, mode=mode))
    return root


def png(seed, **options):
    stream = io.BytesIO()
    noise(seed, **options).save(stream, "PNG")
    return stream.getvalue()


def write_parquet(path, labels, start=0, structs=True, names=None, **columns):
    """Write one image per label, the k-th of seed start + k.

    The names of classes are stored as Hugging Face stores them.
    """
    data = [png(start + k) for k in range(len(labels))]
    image = [{"bytes": d, "path": f"{k}.png"} for k, d in enumerate(data)] if structs else data
    table = pa.table({"image": image, "label": labels, **columns})
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, row_group_size=50)
