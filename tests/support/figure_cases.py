"""Series and tables of which figures are drawn."""

import io
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from PIL import Image

from default_config import default_config
from fedloom.config.settings import GridMember, ReportedRounds
from fedloom.data import store
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.report.plotted_runs import PlottedBackbone
from shown_runs import filled, shown

ENTRIES = {
    "convergence": {},
    "answers": {},
    "block_accuracy": {},
    "soft_weights": {"classes": [0, 2]},
    "prompt_tsne": {},
    "token_tsne": {"blocks": [1, 3]},
    "group_counts": {},
    "prompt_path": {},
    "grid": {},
    "boxes": {},
    "two_metrics": {"x": "participating_mean"},
    "accuracy_bars": {},
    "option_line": {"metrics": ["participating_mean", "participating_worst"]},
    "congruence": {"option": "lengths.0"},
    "scatter3d": {},
    "client_groups": {},
    "reliability": {},
    "confusion": {},
    "backbone_tsne": {"blocks": [1, 4]},
    "seed_points": {},
    "shots": {"shots": {"p": 4}},
    "lines": {"artefact": "pool_size", "x": "round", "y": "size"},
    "scatter": {"artefact": "pool_size", "x": "round", "y": "size", "log": True, "colour": "size"},
    "bars": {"artefact": "pool_size", "x": "round", "y": "size"},
}


CLASSES = list("vwxyz")


MEMBER = GridMember("g", 0, {"lengths.0": 4, "lengths.1": 8}, {"lengths": [4, 8]}, "G")


def artefact_table(path, columns):
    pd.DataFrame(columns).to_parquet(path)
    return path


def answers_table(size=(1, 1), **columns):
    """Return answers on black images of a size."""
    file = io.BytesIO()
    Image.new("L", size).save(file, "PNG")
    return filled(columns | {"picture": file.getvalue()}, "answers")


def series_of_kinds(tmp_path):
    """Return a run's files of every kind: 5 classes, 2 blocks and the output, 20 images."""
    draw = np.random.default_rng(0)

    def vectors(count):
        return list(draw.normal(size=(count, 6)).astype(np.float32))

    files = {
        "evaluation": {
            "round": [1, 2],
            "client_id": 0,
            "domain": "x",
            "participating": True,
            "personalized": False,
            "num_test": 10,
            "num_correct": [2, 5],
            "loss": 0.0,
        },
        "rounds": filled({"round": [1, 2], "train_loss": [2.0, 1.0]}, "rounds"),
        "accuracy": {"block": [1, 2, 3], "top1": [10.0, 20, 30], "top5": [50.0, 60, 70]},
        "soft_weights": {
            "block": np.repeat([1, 2], 25),
            "label": np.tile(np.repeat(range(5), 5), 2),
            "class": np.tile(range(5), 10),
            "weight": 0.2,
        },
        "confusion": filled(
            {"round": 2, "label": [0, 0], "predicted": [0, 1], "count": 5}, "confusion"
        ),
        "calibration": filled(
            {"round": 2, "bin": [7, 14], "count": 5, "correct": [1, 4], "confidence": [2.4, 4.8]},
            "calibration",
        ),
        "answers": answers_table(label=[0, 1], predicted=[0, 2], probability=[0.9, 0.4]),
        "prompt_tsne": {"class": range(5), "vector": vectors(5)},
        "token_tsne": {
            "block": np.repeat([1, 2, 3], 20),
            "label": np.tile(range(5), 12),
            "domain": ["x", "y"] * 30,
            "vector": vectors(60),
        },
        "group_counts": {
            "client": [0, 0, 3, 3, 3, 3],
            "round": [1, 1, 1, 1, 2, 2],
            "group": [0, 1] * 3,
            "count": [8, 0, 2, 2, 1, 3],
        },
        "congruence": {
            "class": ["a", "b"] * 4,
            "test": [False] * 6 + [True] * 2,
            "group": [0, 1] * 4,
            "cluster": [1, 0] * 4,
        },
        "pool_size": {"round": [0, 1, 2], "size": [3, 5, 4]},
        "prompt_path": {"round": np.repeat([0, 1, 2], [3, 5, 4]), "vector": vectors(12)},
    }
    paths = {
        name: artefact_table(tmp_path / f"{name}.parquet", columns)
        for name, columns in files.items()
    }
    images = tmp_path / "images.arrow"
    examples = [store.Example(np.zeros((1, 1, 1), np.uint8), n % 5, n > 4, "x") for n in range(15)]
    store.write_images(images, examples, (1, 1, 1), CLASSES, "made by a test")
    runs = shown(
        member=MEMBER,
        reported=ReportedRounds((2,)),
        evaluation=paths["evaluation"],
        rounds=paths["rounds"],
        confusion=paths["confusion"],
        calibration=paths["calibration"],
        store=images,
    )
    items = {
        kind: [replace(runs, artefact=paths.get(entry.get("artefact", kind)))]
        for kind, entry in ENTRIES.items()
    }
    (counted,) = items["group_counts"]
    items["client_groups"] = [counted]
    at = {"lengths.0": 4, "lengths.1": 8, "lengths.2": 4}
    third = replace(MEMBER, at=at, options={"lengths": [4, 8, 4]})
    items["scatter3d"] = [replace(run, member=third) for run in items["scatter3d"]]
    tokens = torch.from_numpy(draw.normal(size=(15, 4, 6)).astype(np.float32))
    features = tmp_path / "features.safetensors"
    parts = {"inputs": tokens[:, :3].contiguous(), "final": tokens[:, 3].contiguous()}
    safetensors.torch.save_file(parts, features)
    backbone = PlottedBackbone("d", "b", paths["accuracy"], features, images)
    return items | {"block_accuracy": [backbone], "backbone_tsne": [backbone]}


def plan_of(**select):
    changed = deepcopy(default_config())
    return resolved_with(changed, select)


def resolved_with(config, select):
    config["study"]["seeds"] = [0, 1]
    config["select"] |= {"datasets": ["digits"], "partitions": ["pathological"], **select}
    return Plan(resolve(config))


def label_of(name):
    return SimpleNamespace(label=name)
