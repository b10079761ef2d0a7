"""Run the frozen backbone over a dataset once, and cache what it computes."""

from functools import partial

from fedloom.backbones import base, cache
from fedloom.common.device import AUTOCAST, prepare_torch
from fedloom.common.receipts import write_receipt
from fedloom.data.store import ImageStore
from fedloom.study import paths, provenance
from fedloom.study.jobs import CacheJob


def run(job: CacheJob, threads: int) -> None:
    images = ImageStore(paths.inputs("cache", dataset=job.dataset)["store"])
    label = job.backbone.label
    out = paths.at(paths.CACHE, cache=job.cache, dataset=job.dataset, backbone=label)
    device = prepare_torch(threads)
    precision = job.backbone.settings.get("cache_format", "float32")
    settings = job.backbone.settings | {"precision": precision}
    backbone = base.load(job.backbone.family, settings, device)
    loaded = partial(base.weights_digest, backbone)
    weights = provenance.digest_of_weights(str(out), job.backbone, loaded)
    cache.write(backbone, images, job.cache, out, AUTOCAST.get(precision))
    write_receipt(out, weights=weights)
