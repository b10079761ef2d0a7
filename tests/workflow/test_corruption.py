"""A flipped bit in a file that FedLoom wrote is refused in one line."""

import os
import random
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedloom.common import files, run_tables, temporary, tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import check_receipt, read_receipt, write_receipt
from fedloom.common.trees import leaves
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.hooks import manifest
from fedloom.machine.install import ROOT
from fedloom.planning.run_labels import Run
from fedloom.report import metrics, tidy
from shown_runs import filled

RUN = Run("digits", "iid", "micro_vit", "head_tuning", 0)


def flip(path, position, bit=0):
    """Flip one bit of a file's byte; negative positions count from the end."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def refused(path, read):
    """Check that what reads a file refuses it in one line that names it."""
    with pytest.raises(FedLoomError, match=f"{path.name}.*run again") as error:
        read()
    assert "\n" not in str(error.value)


@pytest.fixture
def tensors(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    tree = {
        "a": {"b": torch.randn(3, 2).bfloat16(), "n": 4},
        "c": torch.tensor([True, False]),
        "empty": torch.zeros(0, 2),
        "strided": torch.zeros(2, 3)[:, :1],
    }
    tensor_files.save(path, tree, rows=[{"loss": 0.25}])
    return path, tree


def test_what_was_written_is_read(tensors):
    path, tree = tensors
    again, facts = tensor_files.load(path)
    assert facts == {"rows": [{"loss": 0.25}]}
    found = dict(leaves(again))
    written = dict(leaves(tree))
    assert found.keys() == written.keys()
    for name, value in written.items():
        assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value))


def test_equal_trees_are_equal_files(tensors, tmp_path):
    path, tree = tensors
    tensor_files.save(tmp_path / "again", tree, rows=[{"loss": 0.25}])
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_tensors_are_refused(tensors, keep):
    path, _ = tensors
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, lambda: tensor_files.load(path))


@pytest.mark.parametrize("place", ["length", b"0.25", b"BF16", b"shape", "number"])
def test_a_flipped_bit_of_tensors_scalars_or_facts_is_refused(tensors, place):
    path, _ = tensors
    positions = {"length": 0, "number": -1}
    flip(path, positions[place] if place in positions else path.read_bytes().index(place))
    refused(path, lambda: tensor_files.load(path))


def test_the_checkpoint_of_a_run(tiny, tmp_path):
    task, hooks = tiny("head_tuning")
    outputs = tiny_outputs(tmp_path, 2)
    two = tiny_job(manifest.find_method("head_tuning"), last=2)
    training_job.train_rounds(task, hooks, two, None, outputs, "same")
    flip(outputs.checkpoint, -3)  # in a tensor's last number
    with pytest.raises(FedLoomError, match=r"checkpoint.safetensors: .*delete it"):
        training_job.train_rounds(task, hooks, two, None, outputs, "same")


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


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "x.parquet"
    rows = _rows()
    files.write_table(path, rows)
    found = files.read_table(path)
    assert found.equals(rows) and found.schema.equals(rows.schema, check_metadata=True)


@pytest.mark.parametrize("damage", ["bit", "cut", "missing"])
def test_a_damaged_table_is_refused(tmp_path, damage):
    path = tmp_path / "x.parquet"
    files.write_table(path, _rows())
    if damage == "bit":
        _flip_page(path)
        pq.read_table(path)  # other readers do not notice it
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(FedLoomError, match=r"x.parquet: ") as error:
        files.read_table(path)
    assert "\n" not in str(error.value)


def test_frames_keep_what_pandas_knows(tmp_path):
    frame = pd.DataFrame({"kind": pd.Categorical(["b", "a"], ["b", "a"]), "x": [1.5, None]})
    files.write_table(tmp_path / "x.parquet", pa.Table.from_pandas(frame, preserve_index=False))
    pd.testing.assert_frame_equal(metrics.frame(tmp_path / "x.parquet"), frame)


def _flip_page(path):
    """Flip one bit of the first column's numbers, which other readers would not notice."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    flip(path, column.data_page_offset + column.total_compressed_size - 1)


