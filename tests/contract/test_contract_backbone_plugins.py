"""ViT methods on a backbone of a plugin: they keep the contract, and a study runs through."""

import os
import subprocess
import sys

import pandas as pd
import pytest
import torch
import yaml

from backbone_plugin_cases import write_backbone
from data_plugin_cases import dropping
from fedloom.backbones.backbone import load_backbone
from fedloom.contract import checks, tiny
from fedloom.hooks import manifest
from fedloom.machine.install import ROOT
from refusals import refused

pytestmark = pytest.mark.slow

SETTINGS = {"name": "tiny", "weights": "none", "image_size": tiny.TINY_SIDE}
# a head, prompts in each block, adapters, LoRA, all weights, and the class token of each block
METHODS = ["head_tuning", "fedvpt_deep", "fedavg_adapter", "fedlora", "singleset_full", "pep_fedpt"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_on_a_plugins_vit(name, tmp_path, monkeypatch):
    write_backbone(dropping(tmp_path, monkeypatch)())
    vit = load_backbone("own", SETTINGS | {"pool": "token", "registers": 1})
    for parameter in vit.model.parameters():
        parameter.data += 0.05 * torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(0)
        )
    monkeypatch.setattr(tiny, "tiny_backbone", lambda family, width=16: vit)
    checks.keeps_rules(manifest.find_method(name), tmp_path)
    checks.stacks(manifest.find_method(name), tmp_path)


def test_an_error_in_a_block_names_the_backbone_and_not_the_method(tmp_path, monkeypatch):
    """A block that takes no prompts fails in the first round of a method that has some."""
    plugin = write_backbone(
        dropping(tmp_path, monkeypatch)(),
        ("block_parts={", "block_parts={} and {"),
        ("x = self.before(tokens)", "x = self.before(tokens) + tokens.new_zeros(5, 1)"),
    )
    vit = load_backbone("own", SETTINGS | {"pool": "token", "registers": 0})
    monkeypatch.setattr(tiny, "tiny_backbone", lambda family, width=16: vit)
    with refused("own: client_update, round 1", f"{plugin.file}:", "RuntimeError"):
        checks.keeps_rules(manifest.find_method("fedvpt"), tmp_path)


def test_a_study_runs_on_a_plugins_vit_from_images_to_a_table(tmp_path, monkeypatch):
    """The plugin lies in the folder of a study; Snakemake and its jobs find it there."""
    write_backbone(dropping(tmp_path, monkeypatch)())
    study = {
        "study": {"name": "theirs", "rounds": 1, "seeds": [0], "clients_per_round": 2,
                  "evaluate_every": 1, "report": {"last_evaluations": 1},
                  "training": {"epochs": 1, "local_steps": 2}},
        "partitions": {"four": {"scheme": "iid", "clients": 4, "shots": 4}},
        "backbones": {"theirs": {"library": "own", "name": "tiny", "weights": "none"}},
        "tables": {"t": {"kind": "accuracy"}},
        "select": {"datasets": ["glyphs"], "partitions": ["four"], "figures": [],
                   "backbones": ["theirs"], "methods": ["head_tuning", "fedvpt"], "tables": ["t"]},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "fedloom", "run", "study.yaml", "--cores", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr
    for method in ("head_tuning", "fedvpt"):
        run = tmp_path / f"results/runs/glyphs/four/theirs/{method}/seed0"
        rows = pd.read_parquet(run / "evaluation.parquet")
        assert rows["num_test"].gt(0).all() and rows["loss"].between(0, 20).all()


def test_check_names_the_library(tmp_path, monkeypatch):
    write_backbone(dropping(tmp_path, monkeypatch)())
    command = [sys.executable, "-m", "fedloom", "check", "--backbone"]
    told = {}
    for name in ("own", "theirs"):
        done = subprocess.run(
            [*command, name], cwd=tmp_path, capture_output=True, text=True, env=_environment()
        )
        told[name] = done.returncode, done.stderr
    assert told["own"][0] == 0 and "own keeps the contract (11 checks on tiny" in told["own"][1]
    assert told["theirs"][0] == 2 and "'theirs'" in told["theirs"][1] and "own" in told["theirs"][1]


def _environment():
    """Return the environment of a command in a folder of its own, on this checkout."""
    return os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
