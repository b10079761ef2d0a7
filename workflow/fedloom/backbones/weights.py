"""Weights from files that training scripts have saved: under a prefix, with a head, in shards."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import safetensors
import safetensors.torch
from torch import Tensor, nn

from fedloom.common.errors import FedLoomError
from fedloom.machine.install import resource

# Prefixes that training scripts put before the names of a model's parameters: DataParallel,
# torch.compile, Lightning, MoCo's query encoder, DINO's teacher. Other parts of such a file (a
# student, a projector) are left out.
PREFIX = re.compile(
    r"(?:(?:module|_orig_mod|model|backbone|encoder|encoder_q|base_encoder|teacher)\.)+"
)
# parameters of a classifier have names that begin with one of these
HEADS = ("head.", "head_dist.", "fc.", "classifier.")
SHARD = re.compile(r"-\d+-of-(\d+)\.safetensors$")
# the name of a tensor that every CLIP has
OF_CLIP = "logit_scale"


def checked_weights_file(
    name: str, path: str, suffixes: tuple[str, ...] = (".safetensors",)
) -> Path:
    """Return the path of a backbone's weights.

    Raises:
        FedLoomError: the file is one of several (shards), or of a format that could run code.
    """
    # refuse a shard, and the index of several shards
    file = resource(path)
    shard = SHARD.search(file.name)
    if file.name.endswith(".safetensors.index.json") or (shard and int(shard[1]) > 1):
        raise FedLoomError(
            f"backbone {name}: weights '{file}' must be one file, got a part of several (shards); "
            "read them all with safetensors.torch.load_file, and save their tensors in one file "
            "with safetensors.torch.save_file"
        )

    # refuse a pickle, and files of any other format
    if file.suffix not in suffixes:
        raise FedLoomError(
            f"backbone {name}: weights '{file}': only {' and '.join(suffixes)} are read (a pickle "
            "runs code when it is opened); convert it with safetensors.torch.save_file"
        )
    return file


def without_prefix(tensors: Mapping[str, Tensor], known: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors of a file under a model's names, without the prefix that the file adds.

    The prefix is the one under which the file has most of the model's `known` names. If the names
    have no prefix, all tensors are returned.
    """
    # a match may hold several words, and its last words may belong to the model's own names
    prefixes = {""}
    for name in tensors:
        if found := PREFIX.match(name):
            words = found[0].split(".")[:-1]
            prefixes.update(".".join(words[:n]) + "." for n in range(1, len(words) + 1))

    def named(prefix: str) -> int:
        return sum(f"{prefix}{name}" in tensors for name in known)

    # if several prefixes have equally many names, take the shortest; none is the empty one
    best = max(sorted(prefixes, key=len), key=named)
    return {k.removeprefix(best): v for k, v in tensors.items() if k.startswith(best)}


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], name: str, file: Path) -> None:
    """Load the tensors of a file into a model. Tensors of a classifier's head are left out.

    Raises:
        FedLoomError: the file lacks a tensor of the model, or has one that the model lacks.
    """
    known = model.state_dict().keys()
    if "dist_token" in tensors and "dist_token" not in known:
        raise FedLoomError(
            f"backbone {name}: weights '{file}' have DeiT's distillation token, which this model "
            "lacks; name the model that has it, as deit_small_distilled_patch16_224, or take the "
            "weights that were trained without it"
        )

    # leave out a file's head, because backbones have none; but keep tensors that the model has
    wanted = {k: v for k, v in tensors.items() if k in known or not k.startswith(HEADS)}
    missing, unknown = model.load_state_dict(wanted, strict=False)
    if missing or unknown:
        raise FedLoomError(
            f"backbone {name}: weights '{file}' must be those of this model, got a file without "
            f"{_some(missing)} of its tensors, and with {_some(unknown)} that it does not have; "
            "name the model that they are of"
        )


def _some(names: Sequence[str]) -> str:
    """Return the number of names, and the first name."""
    if not names:
        return "0"
    return f"{len(names)} ('{names[0]}' ...)"


def check_finite(model: nn.Module, name: str, weights: str) -> None:
    """Check that the weights of a model hold neither NaN nor infinity.

    Otherwise the training of a study would seem to diverge.

    Raises:
        FedLoomError: they do hold some.
    """
    for key, value in model.state_dict().items():
        if value.is_floating_point() and not value.isfinite().all():
            raise FedLoomError(
                f"backbone {name}: weights '{weights}' must be finite, got NaN or infinity in "
                f"'{key}'; they are damaged: get them anew"
            )


@contextmanager
def plain_clip_file(path: Path) -> Iterator[Path]:
    """Yield a file of a CLIP's weights whose names have no prefix, so that open_clip can read it.

    If the file `path` has a prefix, a temporary copy is yielded.
    """
    # the prefix is what stands before the name of the tensor that every CLIP has
    with safetensors.safe_open(path, "pt") as file:
        names = list(file.keys())
    found = [k.removesuffix(OF_CLIP) for k in names if re.fullmatch(PREFIX.pattern + OF_CLIP, k)]
    if OF_CLIP in names or not found:
        yield path
        return

    # make a copy without the prefix
    with TemporaryDirectory(prefix="fedloom-") as folder:
        copy = Path(folder) / path.name
        tensors = safetensors.torch.load_file(path)
        own = {k.removeprefix(found[0]): v for k, v in tensors.items() if k.startswith(found[0])}
        safetensors.torch.save_file(own, copy)
        yield copy
