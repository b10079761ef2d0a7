"""Count what a method communicates, without weights, data or training."""

from types import SimpleNamespace
from typing import Any, cast

import torch

from fedloom.backbones.backbone import load_backbone
from fedloom.common.trees import count_floats
from fedloom.config.settings import LIBRARIES
from fedloom.federated.task import MethodFacts, Task, TrainingOptions, WarmStart
from fedloom.hooks import loader, manifest


def downlink_floats(method: str, backbone: str, classes: int, options: dict) -> dict[str, int]:
    """Count the floats that the server sends one client in one round, by the name of the tensor."""
    plugin = manifest.find_method(method, role="method")
    family = cast(str, plugin.family)

    # A ViT needs only its shapes, without numbers (device meta). A CLIP needs numbers, since its
    # texts are grouped by them.
    device = "cpu"
    if family == "vit":
        device = "meta"
    with torch.device(device):
        model: Any = load_backbone(LIBRARIES[family], {"name": backbone, "weights": "none"}, device)

    # the same holds for prototypes, which a ViT's methods may need
    warm_start = None
    if family == "vit":
        sizes = {"mean": (model.depth, classes, model.width), "spread": (model.depth, classes)}
        sizes["count"] = (classes,)
        warm_start = WarmStart(**{k: torch.empty(v, device="meta") for k, v in sizes.items()})

    # stands in for a Federation: it has all that hooks read of one before training
    shapes: Any = SimpleNamespace(
        num_classes=classes,
        num_clients=1,
        participating=[0],
        position={0: 0},
        classes=tuple(f"class {number}" for number in range(classes)),
        for_round=lambda number: shapes,
        arrived=None,
        device=torch.device(device),
    )

    task = Task(
        seed=0,
        options=SimpleNamespace(**plugin.complete_options(options)),
        training=TrainingOptions(**plugin.merge_training()),
        backbone=model,
        data=shapes,
        clients_per_round=1,
        declared=MethodFacts(method),
        warm_start=warm_start,
    )

    # count what the server would send a client before the first round
    hooks = loader.load_hooks(plugin)
    server = hooks.init_server(task=task)
    return count_floats(hooks.download(task=task, server=server, client=0))
