"""Measure how well class means tell test images apart at every block (PEP-FedPT, Fig. 2)."""

from pathlib import Path

import pyarrow as pa
import safetensors
import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_table
from fedloom.common.run_tables import BLOCK_ACCURACY_SCHEMA
from fedloom.common.tensor_files import tensor
from fedloom.data.store import ImageStore


def nearest_prototype(tokens: Tensor, labels: Tensor, test: Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in percent of a nearest-class-mean classifier on test images.

    The mean of a class is that of the tokens of its other images. A class without other images is
    never near.

    Args:
        tokens: the class tokens of all images, [N, d].
        labels: the classes, int64 [N].
        test: True for test images, bool [N].
    """
    # the mean of each class, [C, d]
    classes = int(labels.max()) + 1
    train = ~test
    count = torch.bincount(labels[train], minlength=classes)
    means = torch.zeros(classes, tokens.shape[1]).index_add_(0, labels[train], tokens[train])
    means /= count.clamp(min=1)[:, None]

    distance = torch.cdist(tokens[test], means)  # [test images, C]
    distance[:, count == 0] = torch.inf

    # whether each of the five nearest classes is the true one
    nearest = distance.topk(min(5, classes), largest=False).indices  # [test images, 5]
    hits = nearest == labels[test][:, None]
    top1 = 100 * hits[:, 0].float().mean().item()
    top5 = 100 * hits.any(1).float().mean().item()
    return top1, top5


def depth(features: Path) -> int:
    """Return the number of blocks of the network whose class tokens are in a file."""
    with safetensors.safe_open(features, "pt") as file:
        return file.get_slice("inputs").get_shape()[1]


def class_tokens(features: Path, block: int) -> Tensor:
    """Return the class tokens [N, d] of all images at the input of a block, in float32.

    The M blocks are counted from 1, and block M + 1 is the network's output. The safetensors file
    holds the inputs as `inputs` [N, M, d] and the output as `final` [N, d]. Raises a FedLoomError
    if there is no such block.
    """
    last = depth(features) + 1
    if block > last:
        raise FedLoomError(f"{features}: no block {block}; it has 1 to {last}")
    if block == last:
        return tensor(features, "final").float()
    return tensor(features, "inputs", block - 1).float()


def write_accuracies(store: ImageStore, features: Path, out: Path) -> None:
    """Write a row per block of `class_tokens`: `block`, `top1` and `top5`."""
    labels = torch.from_numpy(store.labels)
    test = torch.tensor(store.test)

    # one block at a time, because all blocks may not fit into memory
    rows = []
    for block in range(1, depth(features) + 2):
        tokens = class_tokens(features, block)
        rows.append((block, *nearest_prototype(tokens, labels, test)))
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    write_table(out, pa.table(columns, schema=BLOCK_ACCURACY_SCHEMA))
