"""Peak memory and speed of making and reading image stores, at two sizes.

    PYTHONPATH=workflow python benchmarks/image_stores.py [images ...]

Makes noise images of 32 x 32 pixels in each format in a temporary folder (about 0.5 GB for 50,000),
and each store in a separate process, whose peak memory is that of making the store.
"""

import hashlib
import io
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedloom.config.datasets import listing
from fedloom.data import sources
from fedloom.data.store import ImageStore

CLASSES = 10


def encoded(seed: int) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def make_folder(root: Path, count: int) -> dict:
    for label in range(CLASSES):
        (root / str(label)).mkdir(parents=True)
    for k in range(count):
        (root / str(k % CLASSES) / f"{k}.png").write_bytes(encoded(k))
    return {"source": "folder", "root": str(root), "domains": False}


def make_parquet(root: Path, count: int) -> dict:
    """One row group, which is how pyarrow writes a table and the worst case to stream."""
    root.mkdir()
    image = [{"bytes": encoded(k), "path": None} for k in range(count)]
    table = pa.table({"image": image, "label": np.arange(count) % CLASSES})
    pq.write_table(table, root / "train.parquet", row_group_size=count)
    columns = {"image_column": "image", "label_column": "label"}
    return {"source": "parquet", "train_files": str(root / "train.parquet")} | columns


def make_cifar(root: Path, count: int) -> dict:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    parts = {f"data_batch_{k}": count // 5 for k in range(1, 6)} | {"test_batch": CLASSES}
    for name, size in parts.items():
        pixels = rng.integers(0, 256, (size, 3072), np.uint8)
        labels = (np.arange(size) % CLASSES).tolist()
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    empty = {"options": {}, "train": {}, "test": {}}
    return {
        "source": "torchvision",
        "name": "CIFAR10",
        "root": str(root),
        "download": False,
    } | empty


def trust_cifar(root: Path) -> None:
    """Tell torchvision the checksums of our own files."""
    from torchvision.datasets import CIFAR10

    def known(name: str) -> str:
        return hashlib.md5((root / CIFAR10.base_folder / name).read_bytes()).hexdigest()

    CIFAR10.train_list = [[f"data_batch_{k}", known(f"data_batch_{k}")] for k in range(1, 6)]
    CIFAR10.test_list = [["test_batch", known("test_batch")]]
    CIFAR10.meta = CIFAR10.meta | {"md5": known("batches.meta")}


def build(spec: dict, images: Path) -> tuple[float, int]:
    """Seconds and peak MB of making a store."""
    if spec.get("name") == "CIFAR10":
        trust_cifar(Path(spec["root"]))
    start = time.perf_counter()
    settings: dict[str, Any] = dict(spec)
    sources.build_store(settings.pop("source"), settings, images)
    return time.perf_counter() - start, memory("VmHWM")


def read(images: Path) -> tuple[float, float, int]:
    """Seconds to open, milliseconds per random batch of 160, and MB that are not mapped file."""
    start = time.perf_counter()
    store = ImageStore(images)
    opened = time.perf_counter() - start
    index = np.random.default_rng(0).integers(0, len(store), (200, 10, 16))
    start = time.perf_counter()
    for batch in index:
        store.images(batch)
    each = (time.perf_counter() - start) / len(index) * 1e3
    return opened, each, memory("RssAnon")


def memory(entry: str) -> int:
    """MB of this process; VmHWM is its peak (getrusage's would be the parent's, if larger)."""
    lines = dict(x.split(":") for x in Path("/proc/self/status").read_text().splitlines())
    return int(lines[entry].split()[0]) // 1024


def apart(function: Callable, *arguments: object) -> tuple:
    """Call it in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [5_000, 50_000]
    print("| source | images | peak MB | seconds | images/s | listing s |")
    print("|---|---|---|---|---|---|")
    count = counts[-1]
    read_back = (0.0, 0.0, 0.0)
    for make in (make_folder, make_parquet, make_cifar):
        for count in counts:
            with tempfile.TemporaryDirectory() as place:
                spec = make(Path(place) / "data", count)
                spec |= {"test_fraction": 0.3, "skip_unreadable": False}
                start = time.perf_counter()
                listing(spec)
                listed = time.perf_counter() - start
                images = Path(place) / "images.arrow"
                seconds, peak = apart(build, spec, images)
                cells = (spec["source"], f"{count:,}", peak, f"{seconds:.1f}")
                print("|", *map("{} |".format, cells), f"{count / seconds:,.0f} | {listed:.2f} |")
                read_back = apart(read, images)
    opened, each, anonymous = read_back
    print(f"\nReading {count:,} images: opened in {opened * 1e3:.0f} ms, {each:.2f} ms per random")
    print(f"batch of 160, {anonymous} MB beside the mapped file.")


if __name__ == "__main__":
    main()
