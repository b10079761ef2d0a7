"""What all sources share: one module each, and what Snakemake compares."""

import os
from pathlib import Path
from types import SimpleNamespace

from fedloom.config.datasets import listing
from fedloom.config.kinds import KINDS
from fedloom.data import sources
from fedloom.planning.load_plan import load_plan
from images_on_disk import dataset_spec, image_folder, noise, save, write_parquet


def test_every_module_is_a_source():
    known = {file.stem for file in Path(sources.__file__).parent.glob("[a-z]*.py")}
    assert set(KINDS["datasets"]) == known - {"all_sources"}


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


def test_other_files_change_the_job_of_the_dataset_and_touched_ones_do_not(tmp_path, monkeypatch):
    """A job's fields are a parameter of its rule, so Snakemake runs a job again if they change."""
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    text = f"datasets: {{mine: {{source: folder, root: {root}}}}}\nselect: {{datasets: [mine]}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)

    def job():
        return load_plan([Path("mine.yaml")]).job("dataset", SimpleNamespace(dataset="mine"))

    before = job()
    for file in root.rglob("*.png"):
        file.touch()
    assert job() == before
    save(root / "ant" / "new.png", noise(3))
    assert job() != before
