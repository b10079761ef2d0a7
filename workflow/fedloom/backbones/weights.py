"""Weights from files, as training scripts save them: below a prefix, with a head, in shards."""

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

# What training scripts put before a model's names: DataParallel, torch.compile, Lightning, MoCo's
# query encoder, DINO's teacher. Other parts of such a file (a student, a projector) are left out.
PREFIX = re.compile(
    r"(?:(?:module|_orig_mod|model|backbone|encoder|encoder_q|base_encoder|teacher)\.)+"
)
# beginnings of a classifier's names
HEADS = ("head.", "head_dist.", "fc.", "classifier.")
SHARD = re.compile(r"-\d+-of-(\d+)\.safetensors$")
# a tensor that every CLIP has
OF_CLIP = "logit_scale"


def checked_weights_file(
    name: str, path: str, suffixes: tuple[str, ...] = (".safetensors",)
) -> Path:
    """Return the file of a backbone's weights; refuse a shard, and one that could run code."""
    # a shard, or the index of several
    file = resource(path)
    shard = SHARD.search(file.name)
    if file.name.endswith(".safetensors.index.json") or (shard and int(shard[1]) > 1):
        raise FedLoomError(
            f"backbone {name}: weights '{file}' must be one file, got a part of several (shards); "
            "read them all with safetensors.torch.load_file, and save their tensors in one file "
            "with safetensors.torch.save_file"
        )

    # a pickle, or any other file
    if file.suffix not in suffixes:
        raise FedLoomError(
            f"backbone {name}: weights '{file}': only {' and '.join(suffixes)} are read (a pickle "
            "runs code when it is opened); convert it with safetensors.torch.save_file"
        )
    return file


def without_prefix(tensors: Mapping[str, Tensor], known: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors below the prefix behind which a file has most of a model's `known` names.

    Without a known prefix, these are all tensors.
    """
    # what a name begins with may hold several words, of which some may belong to the model's names
    prefixes = {""}
    for name in tensors:
        if found := PREFIX.match(name):
            words = found[0].split(".")[:-1]
            prefixes.update(".".join(words[:n]) + "." for n in range(1, len(words) + 1))

    def named(prefix: str) -> int:
        return sum(f"{prefix}{name}" in tensors for name in known)

    # of prefixes with equally many names, the shortest: no prefix at all, if they have none
    best = max(sorted(prefixes, key=len), key=named)
    return {k.removeprefix(best): v for k, v in tensors.items() if k.startswith(best)}


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], name: str, file: Path) -> None:
    """Give a model the tensors of a file, all of them but those of a classifier's head."""
    known = model.state_dict().keys()
    if "dist_token" in tensors and "dist_token" not in known:
        raise FedLoomError(
            f"backbone {name}: weights '{file}' have DeiT's distillation token, which this model "
            "lacks; name the model that has it, as deit_small_distilled_patch16_224, or take the "
            "weights that were trained without it"
        )

    # a backbone has no head, so a file's head is left out, unless the model has it after all
    wanted = {k: v for k, v in tensors.items() if k in known or not k.startswith(HEADS)}
    missing, unknown = model.load_state_dict(wanted, strict=False)
    if missing or unknown:
        raise FedLoomError(
            f"backbone {name}: weights '{file}' must be those of this model, got a file without "
            f"{_some(missing)} of its tensors, and with {_some(unknown)} that it does not have; "
            "name the model that they are of"
        )


def _some(names: Sequence[str]) -> str:
    """Return how many names there are, and the first."""
    if not names:
        return "0"
    return f"{len(names)} ('{names[0]}' ...)"


def check_finite(model: nn.Module, name: str, weights: str) -> None:
    """Refuse weights that hold NaN or infinity, before a study's training seems to diverge."""
    for key, value in model.state_dict().items():
        if value.is_floating_point() and not value.isfinite().all():
            raise FedLoomError(
                f"backbone {name}: weights '{weights}' must be finite, got NaN or infinity in "
                f"'{key}'; they are damaged: get them anew"
            )


@contextmanager
def plain_clip_file(path: Path) -> Iterator[Path]:
    """Yield a file of a CLIP's weights that open_clip reads: without a prefix, so maybe a copy."""
    # the prefix is what stands before the tensor that every CLIP has
    with safetensors.safe_open(path, "pt") as file:
        names = list(file.keys())
    found = [k.removesuffix(OF_CLIP) for k in names if re.fullmatch(PREFIX.pattern + OF_CLIP, k)]
    if OF_CLIP in names or not found:
        yield path
        return

    # a copy without it
    with TemporaryDirectory(prefix="fedloom-") as folder:
        copy = Path(folder) / path.name
        tensors = safetensors.torch.load_file(path)
        own = {k.removeprefix(found[0]): v for k, v in tensors.items() if k.startswith(found[0])}
        safetensors.torch.save_file(own, copy)
        yield copy
