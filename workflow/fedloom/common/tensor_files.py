"""State on disk: safetensors with one metadata key, as the order of several differs by process."""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.files import atomic_write, canonical
from fedloom.common.trees import Tree, aligned, build_tree, leaves

KEY = "fedloom"


def save(path: Path, tree: Tree, **facts: object) -> str:
    """Write the tree's tensors, and its scalars with `facts` as JSON; return the sha256 of all."""
    shared = dict[str, Tensor]()
    scalars = dict[str, Any]()
    for name, value in leaves(tree):
        if isinstance(value, Tensor):
            shared[name] = value
        else:
            scalars[name] = value
    tensors = _apart(shared)

    # the digest is of all numbers and facts, and stands beside the facts
    content = {"scalars": scalars, "facts": facts}
    digest = _digest(tensors, content)
    metadata = canonical(content | {"sha256": digest})
    with atomic_write(path) as temporary:
        safetensors.torch.save_file(tensors, temporary, {KEY: metadata})
    return digest


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, contiguous, no two in one memory, as safetensors demands."""
    result = dict[str, Tensor]()
    known = set[int]()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        memory = own.untyped_storage().data_ptr()
        if memory in known:
            own = own.clone()
        result[name] = own
        known.add(memory)
    return result


def _digest(tensors: dict[str, Tensor], content: dict[str, Any]) -> str:
    """Return the sha256 of contiguous tensors on the CPU, with names and types, and `content`."""
    # what says how the bytes are to be read
    names = sorted(tensors)
    header = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    result = hashlib.sha256(canonical([header, content]).encode())

    # the bytes, which a view of the tensor's memory has without a copy
    for name in names:
        flat = tensors[name].as_strided((tensors[name].numel(),), (1,))
        result.update(flat.view(torch.uint8).numpy().data)
    return result.hexdigest()


def tensor(path: Path, name: str, column: int | None = None) -> Tensor:
    """Return one tensor of a safetensors file, or column `column` of its second axis alone.

    It stays in the file, mapped into memory; the file's digest is not verified.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            if column is None:
                return file.get_tensor(name)
            return file.get_slice(name)[:, column : column + 1].squeeze(1)
    except (safetensors.SafetensorError, OSError) as error:
        raise FedLoomError(
            f"{path}: cannot read '{name}' ({error}); delete it and run again"
        ) from None


def load(
    path: Path, device: torch.device | str = "cpu", sha256: str | None = None
) -> tuple[Tree, dict[str, Any]]:
    """Return the tree and the facts of a file whose numbers match `sha256`, and that within it."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            content = json.loads(file.metadata()[KEY])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        written = content.pop("sha256")
        scalars = content["scalars"]
        facts = content["facts"]
    except FileNotFoundError:
        raise FedLoomError(f"{path}: no such checkpoint") from None
    except (safetensors.SafetensorError, TypeError, KeyError, ValueError, OSError) as error:
        raise FedLoomError(
            f"{path}: not a whole checkpoint ({one_line(error)}); delete it and run again"
        ) from None

    if _digest(tensors, content) != written or sha256 not in (None, written):
        raise FedLoomError(f"{path}: its numbers do not match its sha256; delete it and run again")

    # laid out as new tensors, so that kernels give the same bits as before the file was written
    moved = {key: aligned(value.to(device)) for key, value in tensors.items()}
    return build_tree([*moved.items(), *scalars.items()]), facts
