"""Store states as safetensors files.

A file has only one key of metadata: the order of several keys would differ between processes.
"""

import hashlib
import json
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.files import atomic_write, canonical
from fedloom.common.json_types import JsonDict
from fedloom.common.trees import Tree, aligned, build_tree, leaves

KEY = "fedloom"


def save(path: Path, tree: Tree, **facts: object) -> str:
    """Write a tree and `facts` to a file, and return the sha256 of all of them.

    The file's metadata holds the plain scalars of the tree, and the facts, as JSON.
    """
    shared = dict[str, Tensor]()
    scalars = JsonDict()
    for name, value in leaves(tree):
        if isinstance(value, Tensor):
            shared[name] = value
        else:
            scalars[name] = value
    tensors = _apart(shared)

    # the digest covers all numbers and facts, and is stored beside the facts
    content = {"scalars": scalars, "facts": facts}
    digest = _digest(tensors, content)
    metadata = canonical(content | {"sha256": digest})
    with atomic_write(path) as temporary:
        safetensors.torch.save_file(tensors, temporary, {KEY: metadata})
    return digest


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as safetensors demands: on the CPU, contiguous, and sharing no memory."""
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


def _digest(tensors: dict[str, Tensor], content: JsonDict) -> str:
    """Return the sha256 of tensors, with their names, types and shapes, and of `content`.

    The tensors must be contiguous and on the CPU.
    """
    # names, types and shapes, which say how the bytes are to be read
    names = sorted(tensors)
    header = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    result = hashlib.sha256(canonical([header, content]).encode())

    # the bytes of each tensor, which a view of its memory gives without a copy
    for name in names:
        flat = tensors[name].as_strided((tensors[name].numel(),), (1,))
        result.update(flat.view(torch.uint8).numpy().data)
    return result.hexdigest()


def tensor(path: Path, name: str, column: int | None = None) -> Tensor:
    """Return one tensor of a safetensors file, or only position `column` of its second axis.

    The tensor stays in the file, which is mapped into memory; the file's digest is not verified.
    Raise a FedLoomError if the file cannot be read.
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
    path: Path,
    device: torch.device | str = "cpu",
    sha256: str | None = None,
    advice: str = "delete it and run again",
) -> tuple[Tree, JsonDict]:
    """Return the tree and the facts that `save` wrote to a file.

    Raises:
        FedLoomError: the file is missing or damaged, or its numbers do not match the sha256 in it
            (or `sha256`, if that is given). The error ends with `advice`.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            content = json.loads(file.metadata()[KEY])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        written = content.pop("sha256")
        scalars = content["scalars"]
        facts = content["facts"]
    except FileNotFoundError:
        raise FedLoomError(f"{path}: does not exist") from None
    except (safetensors.SafetensorError, TypeError, KeyError, ValueError, OSError) as error:
        raise FedLoomError(
            f"{path}: is damaged or incomplete ({one_line(error)}); {advice}"
        ) from None

    if _digest(tensors, content) != written or sha256 not in (None, written):
        raise FedLoomError(f"{path}: its numbers do not match its sha256; {advice}")

    # lay tensors out as torch does new ones: then kernels give the same bits as before `save`
    moved = {key: aligned(value.to(device)) for key, value in tensors.items()}
    return build_tree([*moved.items(), *scalars.items()]), facts