def _run_tables(folder):
    """Write small tables of a run and its partition, as jobs do; return their files."""
    rows = {
        "evaluation": {"client_id": [0, 1], "domain": ["ink", None], "backdoor_rate": [0.5, None]},
        "rounds": {"round": [1, 2], "train_loss": [2.0, 1.0]},
        "clients": {"client_id": [0, 3], "update_norm": [1.0, 2.0]},
    }
    for name, given in rows.items():
        part = folder / f"2.{name}.parquet"
        table = pa.Table.from_pandas(filled(given, name), preserve_index=False)
        files.write_table(part, table.replace_schema_metadata(None))
        metrics.join([part], folder / f"{name}.parquet", RUN, {"settings": "abc"})
    partition = {
        "index": pa.array([0, 1], pa.int64()),
        "client_id": pa.array([0, 0], pa.int32()),
        "label": pa.array([0, 1], pa.int32()),
        "test": [False, True],
        "participating": [True, True],
        "domain": ["", ""],
    }
    files.write_table(folder / "partition.parquet", pa.table(partition))
    return [*(folder / f"{name}.parquet" for name in rows), folder / "partition.parquet"]


def _content(path):
    """Return what the readers of a table see of it."""
    columns = run_tables.PARTITION_SCHEMA if path.stem == "partition" else metrics.columns_of(path)
    return files.read_table(path, columns), files.read_metadata(path)


def test_a_flipped_bit_in_a_table_is_refused_or_changes_nothing(tmp_path):
    """A bit flips at drawn positions, which might rename a column or end in a traceback."""
    draw = random.Random(0)
    for path in _run_tables(tmp_path):
        whole = path.read_bytes()
        (table, facts) = _content(path)
        for position in draw.sample(range(len(whole)), 400):
            flip(path, position, draw.randrange(8))
            try:
                found, said = _content(path)
            except FedLoomError as error:
                assert path.name in str(error) and "\n" not in str(error)
            else:
                assert found.equals(table), (path.name, position)
                assert found.schema == table.schema, (path.name, position)
                assert said == facts or said.keys() != facts.keys(), (path.name, position)
            path.write_bytes(whole)


def test_a_renamed_column_and_pages_of_another_column_are_refused(tmp_path):
    """A bit of a column's name flips, in each place of the footer that has the name."""
    (path, *_) = _run_tables(tmp_path)
    footer = pq.ParquetFile(path).metadata.serialized_size
    whole = path.read_bytes()
    start = len(whole) - 8 - footer
    assert whole.count(b"backdoor_rate", start) > 1, "it would be missing without a word"
    for found in re.finditer(b"backdoor_rate|num_correct|num_test", whole[start:]):
        flip(path, start + found.start())
        refused(path, lambda: metrics.frame(path))
        path.write_bytes(whole)


def test_a_table_of_another_reader_or_version_needs_no_digest(tmp_path):
    (path, *_) = _run_tables(tmp_path)
    table = files.read_table(path)
    pq.write_table(table, path)  # FedLoom did so before 1.1
    assert files.read_table(path).equals(table)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("change", ["missing", "renamed", "text", "twice"])
def test_a_table_without_its_columns_is_one_line(tmp_path, number, change):
    path = _run_tables(tmp_path)[number]
    table = files.read_table(path)
    name = ("num_correct", "train_loss", "received")[number]
    place = table.column_names.index(name)
    if change == "missing":
        table = table.remove_column(place)
    elif change == "renamed":
        table = table.rename_columns(
            [f"{each}s" if each == name else each for each in table.column_names]
        )
    elif change == "text":
        table = table.set_column(place, name, pa.array(["1"] * len(table)))
    else:
        table = table.append_column(name, table[name])
    files.write_table(path, table)
    with pytest.raises(FedLoomError, match=f"{path.name}: .*column '{name}'.*run again") as error:
        files.check_table(path, metrics.columns_of(path))
    assert "\n" not in str(error.value)
    with pytest.raises(FedLoomError, match=f"{path.name}: .*{name}.*run again"):
        metrics.frame(path)


def test_a_partition_a_choice_and_a_record_need_their_columns(tmp_path):
    path = tmp_path / "x.parquet"
    files.write_table(path, pa.table({"a": [1]}))
    for columns in (
        run_tables.PARTITION_SCHEMA,
        run_tables.CHOICE_SCHEMA,
        run_tables.TRIALS_SCHEMA,
        run_tables.RECORD_SCHEMA,
    ):
        with pytest.raises(FedLoomError, match=f"x.parquet: .*column '{columns.names[0]}'"):
            files.read_table(path, columns)


