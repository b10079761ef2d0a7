"""`fedloom predict`: print or write what a trained model says about images."""

import logging
import os
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from fedloom.common.errors import FedLoomError, shorten, suggestion
from fedloom.common.files import atomic_write, write_table
from fedloom.common.folders import check_writable, is_folder, printable, read_text, walk
from fedloom.data.labels import tidy
from fedloom.data.pixels import image_suffixes
from fedloom.models.run_folder import find_run, find_state, is_published, match_hub_name

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)
# the suffix of a list of images
LIST_SUFFIX = ".txt"
OUTPUT_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class Found:
    """An image that a word of the command line names.

    Attributes:
        path: the path of its file.
        folder: the name of the folder that it lies in, below the folder that the word names; "" if
            the word names no folder.
    """

    path: str
    folder: str = ""


@dataclass(frozen=True)
class PredictOptions:
    """What `fedloom predict` was asked to do.

    Attributes:
        run: the run's folder or its labels, or a published model's folder or name on a hub.
        images: files, folders, patterns, and lists of files.
        client: the id of the client whose model answers; None: the server's model.
        round_number: the round after which the model is read; None: the last.
        top_k: number of classes for each image.
        output: a file of OUTPUT_SUFFIXES; None: the predictions are part of the text.
        skip_unreadable: whether images that cannot be read are left out.
        device: where it computes, such as cuda.
        precision: the number format of the backbone; None: that of the study.
    """

    run: str
    images: tuple[str, ...]
    client: int | None
    round_number: int | None
    top_k: int
    output: Path | None
    skip_unreadable: bool
    device: str
    precision: str | None


def predict(options: PredictOptions) -> str:
    """Return the predictions of a run's model for images as text, or write them to a file."""
    run = options.run
    output = options.output

    # what can be wrong with the words, before torch is imported, which takes seconds
    if output is not None and output.suffix not in OUTPUT_SUFFIXES:
        known = " or ".join(OUTPUT_SUFFIXES)
        raise FedLoomError(f"--output: must end with {known}, got {output}")
    if output is not None:
        check_writable(output.parent)
    found = find_images(options.images)
    if not is_published(Path(run)) and match_hub_name(run) is None:
        find_state(*find_run(run), options.round_number)

    from fedloom.data.image_list import file_items
    from fedloom.machine.process_log import progress
    from fedloom.models.images import UnreadableError
    from fedloom.models.load import load
    from fedloom.models.predictions import predict_items

    model = load(
        run,
        client=options.client,
        round=options.round_number,
        device=options.device,
        precision=options.precision,
    )
    items = list(file_items([image.path for image in found])())
    with progress(len(items), "images") as bar:
        try:
            predictions = predict_items(
                items,
                model.module,
                model.transform,
                model.classes,
                options.top_k,
                options.skip_unreadable,
                bar.update,
            )
        except UnreadableError as error:
            raise FedLoomError(
                f"{error}; repair or remove the file, or skip such files with --skip-unreadable"
            ) from None

    # name the images that were left out
    for line in predictions.skipped:
        log.warning("skipped %s", line)
    if predictions.skipped:
        log.warning("%d of %d images were unreadable", len(predictions.skipped), len(items))

    table = with_labels(predictions.table, found, model.classes)
    parts = []
    if output is None:
        parts.append(tabulate(table.to_dict("list"), headers="keys", floatfmt=".3f"))
    else:
        _write(table, output)
        parts.append(f"{output}")
    if "label" in table:
        parts.append(accuracies(table))
    return "\n\n".join(parts)


def find_images(words: tuple[str, ...]) -> list[Found]:
    """Return the images that words of the command line name, each of them once.

    A word is a file, a folder (with all images below it), a pattern such as "*.png", or a list: a
    .txt file with the path of an image in each line.

    Raises:
        FedLoomError: a word names no image.
    """
    found: dict[str, Found] = {}
    for word in words:
        images = _images_of(word)
        if not images:
            raise FedLoomError(f"{printable(word)}: no image there; name files, folders or a list")
        for image in images:
            # a path may be spelt in several ways
            found.setdefault(os.path.abspath(image.path), image)  # noqa: PTH100
    return list(found.values())


def _images_of(word: str) -> list[Found]:
    """Return the images that a word of the command line names.

    If there is no file or folder of that name, the word is taken for a pattern.
    """
    if Path(word).exists():
        return _images_at(word)
    images: list[Found] = []
    for path in sorted(glob(word, recursive=True)):  # noqa: PTH207
        images += _images_at(path)
    return images


def _images_at(path: str) -> list[Found]:
    """Return the image at a path, or those in the list or below the folder that lies there."""
    if path.endswith(LIST_SUFFIX) and not is_folder(path):
        lines = read_text(Path(path)).splitlines()
        return [Found(line.strip()) for line in lines if line.strip()]
    if not is_folder(path):
        return [Found(path)]

    images: list[Found] = []
    suffixes = image_suffixes()
    for folder, _, entries in walk(path.rstrip("/") or "/"):
        below = Path(folder).relative_to(path).parts
        top = "".join(below[:1])
        for entry in entries:
            if Path(entry.name).suffix.lower() in suffixes:
                images.append(Found(f"{folder}/{entry.name}", top))
    return images


def with_labels(
    table: "pd.DataFrame", found: list[Found], classes: tuple[str, ...]
) -> "pd.DataFrame":
    """Return the predictions with the column `label`: the class whose folder the image lies in.

    Images in other folders have no label. If no folder has the name of a class, the predictions
    are returned without that column.
    """
    # a name on a disk may be spelt with other accents than that of the class
    class_of_folder = {tidy(name): name for name in classes}
    labels: dict[str, str] = {}
    others: set[str] = set()
    for image in found:
        label = class_of_folder.get(tidy(image.folder))
        if label is not None:
            labels[printable(image.path)] = label
        elif image.folder:
            others.add(image.folder)
    if not labels:
        return table

    if others:
        first = min(others)
        log.warning(
            "note: images in %d folders have no label, since these are no classes of the model: "
            "%s; %s",
            len(others),
            printable(first),
            shorten(suggestion(first, classes)),
        )
    return table.assign(label=table["image"].map(labels))


def accuracies(table: "pd.DataFrame") -> str:
    """Return the accuracy of the most probable class, of all images with a label and by class."""
    first = table[(table["rank"] == 1) & table["label"].notna()]
    is_correct = first["class"] == first["label"]
    by_class = is_correct.groupby(first["label"]).agg(["size", "sum"])
    rows = [[name, row["size"], row["sum"]] for name, row in by_class.iterrows()]
    rows.append(["all", len(first), is_correct.sum()])
    shown = [[name, size, correct, 100 * correct / size] for name, size, correct in rows]
    headers = ["class", "images", "correct", "accuracy in %"]
    return tabulate(shown, headers, floatfmt=".2f")


def _write(table: "pd.DataFrame", output: Path) -> None:
    """Write a table as CSV or Parquet."""
    if output.suffix == ".csv":
        with atomic_write(output) as temporary:
            table.to_csv(temporary, index=False)
        return

    import pyarrow as pa

    write_table(output, pa.Table.from_pandas(table, preserve_index=False))
