"""The sources and weights of a run, as its receipts record them.

On a cluster each job plans by itself, so two jobs of one run may be planned with different source
files (fedloom.study.staleness) or weights; such jobs are never mixed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fedloom.common.errors import FedLoomError
from fedloom.common.io import canonical, read_json, write_text
from fedloom.config.settings import Backbone, local_weights
from fedloom.study import paths
from fedloom.study.runs import Run


def digest_of_weights(what: str, backbone: Backbone, loaded: Callable[[], str]) -> str | None:
    """Return the sha256 of a local weights file as planned, or of a hub's loaded weights.

    A hub states no digest, so the first job that loads weights writes theirs to a file, and all
    others compare. Untrained weights have none.

    Args:
        what: name of the result that needs the weights, for the error.
        loaded: computes the digest of the weights that were loaded.
    """
    if local_weights(backbone) is not None:
        return backbone.sha256
    if backbone.library == "torchvision":
        return None
    record, of = paths.at(paths.WEIGHTS, backbone=backbone.label), {"library": backbone.library}
    of |= {key: backbone.settings.get(key) for key in ("name", "weights", "image_size")}
    now = {"of": of, "sha256": loaded()}
    before = read_json(record) if record.exists() else {}
    if before.get("of") != of:
        write_text(record, canonical(now) + "\n")
    elif before != now:
        raise FedLoomError(
            f"{what}: the hub's weights of backbones.{backbone.label} are not those in {record}, "
            "with which earlier results were made; delete that file and the results of this "
            "backbone, and run again"
        )
    return now["sha256"]


def check_same(run: Run, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a job's receipt has the sources and weights of the one of the job before it."""
    for key in ("sources", "weights"):
        if before.get(key) != now.get(key):
            folder = paths.at(paths.STATE, run, end=paths.end(0)).parent
            raise FedLoomError(
                f"{run.path}: the rounds before were trained with different {key}; delete {folder} "
                "and run again"
            )