def test_numbers_of_any_width_and_texts_as_categories_are_the_same_columns(tmp_path):
    path = tmp_path / "x.parquet"
    wide = {"trial": pa.array(["a"]).dictionary_encode(), "options": pa.array(["{}"])}
    files.write_table(path, pa.table(wide))
    assert files.read_table(path, run_tables.CHOICE_SCHEMA).column_names == ["trial", "options"]


def test_duckdb_reads_no_damaged_table(tmp_path):
    (path, *_) = _run_tables(tmp_path)
    whole = path.read_bytes()
    flip(path, whole.rindex(b"num_correct"))
    with pytest.raises(FedLoomError, match=r"evaluation.parquet: .*run again"):
        tidy.relation(pd.DataFrame({"filename": [str(path)]}))


def test_a_jobs_rows_are_verified_when_they_are_joined(tmp_path):
    path = tmp_path / "1.rounds.parquet"
    files.write_table(path, _rows())
    _flip_page(path)
    with pytest.raises(FedLoomError, match=r"1.rounds.parquet: "):
        metrics.join([path, path], tmp_path / "joined.parquet", RUN, {})
    assert not (tmp_path / "joined.parquet").exists()


@pytest.fixture
def described(tmp_path):
    """Return a file with a receipt, and that receipt's file."""
    path = tmp_path / "images.arrow"
    path.write_bytes(b"pixels")
    write_receipt(path, classes=["cat", "dog"], images=2)
    return path, tmp_path / "images.json"


def test_a_flipped_bit_of_a_receipt_or_of_its_file_is_refused(described):
    """Another letter in the name of a class would make another prompt."""
    path, receipt = described
    flip(path, 0)
    refused(path, lambda: check_receipt(path))
    flip(receipt, receipt.read_bytes().index(b"cat"))
    refused(receipt, lambda: read_receipt(path))


@pytest.mark.parametrize("text", ["[]", "{", "", "\xff", '{"sha256":"","classes":[]}'])
def test_what_is_no_receipt_of_this_version_is_refused(described, text):
    path, receipt = described
    receipt.write_text(text, encoding="latin-1")
    refused(receipt, lambda: read_receipt(path))


KILLED = """
import os, sys
from pathlib import Path
from fedloom.common.files import atomic_write, temporary_folder
path = Path(sys.argv[1])
with temporary_folder(path) as folder, atomic_write(path) as temporary:
    (folder / "part").write_text("")
    temporary.write_text("half")
    print(temporary.name, folder.name, flush=True)
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
    return process, process.stdout.readline().split()


def test_what_a_killed_process_was_writing_is_swept_by_the_next_writer(tmp_path):
    """A file or a folder that another process is writing stays, however long ago it began."""
    process, left = _writer(tmp_path / "a.safetensors", "dies")
    process.wait()
    assert (tmp_path / left[0]).read_text() == "half"
    living, used = _writer(tmp_path / "b.safetensors", "lives")
    mine = tmp_path / ".mine.tmp"
    mine.write_text("a user's")
    for name in (*used, mine.name):
        os.utime(tmp_path / name, (0, 0))
    files.write_text(tmp_path / "d.json", "{}")
    assert {path.name for path in tmp_path.glob(".*")} == {*used, mine.name}
    living.communicate("")
    assert (tmp_path / "b.safetensors").read_text() == "half"
    assert not any((tmp_path / name).exists() for name in used)


def test_what_is_written_elsewhere_is_swept_a_day_after_its_last_write(tmp_path):
    """Nobody here knows whether a process of another machine lives."""
    name = f".a.arrow.0badcafe-{os.getpid()}-00000000{temporary.ENDING}"
    old = tmp_path / "old" / name
    used = tmp_path / "used" / name
    for folder in (old, used):
        folder.mkdir(parents=True)
        (folder / "part").write_text("half")
        os.utime(folder, (0, 0))
    assert not temporary.is_abandoned(old)
    os.utime(old / "part", (0, 0))
    for folder in (old, used):
        files.write_text(folder.parent / "d.json", "{}")
    assert (old.exists(), used.exists()) == (False, True)
