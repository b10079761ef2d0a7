"""Every file that FedLoom writes has the permissions that the umask gives."""

import os
import stat

import pyarrow as pa
import pytest
import torch

from fedloom.common import files, tensor_files
from pretraining import loop

WRITERS = {
    "state": lambda path: tensor_files.save(path, {"x": torch.zeros(2)}, round=1),
    "weights": lambda path: loop.write(path, {"x": torch.zeros(2)}, {}),
    "table": lambda path: files.write_table(path, pa.table({"x": [1]})),
    "text": lambda path: files.write_text(path, "x"),
}


@pytest.fixture(params=[0o022, 0o002, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("kind", WRITERS)
def test_permissions_follow_the_umask(kind, umask, tmp_path):
    path = tmp_path / "file"
    for _ in range(2):  # new, and in place of an older file
        WRITERS[kind](path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
