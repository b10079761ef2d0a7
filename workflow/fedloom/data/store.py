"""Store the images of a dataset as a memory-mapped Arrow file: pixels, label, split, domain.

The receipt beside the file has two kinds of digests:

- a checksum for every chunk of pixels, which is compared when the chunk is first read;
- the sha256 of all other bytes, which is compared when the file is opened.

A sha256 of the whole file would take 6.8 s in every job, for 50,000 images at 224 px. The checksums
take a third of that time, and none in a job that reads only labels.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.files import atomic_write
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import changed_error, read_receipt, write_receipt

# the most images of one chunk of the file
MAX_CHUNK_IMAGES = 1024
# the approximate size of one chunk; a chunk is kept in memory while it is written
CHUNK_BYTES = 32 << 20


class Example(NamedTuple):
    """One image that is to be written into a store."""

    image: np.ndarray  # uint8 [H, W, channels]
    label: int
    test: bool
    domain: str


def write_images(
    store: Path,
    examples: Iterable[Example],
    shape: tuple[int, int, int],
    classes: list[str],
    provenance: str,
    skipped: Sized = (),
    named: bool = True,
    test_split: str = "official",
    preparation: JsonDict | None = None,
) -> None:
    """Write `examples` of both splits one by one into the file `store`, and write its receipt.

    Raises a FedLoomError if there is no test image.

    Args:
        store: path of the file.
        examples: the images, all of the same shape.
        shape: height, width and channels of an image.
        classes, provenance, named, test_split: see ImageList.
        skipped: images that are left out; it may grow while `examples` are drawn.
        preparation: the keys of `fedloom.data.images.PREPARATION` by which they were brought into
            their shape; the receipt keeps them, so that other images can be prepared likewise.
    """
    # count the images while they are written
    total = 0
    tests = 0
    schema = _schema(shape)
    with atomic_write(store) as temporary, pa.ipc.new_file(temporary, schema) as writer:
        for chunk in _chunks(examples, shape):
            writer.write_batch(_record_batch(chunk, schema))
            total += len(chunk)
            tests += sum(example.test for example in chunk)

        # raised before the file gets its final name
        if not tests:
            raise FedLoomError(
                f"none of {total} images ({len(skipped)} unreadable) is a test image; name test "
                "images that can be read, or take a dataset without an official split"
            )

    # the receipt
    facts = _checksums(store)
    if not named:
        facts["named"] = False
    write_receipt(
        store,
        images=total,
        test_images=tests,
        test_split=test_split,
        classes=classes,
        shape=shape,
        skipped=len(skipped),
        provenance=provenance,
        preparation=preparation or {},
        **facts,
    )


def _schema(shape: tuple[int, int, int]) -> pa.Schema:
    """Return the columns of a store's file, which has a row per image, with its pixels as bytes."""
    height, width, channels = shape
    return pa.schema(
        {
            "image": pa.binary(int(np.prod(shape))),
            "label": pa.int32(),
            "test": pa.bool_(),
            "domain": pa.string(),
        },
        metadata={"height": str(height), "width": str(width), "channels": str(channels)},
    )


def _chunks(examples: Iterable[Example], shape: tuple[int, int, int]) -> Iterator[list[Example]]:
    """Yield the examples in lists, each of which is one chunk of the file."""
    bytes_of_image = int(np.prod(shape))
    size = max(1, min(MAX_CHUNK_IMAGES, CHUNK_BYTES // bytes_of_image))
    iterator = iter(examples)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _record_batch(chunk: list[Example], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a chunk."""
    columns = {
        "image": [example.image.tobytes() for example in chunk],
        "label": [example.label for example in chunk],
        "test": [example.test for example in chunk],
        "domain": [example.domain for example in chunk],
    }
    return pa.RecordBatch.from_pydict(columns, schema)


def _checksums(store: Path) -> JsonDict:
    """Return start, length and CRC-32 of each chunk's pixels (`parts`), and a sha256 (`rest`)."""
    whole = pa.memory_map(str(store)).read_buffer()
    data = memoryview(whole)
    parts = []
    for chunk in pa.ipc.open_file(whole).read_all()["image"].chunks:
        pixels = chunk.buffers()[1]
        start = pixels.address - whole.address
        parts.append((start, pixels.size, zlib.crc32(data[start : start + pixels.size])))
    return {"parts": parts, "rest": _digest_between(data, parts)}


def _digest_between(data: memoryview, parts: Sequence[tuple[int, int, int]]) -> str:
    """Return the sha256 of the bytes before, between and after the parts."""
    result = hashlib.sha256()
    end = 0
    for start, length, _ in (*parts, (len(data), 0, 0)):
        result.update(data[end:start])
        end = start + length
    return result.hexdigest()


class ImageStore:
    """Read a store; the pixels of an image are read from disk when they are used."""

    def __init__(self, path: Path, facts: JsonDict | None = None):
        """Map the file into memory, and verify all bytes except the pixels.

        `facts` is the file's receipt; by default it is read. Raises a FedLoomError if the file is
        missing or is not what its receipt describes.
        """
        if facts is None:
            facts = read_receipt(path)
        if not path.is_file() or "parts" not in facts:
            raise changed_error(path)

        # verify all bytes except the pixels now, and the pixels when they are read
        whole = pa.memory_map(str(path)).read_buffer()
        self._path = path
        self._data = memoryview(whole)
        self._parts = facts["parts"]
        if _digest_between(self._data, self._parts) != facts["rest"]:
            raise changed_error(path)
        self._unverified = set(range(len(self._parts)))

        # the columns, and a view of the pixels of every chunk
        self._table = pa.ipc.open_file(whole).read_all()
        meta = self._table.schema.metadata
        self.shape = tuple(int(meta[key]) for key in (b"height", b"width", b"channels"))
        self.labels = self._table["label"].to_numpy().astype(np.int64)  # [N]
        self.test = self._table["test"].to_numpy()  # bool [N]
        self.domains = self._table["domain"].to_numpy()  # str [N]
        pixels = [chunk.buffers()[1] for chunk in self._table["image"].chunks]
        self._chunks = [np.frombuffer(each, np.uint8).reshape(-1, *self.shape) for each in pixels]
        self._starts = np.cumsum([0, *map(len, self._chunks)])

    def __len__(self) -> int:
        return self._table.num_rows

    @property
    def nbytes(self) -> int:
        """Return the size of all images in bytes."""
        return len(self) * int(np.prod(self.shape))

    def images(self, index: np.ndarray) -> np.ndarray:
        """Return the images at the rows `index` [...], as uint8 [..., H, W, channels].

        Raises a FedLoomError if one of their chunks is not what the receipt describes.
        """
        # verify the chunks of these images that were not verified yet
        rows = index.reshape(-1)
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        for chunk in self._unverified & set(chunks.tolist()):
            start, length, checksum = self._parts[chunk]
            if zlib.crc32(self._data[start : start + length]) != checksum:
                raise changed_error(self._path)
            self._unverified.remove(chunk)

        # a loop copies each image only once: Arrow's `take` may first copy the whole column, and
        # indexing a NumPy array with a list makes another array
        pixels = np.empty((len(rows), *self.shape), np.uint8)
        within = rows - self._starts[chunks]
        for place, (chunk, row) in enumerate(zip(chunks.tolist(), within.tolist(), strict=True)):
            pixels[place] = self._chunks[chunk][row]
        return pixels.reshape(*index.shape, *self.shape)
