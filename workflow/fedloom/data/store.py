"""Images of one dataset as a memory-mapped Arrow file: uint8 pixels, label, split, domain."""

from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.io import replacing
from fedloom.common.receipts import read_receipt, write_receipt
from fedloom.data.verified_file import VerifiedFile, checksums

BATCH = 1024  # images of one chunk of the file, at most
CHUNK = 32 << 20  # approximate bytes of one chunk, which is what writing keeps in memory


class Example(NamedTuple):
    """One image on its way into a store."""

    image: np.ndarray  # uint8 [H, W, channels]
    label: int
    test: bool
    domain: str


def write(
    store: Path,
    examples: Iterable[Example],
    shape: tuple[int, int, int],
    classes: list[str],
    provenance: str,
    skipped: Sized = (),
    named: bool = True,
    test_split: str = "official",
) -> None:
    """Stream `examples` into the file `store`, and describe it in its receipt.

    Args:
        shape: height, width and channels of every image.
        skipped: what was left out; it may grow while `examples` are drawn.
        named: False where `classes` are mere numbers, which no prompt can be made of.
        test_split: how the test images were chosen, in words.

    Raises:
        FedLoomError: there is no test image, or no training image. Nothing is written then.
    """
    schema = pa.schema(
        [
            ("image", pa.binary(int(np.prod(shape)))),
            ("label", pa.int32()),
            ("test", pa.bool_()),
            ("domain", pa.string()),
        ],
        metadata={"height": str(shape[0]), "width": str(shape[1]), "channels": str(shape[2])},
    )
    counts = {False: 0, True: 0}  # training and test images
    with replacing(store) as temporary, pa.ipc.new_file(temporary, schema) as writer:
        for group in batched(examples, max(1, min(BATCH, CHUNK // int(np.prod(shape))))):
            rows = [(example.image.tobytes(), *example[1:]) for example in group]
            writer.write_batch(_batch(rows, schema))
            for example in group:
                counts[example.test] += 1
        _check_halves(counts, len(skipped))
    facts = {
        "images": sum(counts.values()),
        "test_images": counts[True],
        "test_split": test_split,
        "classes": classes,
        "shape": shape,
        "skipped": len(skipped),
    }
    facts |= {} if named else {"named": False}
    facts |= checksums(store, _pixel_parts(store))
    write_receipt(store, **facts, provenance=provenance)


def _pixel_parts(store: Path) -> list[tuple[int, int]]:
    """Return position and length of every chunk's pixels in the file, in bytes."""
    whole = pa.memory_map(str(store)).read_buffer()
    pixels = [chunk.buffers()[1] for chunk in pa.ipc.open_file(whole).read_all()["image"].chunks]
    return [(buffer.address - whole.address, buffer.size) for buffer in pixels]


def _check_halves(counts: dict[bool, int], skipped: int) -> None:
    """Require training images (False) and test images (True).

    Raises:
        FedLoomError: says which of them are missing.
    """
    for half, name in ((False, "training"), (True, "test")):
        if not counts[half]:
            left_out = f", {skipped} unreadable ones left out" if skipped else ""
            raise FedLoomError(
                f"none of the {sum(counts.values())} images{left_out} is a {name} image; name "
                f"{name} images that can be read, or take a dataset without a test split of its own"
            )


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Yield lists of `size` items, the last maybe shorter (itertools.batched of Python 3.12)."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def _batch(rows: list[tuple], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a batch of the store's columns."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


class ImageStore:
    """Read a store; the pixels of an image are read from disk when they are asked for.

    Attributes:
        shape: height, width, channels.
        labels: int64 [N].
        test: bool [N], True for test images.
        domains: str [N], name of each image's domain.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any] | None = None):
        """Map the file into memory, and verify all but the pixels.

        Args:
            facts: its receipt; default: the one beside it.

        Raises:
            FedLoomError: it is not the file that the receipt was written for.
        """
        self._file = VerifiedFile(path, read_receipt(path) if facts is None else facts)
        self._table = pa.ipc.open_file(self._file.buffer).read_all()
        meta = self._table.schema.metadata
        self.shape = tuple(int(meta[key]) for key in (b"height", b"width", b"channels"))
        self.labels = self._table["label"].to_numpy().astype(np.int64)
        self.test = self._table["test"].to_numpy()
        self.domains = self._table["domain"].to_numpy()
        self._chunks = [self._pixels(chunk) for chunk in self._table["image"].chunks]
        self._starts = np.cumsum([0, *map(len, self._chunks)])

    def __len__(self) -> int:
        return self._table.num_rows

    def _pixels(self, chunk: pa.Array) -> np.ndarray:
        """Return a view of a chunk of the file as uint8 [rows, H, W, channels]."""
        flat = np.frombuffer(chunk.buffers()[1], np.uint8)
        size = int(np.prod(self.shape))
        return flat[chunk.offset * size :][: len(chunk) * size].reshape(len(chunk), *self.shape)

    def images(self, index: np.ndarray) -> np.ndarray:
        """Return the images at `index` [...], as uint8 [..., H, W, channels].

        Raises:
            FedLoomError: the pixels of one of these chunks are not as they were written.
        """
        rows = index.reshape(-1)
        chunks = np.searchsorted(self._starts, rows, side="right") - 1
        within = rows - self._starts[chunks]
        pixels = np.empty((len(rows), *self.shape), np.uint8)
        for chunk in np.unique(chunks):
            self._file.verify(chunk)
        # image by image, to copy each once: Arrow's `take` may copy the whole column before it
        # takes from it, and numpy's indexing by a list makes an array of its own
        for place, (chunk, row) in enumerate(zip(chunks.tolist(), within.tolist(), strict=True)):
            pixels[place] = self._chunks[chunk][row]
        return pixels.reshape(*index.shape, *self.shape)
