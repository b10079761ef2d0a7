"""Images of a partition's clients on a report: which clients, which images, and what they say."""

import base64
import io

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image

from fedloom.common.files import write_table
from fedloom.common.run_tables import PARTITION_SCHEMA
from fedloom.data.store import Example, write_images
from fedloom.report.page.samples import GAP, SIDE, sample_clients


def _partition(tmp_path, clients, held_out, images, shape=(4, 8, 3)):
    """Write a partition whose clients have `images` training images each, of grey levels by index.

    Image k has the class k modulo 3, and each client has a test image beside them.
    """
    rows = []
    for client in range(clients):
        for number in range(images + 1):
            index = len(rows)
            row = {"index": index, "client_id": client, "label": index % 3, "domain": ""}
            rows.append(row | {"test": number == images, "participating": client >= held_out})
    table = pa.Table.from_pandas(pd.DataFrame(rows), PARTITION_SCHEMA, preserve_index=False)
    partition = tmp_path / "seed0.parquet"
    write_table(partition, table)

    examples = [
        Example(np.full(shape, row["index"], np.uint8), row["label"], row["test"], "")
        for row in rows
    ]
    store = tmp_path / "images.arrow"
    write_images(store, examples, shape, ["a", "b", "c"], "made by a test")
    return partition, store


def _pixels(sample):
    data = base64.b64decode(sample.picture.source.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)))


def test_clients_and_images_are_evenly_spaced(tmp_path):
    partition, store = _partition(tmp_path, clients=14, held_out=3, images=9)
    samples = sample_clients(partition, store)
    assert [sample.client_id for sample in samples] == [3, 5, 7, 9, 11, 13, 0, 2]
    assert [sample.participating for sample in samples] == [True] * 6 + [False] * 2
    assert {sample.images for sample in samples} == {9}, "without the test image"

    # client 3 has the images 30 to 38; by class: 30, 33, 36, 31, 34, 37, 32, 35, 38
    pixels = _pixels(samples[0])
    assert pixels.shape == (SIDE // 2, 8 * (SIDE + GAP) - GAP, 3), "the longer side has SIDE"
    assert pixels[0, :: SIDE + GAP, 0].tolist() == [30, 33, 36, 31, 37, 32, 35, 38]


def test_a_line_names_the_most_frequent_classes(tmp_path):
    partition, store = _partition(tmp_path, clients=1, held_out=0, images=4)
    (sample,) = sample_clients(partition, store)
    assert sample.classes == "a 2, b 1, c 1"


def test_grey_images_and_few_images_are_shown(tmp_path):
    partition, store = _partition(tmp_path, clients=1, held_out=0, images=2, shape=(8, 4, 1))
    (sample,) = sample_clients(partition, store)
    assert _pixels(sample).shape == (SIDE, 2 * (SIDE // 2 + GAP) - GAP, 3)
    assert sample.picture.width == 2 * (SIDE // 2 + GAP) - GAP


def test_without_the_images_there_are_no_samples(tmp_path):
    partition, store = _partition(tmp_path, clients=1, held_out=0, images=2)
    store.unlink()
    assert sample_clients(partition, store) == []
