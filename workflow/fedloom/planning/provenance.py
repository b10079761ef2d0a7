"""Compare what the jobs of a run were made from: settings, data, sources and weights.

The receipts of the jobs record these as digests. On a cluster each job plans by itself, so two jobs
of one run may find different source files or weights. The results of such jobs are never mixed. The
metadata of a run's evaluation.parquet has the digests of MADE_BY.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.common.files import canonical, read_json, read_metadata, write_text
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import digest, read_receipt
from fedloom.config.settings import BackboneSettings, local_weights
from fedloom.planning import paths
from fedloom.planning.backbone_plugins import plugin_facts
from fedloom.planning.choices import with_choice
from fedloom.planning.job_specs import RunSpec
from fedloom.planning.run_labels import Run

# the facts of a state's receipt that are copied to evaluation.parquet
MADE_BY = ("settings", "data")


def digest_of_settings(spec: RunSpec) -> str:
    """Return the digest of a run's settings, including the options that were chosen for it."""
    return digest(asdict(with_choice(spec)))


def facts_of_job(run: Run, last: int) -> dict[str, str]:
    """Return the digests of MADE_BY for the job of a run that ended after round `last`."""
    facts = read_receipt(paths.path_for(paths.STATE, run, end=paths.four_digits(last)))
    return {key: facts[key] for key in MADE_BY}


def facts_of_run(run: Run, folder: Path = Path()) -> dict[str, str]:
    """Return the digests of MADE_BY for a run's evaluations; `folder` holds `results`."""
    metadata = read_metadata(folder / paths.path_for(paths.EVALUATION, run))
    return {key: metadata.get(key, "") for key in MADE_BY}


def digest_of_weights(
    result: str, backbone: BackboneSettings, compute_digest: Callable[[], str]
) -> str | None:
    """Return the sha256 of a backbone's weights; None if they are untrained.

    For a local file, it is the sha256 that planning computed. A hub states no digest: the first job
    that loads a hub's weights writes their digest to a file, and all later jobs compare theirs.

    Args:
        result: the result that a job makes, with which an error begins.
        backbone: the backbone.
        compute_digest: computes the digest of the weights that the job has loaded.

    Raises:
        FedLoomError: the weights of a hub differ from those of earlier jobs.
    """
    if local_weights(backbone) is not None:
        return backbone.sha256
    if backbone.settings["weights"] == "none":
        return None

    # what identifies the weights of a hub, and the digest that an earlier job wrote, if any
    of = {"library": backbone.library}
    of |= {key: backbone.settings.get(key) for key in ("name", "weights", "image_size")}
    of |= plugin_facts(backbone)
    now = {"of": of, "sha256": compute_digest()}
    record = paths.path_for(paths.WEIGHTS, backbone=backbone.label)
    before = JsonDict()
    if record.exists():
        before = read_json(record)

    # the label may have named another backbone before; then these are the first weights
    if before.get("of") != of:
        write_text(record, canonical(now) + "\n")
    elif before != now:
        # of the current folder, even if its results lie below another folder (`results_below`)
        file = paths.WEIGHTS.format(backbone=backbone.label)
        raise FedLoomError(
            f"{result}: the hub's weights of backbones.{backbone.label} are not those in {file}; "
            "delete that file and the results of this backbone, and run again"
        )
    return now["sha256"]


def check_same(run: Run, before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raise a FedLoomError if a job is not made from the same things as the job before it.

    `before` and `now` are the facts of the two jobs' receipts.
    """
    for key in now:
        if before.get(key) != now.get(key):
            folder = paths.path_for(paths.STATE, run, end=0).parent
            raise FedLoomError(
                f"{run.path}: the rounds before were trained with different {key}; delete "
                f"{folder} and run again"
            )
