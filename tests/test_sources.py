"""What all sources share: one module each, and what Snakemake compares."""

import json
import os
import subprocess
import sys
from pathlib import Path

from fedloom.common.checkout import ROOT
from fedloom.config.datasets import listing
from fedloom.data import sources
from fedloom.data.entries import SOURCES
from images_on_disk import dataset_spec, image_folder, noise, save, write_parquet


def test_every_module_is_a_source():
    known = {file.stem for file in Path(sources.__file__).parent.glob("[a-z]*.py")}
    assert set(SOURCES) == known


def _listing(root):
    return listing(dataset_spec(source="folder", root=str(root)))


def test_the_listing_changes_with_names_and_sizes_but_not_by_touch(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    known = _listing(root)
    assert known["files"] == 8
    os.utime(root / "ant" / "0.png", (1, 1))
    (root / ".DS_Store").write_text("x")
    assert _listing(root) == known
    (root / "ant" / "0.png").rename(root / "ant" / "9.png")
    renamed = _listing(root)
    assert renamed["files"] == 8
    (root / "ant" / "9.png").write_bytes(b"longer" * 1000)
    grown = _listing(root)
    assert len({x["sha256"] for x in (known, renamed, grown)}) == 3


def test_data_that_is_not_there_can_be_planned(tmp_path):
    assert _listing(tmp_path / "nowhere")["files"] == 0
    parquet = dataset_spec(source="parquet", train_files=f"{tmp_path}/*.parquet")
    assert listing(parquet)["files"] == 0
    write_parquet(tmp_path / "x.parquet", [0, 1])
    assert listing(parquet)["files"] == 1
    assert listing(dataset_spec(source="glyphs")) is None
    downloaded = dataset_spec(source="torchvision", name="M", root="x", download=True)
    assert listing(downloaded) is None


def test_snakemake_makes_the_store_again_for_other_files_and_not_for_touched_ones(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    text = f"datasets: {{mine: {{source: folder, root: {root}}}}}\nselect: {{datasets: [mine]}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    about = "results/datasets/mine/images.json"

    def snakemake(*options):
        command = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "--cores", "1"]
        command += ["--configfile", tmp_path / "mine.yaml", "--directory", tmp_path]
        command += ["--workflow-profile", "none", *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
        done = subprocess.run(
            [*command, "--", about], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout + done.stderr

    snakemake()
    facts = json.loads((tmp_path / about).read_text())
    assert facts["images"] == 8
    for file in root.rglob("*.png"):
        file.touch()
    assert "Nothing to be done" in snakemake("-n")
    save(root / "ant" / "new.png", noise(3))
    assert "Params have changed" in snakemake("-n")
    snakemake()
    assert json.loads((tmp_path / about).read_text())["images"] == 9
    assert "images: 9/9" in (tmp_path / "results/logs/dataset/mine/images.log").read_text()
