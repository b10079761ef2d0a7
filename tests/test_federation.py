"""Batches: rows that are on the device ahead of a step, and images that are read ahead."""

import numpy as np
import torch

from fedloom.common.ids import UNASSIGNED
from fedloom.data import federation
from fedloom.data.federation import Federation, _rows_of_clients, read_ahead
from fedloom.data.store import ImageStore
from fedloom.federated.round import initial_state, train_round


def _steps(task):
    """Rows of two clients in three steps, in the last of one alone."""
    first, second = task.data.train[0], task.data.train[1]
    return [[first[:4], second[:3]], [first[2:4], second[1:5]], [second[:2]]]


def test_batches_are_those_of_their_steps(tiny):
    task, _ = tiny("fedvpt")
    steps = _steps(task)
    for rows, batch in zip(steps, task.data.batches(steps), strict=True):
        alone = task.data.batch(rows)
        assert np.array_equal(batch.index, alone.index)
        assert batch.counts == alone.counts == tuple(map(len, rows))
        for name in ("rows", "mask", "labels", "images"):
            assert torch.equal(getattr(batch, name), getattr(alone, name)), name


def test_images_are_read_ahead_once_they_are_asked_for(tiny, monkeypatch):
    task, _ = tiny("fedvpt")
    monkeypatch.setattr(Federation, "streams", True)
    steps, read = _steps(task), []
    plain = task.data.store.images
    monkeypatch.setattr(task.data.store, "images", lambda index: read.append(index) or plain(index))
    for number, batch in enumerate(read_ahead(task.data.batches(steps))):
        assert ("images" in vars(batch)) == (number > 0)
        assert torch.equal(batch.images, torch.from_numpy(plain(batch.index)))
    assert len(read) == len(steps)


def test_images_that_nobody_asks_for_are_not_read(tiny, monkeypatch):
    task, _ = tiny("fedvpt")
    monkeypatch.setattr(Federation, "streams", True)
    monkeypatch.delattr(task.data.store.__class__, "images")
    assert len(list(read_ahead(task.data.batches(_steps(task))))) == 3


def test_rows_of_clients_leave_out_images_that_nobody_has():
    """As shots and validation have it."""
    client = np.array([1, UNASSIGNED, 0, 1, 2, UNASSIGNED, 1, 2])
    half = np.array([True, True, True, True, False, False, True, False])
    rows = _rows_of_clients(client, half)
    assert [row.tolist() for row in rows] == [[2], [0, 3, 6], []]


def test_all_images_go_to_a_gpu_once_whatever_the_clients(tiny, monkeypatch):
    """Centralised training gives every round's one client the images of all."""
    task, hooks = tiny("centralised")
    read, original = [], ImageStore.images
    monkeypatch.setattr(federation, "fits", lambda size, device: True)
    monkeypatch.setattr(
        ImageStore, "images", lambda s, rows: read.append(rows) or original(s, rows)
    )
    state = initial_state(task, hooks)
    for number in (1, 2, 3):
        state, _ = train_round(task.at(number), hooks, state)
    assert [rows.tolist() for rows in read] == [list(range(120))]
