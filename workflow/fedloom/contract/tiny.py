"""A task on which a round takes milliseconds: six clients, 120 noisy images, four classes."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from fedloom.backbones.vit import FrozenViT
from fedloom.common.files import write_table
from fedloom.config.settings import BackboneSettings
from fedloom.data import loading
from fedloom.data.partition import divide_dataset
from fedloom.data.store import Example, ImageStore, write_images
from fedloom.federated import training_job
from fedloom.federated.build_task import method_facts
from fedloom.federated.task import Task, TrainingOptions, WarmStart
from fedloom.hooks.manifest import MethodManifest
from fedloom.machine.extras import require_extra
from fedloom.planning.job_specs import MethodSpec, RunSpec, TrainJob
from fedloom.planning.run_labels import Run
from fedloom.toolbox.prototypes import warm_start

TINY_CLASSES = 4
TINY_CLIENTS = 6
TINY_SIDE = 16
# a width with which a row of floats does not fill whole 64-byte vector registers
ODD = 24
DIFFERENT = {
    "scheme": "pathological",
    "clients": TINY_CLIENTS,
    "classes_per_client": 2,
    "held_out": 0.2,
}
ALIKE = {"scheme": "iid", "clients": TINY_CLIENTS, "held_out": 0.2}


def tiny_vit(width: int = 16, depth: int = 12) -> FrozenViT:
    """Return a ViT with random weights.

    It has 12 blocks, because options of methods may name any of 12 blocks.
    """
    sizes: dict[str, Any] = {
        "img_size": TINY_SIDE,
        "patch_size": 8,
        "embed_dim": width,
        "depth": depth,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FrozenViT(VisionTransformer(**sizes, num_heads=2, mlp_ratio=1, num_classes=0))


def tiny_clip(width: int = 16):
    """Return a CLIP with random weights: two blocks for images, and one for texts."""
    # imported here, because the import takes seconds and no ViT method needs it
    require_extra("open_clip")
    import open_clip
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg

    from fedloom.backbones.clip.model import FrozenCLIP

    # a model of open_clip's own classes, with random weights
    vision = CLIPVisionCfg(
        layers=2, width=width, head_width=width // 2, patch_size=8, image_size=TINY_SIDE
    )
    text = CLIPTextCfg(width=width, heads=2, layers=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.CLIP(width, vision, text)

    # how images become pixels
    pixels = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bilinear", "size": TINY_SIDE}
    open_clip.set_model_preprocess_cfg(model, pixels)
    return FrozenCLIP(model, _tokenizer(), "tiny")


@cache
def tiny_backbone(family: str, width: int = 16) -> Any:
    """Return a tiny ViT or CLIP; all checks share the same one."""
    if family == "vit":
        return tiny_vit(width)
    return tiny_clip(width)


@cache
def _tokenizer():
    """Return CLIP's tokenizer. It is made once, because that takes a tenth of a second."""
    import open_clip

    return open_clip.SimpleTokenizer()


def _tiny_data(folder: Path, scheme: dict, seed: int) -> tuple[ImageStore, Path]:
    """Write 120 noisy images of four classes, divided over six clients; one of them is held out.

    Return the image store, and the file with the partition.
    """
    # all images of a class are the same image plus noise
    rng = np.random.default_rng(0)
    means = rng.uniform(0, 255, (TINY_CLASSES, TINY_SIDE, TINY_SIDE, 1))
    labels = np.repeat(np.arange(TINY_CLASSES), (15, 25, 35, 45))
    noisy = means[labels] + rng.normal(0, 40, (120, TINY_SIDE, TINY_SIDE, 1))
    images = np.clip(noisy, 0, 255).astype(np.uint8)

    # write the image store; two of five images are test images
    examples = [Example(images[i], int(labels[i]), i % 5 < 2, "noise") for i in range(120)]
    path = folder / "images.arrow"
    division = folder / "partition.parquet"
    write_images(path, examples, (TINY_SIDE, TINY_SIDE, 1), list("abcd"), "noise")

    # divide the images over clients
    store = ImageStore(path)
    write_table(
        division, divide_dataset(store.labels, store.test, store.domains, scheme, seed=seed)
    )
    return store, division


def tiny_task(
    method: MethodManifest,
    folder: Path,
    wrappers: tuple[MethodManifest, ...] = (),
    partition: dict = DIFFERENT,
    seed: int = 0,
    backbone: Any = None,
    **options: object,
) -> Task:
    """Return a task on which a round takes milliseconds; write its files into `folder`."""
    # make a new backbone, unless the caller gives one
    if not backbone and method.family == "vit":
        backbone = tiny_vit()
    elif not backbone:
        backbone = tiny_clip()

    # compute what the caches would hold for all images
    store, division = _tiny_data(folder, partition, seed)
    images = torch.from_numpy(store.images(np.arange(len(store))).copy())
    if method.family == "vit":
        tokens = backbone.class_tokens(images)  # [N, M + 1, d]
        patches = torch.empty(0)
    else:
        final, patches = backbone.image_features(images)
        tokens = final[:, None]

    def cached(block: int | None) -> Tensor:
        if block is None:
            return tokens[:, -1]
        return tokens[:, block - 1]

    # the clients' images; a method gets only the caches that it declares
    caches: loading.Caches = {}
    if "features" in method.needs:
        caches["tokens"] = cached
    if "patches" in method.needs:
        caches["patches"] = lambda: patches
    classes = ["alpha", "beta", "gamma", "long delta"]
    data = loading.load_partition(store, division, classes, torch.device("cpu"), **caches)

    # the warm start, from the training images of the first cohort
    prototypes = None
    if "prototypes" in method.needs:
        chosen = [torch.from_numpy(data.train[k]) for k in data.participating[:3]]
        prototypes = WarmStart(**warm_start(tokens[:, :-1], data.labels, chosen, TINY_CLASSES))

    training = method.merge_training({"epochs": 2, "batch_size": 4, "lr": 0.05})
    complete = method.complete_options(options)
    return Task(
        seed=0,
        options=SimpleNamespace(**complete),
        training=TrainingOptions(**training, schedule_rounds=4),
        backbone=backbone,
        data=data,
        clients_per_round=3,
        declared=method_facts(method, complete, wrappers),
        wrappers={w.name: SimpleNamespace(**w.complete_options({})) for w in wrappers},
        warm_start=prototypes,
    )


def tiny_job(method: MethodManifest, after: int = 0, last: int = 4) -> TrainJob:
    """Return a job of the tiny task, which trains the rounds after `after` up to `last`.

    It evaluates after rounds 2 and 4, and after its last round.
    """
    options = method.complete_options({})
    training = method.merge_training()
    spec = RunSpec(
        run=Run("tiny", "tiny", "tiny", method.name, 0),
        backbone=BackboneSettings("tiny", "timm", {}),
        method=MethodSpec(method.name, options, training, (), method.needs),
        clients_per_round=3,
        rounds_per_job=4,
        schedule_rounds=None,
    )

    # the rounds after which the job evaluates, ascending, without repetition
    evaluated_rounds = [number for number in (2, 4) if after < number < last]
    evaluated_rounds.append(last)
    return TrainJob(spec, after, last, tuple(evaluated_rounds), global_test=True, sources="")


def tiny_outputs(folder: Path, last: int = 4) -> training_job.Outputs:
    """Return the paths of the outputs of a tiny job."""
    names = ("state", "evaluation", "rounds", "confusion", "calibration", "clients")
    files = {name: folder / f"{last}.{name}" for name in names}
    return training_job.Outputs(**files, checkpoint=folder / "checkpoint.safetensors")
