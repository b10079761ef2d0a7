"""One flipped bit, anywhere in a file of ours: refused in one line, or without consequence."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedloom.common import io, tensor_files
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import check_receipt, read_receipt, write_receipt
from fedloom.common.tensors import leaves
from fedloom.contract import tiny_job, tiny_outputs
from fedloom.data import federation
from fedloom.data.partition import write_partition
from fedloom.federated import training_job
from fedloom.hooks import manifest
from fedloom.report import metrics
from fedloom.study.runs import Run

RUN = Run("digits", "iid", "micro_vit", "head_tuning", 0)


def flips(path):
    """Write the file with every seventh bit flipped in turn, so in every byte one."""
    data = path.read_bytes()
    for position in range(0, 8 * len(data), 7):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        yield position
    path.write_bytes(data)


def read_or_refuse(read):
    """What `read` gives, or None where it says in one line that the file is damaged."""
    try:
        return read()
    except FedLoomError as error:
        assert "\n" not in str(error)
        assert "run again" in str(error)
        return None


def test_tensors_scalars_and_facts(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    tree = {
        "a": {"b": torch.randn(3, 2).bfloat16(), "n": 4},
        "c": torch.tensor([True, False]),
        "empty": torch.zeros(0, 2),
        "strided": torch.zeros(2, 3)[:, :1],
    }
    tensor_files.save(path, tree, rows=[{"loss": 0.25}])
    whole, facts = tensor_files.load(path)
    refused = 0
    for position in flips(path):
        found = read_or_refuse(lambda: tensor_files.load(path))
        refused += found is None
        if found is not None:
            again, known = dict(leaves(found[0])), dict(leaves(whole))
            assert found[1] == facts and again.keys() == known.keys(), position
            for name, value in known.items():
                same = torch.equal if isinstance(value, torch.Tensor) else int.__eq__
                assert same(again[name], value), (position, name)
    assert refused > len(path.read_bytes()) / 3
    assert dict(leaves(tensor_files.load(path)[0])).keys() == dict(leaves(tree)).keys()


def test_the_checkpoint_of_a_run(tiny, tmp_path):
    task, hooks = tiny("head_tuning")
    outputs, two = tiny_outputs(tmp_path, 2), tiny_job(manifest.find("head_tuning"), last=2)
    training_job.train(task, hooks, two, None, outputs, "same")
    checkpoint = outputs.checkpoint
    data = bytearray(checkpoint.read_bytes())
    data[-3] ^= 1  # of a tensor's last number
    checkpoint.write_bytes(data)
    line = (
        r"checkpoint.safetensors: damaged .* run again \(training then starts .* after round 0\)$"
    )
    with pytest.raises(FedLoomError, match=line):
        training_job.train(task, hooks, two, None, outputs, "same")


def _rows():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "round": pa.array([1, 2, 3] * 4, pa.int32()),
            "domain": ["ink", "oil", None] * 4,
            "participating": [True, False, True] * 4,
            "loss": rng.normal(size=12),
        }
    )


def test_tables(tmp_path):
    """Checksums cover pages; names, types and the number of rows lie outside of them."""
    path, rows = tmp_path / "x.parquet", _rows()
    io.write_table(path, rows)
    refused = 0
    for position in flips(path):
        found = read_or_refuse(lambda: io.read_table(path))
        refused += found is None
        if found is not None:
            assert found.schema.equals(rows.schema) and found.equals(rows), position
    assert refused > len(path.read_bytes()) / 3
    found = io.read_table(path)
    assert found.equals(rows) and found.schema.metadata is None


def test_frames_keep_what_pandas_knows(tmp_path):
    frame = pd.DataFrame({"kind": pd.Categorical(["b", "a"], ["b", "a"]), "x": [1.5, None]})
    io.write_table(tmp_path / "x.parquet", pa.Table.from_pandas(frame, preserve_index=False))
    pd.testing.assert_frame_equal(metrics.frame(tmp_path / "x.parquet"), frame)


def _flip_page(path):
    """Flip one bit of the first column's numbers, which other readers would not notice."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(data)


def _job(tmp_path, tiny):
    task, hooks = tiny("head_tuning")
    outputs = tiny_outputs(tmp_path, 1)
    training_job.train(
        task, hooks, tiny_job(manifest.find("head_tuning"), last=1), None, outputs, "same"
    )
    return outputs


