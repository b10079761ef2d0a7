"""What a run was made by: its sources and its backbone's weights, as its receipts record them.

A plugin may be edited, and weights replaced, while a run trains. Snakemake keeps what it compares
when a job ends, not what the job loaded at its start. So a job is told the digest of its sources
when it is planned, refuses to go on with others, and writes what it used into its receipt; the
digest is a parameter, so that the next start trains the run anew.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.common.errors import FedLoomError
from fedloom.common.io import canonical, read_json, write_text
from fedloom.common.receipts import digest, sha256
from fedloom.config.settings import Backbone
from fedloom.config.weights import local_weights
from fedloom.hooks import manifest
from fedloom.study import paths, staleness
from fedloom.study.jobs import RunSpec
from fedloom.study.runs import Run


def hashes(files: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of every source file, by its path."""
    return {file: sha256(Path(file)) for file in files}


def checked(what: str, files: Sequence[str], planned: str, then: str) -> dict[str, str]:
    """Return the `hashes` of source files, which must be those that the plan knew.

    Args:
        what: what is made by them, for the error.
        planned: digest of the hashes.
        then: what happens when the study is run again, for the error.

    Raises:
        FedLoomError: a file was edited since.
    """
    sources = hashes(files)
    if digest(sources) != planned:
        newest = max(sources, key=lambda file: Path(file).stat().st_mtime)
        raise FedLoomError(
            f"{what}: its sources were edited after it was planned (last: {newest}); run again, "
            f"and {then}"
        )
    return sources


def used(stage: str, spec: RunSpec, planned: str, loaded: Callable[[], str]) -> dict[str, Any]:
    """Return what a stage that has loaded its plugins and weights was made by, for its receipt.

    It must be called after they are loaded: what is on disk then is what the plan knew, so that
    what was loaded in between is the same. What they import inside functions is loaded here.

    Args:
        planned: digest of the sources' `hashes`, as the plan gave it.
        loaded: computes the digest of the weights that were loaded.

    Returns:
        `sources`: sha256 by file; `weights`: see `check_weights`.

    Raises:
        FedLoomError: sources or weights have changed since the job was planned.
    """
    names = [spec.method.plugin, *(wrapper.plugin for wrapper in spec.method.wrappers)]
    modules = staleness.run_modules(stage, spec.backbone.family)
    staleness.import_all(modules, map(manifest.find, names))
    files = staleness.run_sources(stage, spec.backbone.family, names)
    sources = checked(spec.run.path, files, planned, "the run is trained anew")
    weights = check_weights(spec.run.path, spec.backbone, loaded)
    return {"sources": sources, "weights": weights}


def check_weights(what: str, backbone: Backbone, loaded: Callable[[], str]) -> str | None:
    """Check that weights are those that the plan knew, or of a hub, those that were used before.

    A hub's have no digest of their own: the first job that loads them writes down theirs.

    Args:
        what: what is computed with them, for the error.
        loaded: computes the digest of the weights that were loaded.

    Returns:
        The sha256 of a local weights file, or of the loaded weights; None for untrained ones.

    Raises:
        FedLoomError: they have changed.
    """
    weights = local_weights(backbone)
    if weights is not None:
        if sha256(weights) != backbone.sha256:
            raise FedLoomError(
                f"{what}: {weights} was replaced after this was planned; run again, and it is "
                "computed anew"
            )
        return backbone.sha256
    if backbone.library == "torchvision":
        return None
    known, of = paths.at(paths.WEIGHTS, backbone=backbone.label), {"library": backbone.library}
    of |= {key: backbone.settings.get(key) for key in ("name", "weights", "image_size")}
    found = {"of": of, "sha256": loaded()}
    before = read_json(known) if known.exists() else {}
    if before.get("of") != of:
        write_text(known, canonical(found) + "\n")
    elif before != found:
        raise FedLoomError(
            f"{what}: the hub's weights of backbones.{backbone.label} are not those in {known}, of "
            "which earlier results are; delete that file and the results of this backbone, and run "
            "again"
        )
    return found["sha256"]


def check_same(run: Run, receipts: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that all jobs of a run were made by the same sources and weights.

    Args:
        receipts: facts of the jobs' receipts, by how an error names the job.

    Raises:
        FedLoomError: names the run, two of its jobs, and the file that they disagree on.
    """
    (first, facts), *others = receipts.items()
    for name, other in others:
        mine, theirs = (each.get("sources", {}) for each in (facts, other))
        changed = [f for f in sorted(mine.keys() | theirs.keys()) if mine.get(f) != theirs.get(f)]
        if facts.get("weights") != other.get("weights"):
            changed.append("weights of the backbone")
        if changed:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            folder = paths.at(paths.STATE, run, end=paths.end(0)).parent
            raise FedLoomError(
                f"{run.path}: {first} and {name} were trained with a different {changed[0]}{more}; "
                f"delete {folder} and run again"
            )


def check_job(file: Path, found: str, expected: str) -> None:
    """Check that a table of a job of training was written by the job that wrote its receipt.

    Two jobs of the same rounds may be at work at once, where no lock keeps them apart.

    Args:
        found: the fingerprint in the file: what the job's numbers depend on.
        expected: that in the receipt.

    Raises:
        FedLoomError: they differ.
    """
    if found != expected:
        raise FedLoomError(
            f"{file}: of another job than its receipt, which was trained by other code, settings "
            f"or data; delete {file.parent} and run again"
        )
