"""Run the frozen backbone over a dataset once, and cache what it computes."""

from functools import partial

from fedloom.backbones import cache
from fedloom.backbones.backbone import load_backbone, weights_digest
from fedloom.common.receipts import write_receipt
from fedloom.config.kind_plugins import plugins_of_type
from fedloom.data.store import ImageStore
from fedloom.hooks.plugin_code import run_plugin_code
from fedloom.machine.device import AUTOCAST, prepare_torch
from fedloom.planning import paths, provenance
from fedloom.planning.job_specs import CacheJob


def run_job(job: CacheJob, threads: int) -> None:
    """Write the features or patches of all images, with the digest of the backbone's weights."""
    images = ImageStore(paths.data_inputs("cache", dataset=job.dataset)["store"])
    label = job.backbone.label
    out = paths.path_for(paths.CACHE, cache=job.cache, dataset=job.dataset, backbone=label)

    # the backbone computes in the format in which its outputs are kept
    device = prepare_torch(threads)
    precision = job.backbone.settings.get("cache_format", "float32")
    settings = job.backbone.settings | {"precision": precision}
    backbone = load_backbone(job.backbone.library, settings, device)

    # before anything is computed, check that earlier jobs had the same weights
    loaded = partial(weights_digest, backbone)
    weights = provenance.digest_of_weights(str(out), job.backbone, loaded)

    # an exception of a plugin's backbone becomes one line
    write = partial(cache.write_cache, backbone, images, job.cache, out, AUTOCAST.get(precision))
    plugin = plugins_of_type("backbone").get(job.backbone.library)
    if plugin is None:
        write()
    else:
        run_plugin_code(write, [plugin], "cache")
    write_receipt(out, weights=weights)