@pytest.mark.parametrize("kind", ["evaluation", "rounds"])
def test_a_jobs_rows_are_verified_when_they_are_joined(tiny, tmp_path, kind):
    path = getattr(_job(tmp_path, tiny), kind)
    _flip_page(path)
    pq.read_table(path)  # goes unnoticed without verification
    with pytest.raises(FedLoomError, match=rf"1.{kind}: not a whole Parquet file .*run again$"):
        metrics.join([path, path], tmp_path / "joined.parquet", RUN)
    assert not (tmp_path / "joined.parquet").exists()


def test_joined_rows_are_verified_too(tiny, tmp_path):
    path = _job(tmp_path, tiny).evaluation
    metrics.join([path, path], tmp_path / "joined.parquet", RUN)
    _flip_page(tmp_path / "joined.parquet")
    with pytest.raises(FedLoomError, match=r"joined.parquet: not a whole Parquet file"):
        metrics.frame(tmp_path / "joined.parquet")


def test_a_partition_is_verified_when_a_run_starts(tiny, tmp_path):
    task, _ = tiny("head_tuning")
    path = tmp_path / "partition.parquet"
    write_partition(path, io.read_table(path))
    _flip_page(path)
    with pytest.raises(FedLoomError, match=r"partition.parquet: not a whole Parquet file"):
        federation.load(task.data.store, path, list("abcd"), torch.device("cpu"))


def test_a_table_that_lacks_a_column_or_is_not_there(tmp_path):
    io.write_table(tmp_path / "x.parquet", _rows())
    assert io.read_table(tmp_path / "x.parquet", ["loss", "round"]).column_names == [
        "loss",
        "round",
    ]
    with pytest.raises(FedLoomError, match=r"x.parquet: no column 'lost'; it has \['round'"):
        io.read_table(tmp_path / "x.parquet", ["lost"])
    with pytest.raises(FedLoomError, match=r"y.parquet: no such file"):
        io.read_table(tmp_path / "y.parquet")


def test_receipts(tmp_path):
    """A letter of a class name would be another prompt."""
    path = tmp_path / "images.arrow"
    path.write_bytes(b"pixels")
    write_receipt(path, classes=["cat", "dog"], images=2)
    whole = check_receipt(path)
    assert whole["classes"] == ["cat", "dog"]
    refused = 0
    for position in flips(tmp_path / "images.json"):
        found = read_or_refuse(lambda: read_receipt(path))
        refused += found is None
        assert found in (None, whole), position
    assert refused > len((tmp_path / "images.json").read_bytes())
    for _ in flips(path):
        assert read_or_refuse(lambda: check_receipt(path)) is None


@pytest.mark.parametrize("text", ["[]", "3", "{", "", "\xff"])
def test_a_receipt_that_is_none(tmp_path, text):
    (tmp_path / "x.json").write_text(text, encoding="latin-1")
    with pytest.raises(FedLoomError, match=r"x.json: (not a whole JSON file|changed)"):
        read_receipt(tmp_path / "x.bin")


KILLED = """
import os, sys
from pathlib import Path
from fedloom.common.io import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print(temporary, flush=True)
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), 9)
    sys.stdin.read()
"""


def _writer(path, what):
    command = [sys.executable, "-c", KILLED, str(path), what]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
    )
    return process, process.stdout.readline().strip()


def test_what_a_killed_process_was_writing_is_swept_at_the_next_start(tmp_path):
    """A file that a living process, or another machine's, is writing stays."""
    process, left = _writer(tmp_path / "a.safetensors", "dies")
    process.wait()
    assert Path(left).read_text() == "half"
    living, used = _writer(tmp_path / "b.safetensors", "lives")
    foreign = tmp_path / f".c.safetensors.otherhost.{process.pid}.tmp"
    foreign.write_text("half")
    mine = tmp_path / ".mine.tmp"
    mine.write_text("a user's")
    io.write_text(tmp_path / "d.json", "{}")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == sorted(
        [Path(used).name, foreign.name, mine.name]
    )
    living.communicate("")
    assert (tmp_path / "b.safetensors").read_text() == "half"
    assert not Path(used).exists()
