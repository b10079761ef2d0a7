"""Batches: rows that are on the device ahead of a step, and images that are read ahead."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fedloom.common import tensor_files
from fedloom.common.files import write_table
from fedloom.data import federation, loading
from fedloom.data.batch import Batch, read_ahead
from fedloom.data.store import ImageStore
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import Participation, State
from pretended_gpu import CUDA, pretended_gpu


def _steps(task):
    """Return the rows of two clients in three steps; the last step has rows of one client alone."""
    first = task.data.train[0]
    second = task.data.train[1]
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
    monkeypatch.setattr(Batch, "is_read_ahead", True)
    steps = _steps(task)
    read = []
    plain = task.data.store.images
    monkeypatch.setattr(task.data.store, "images", lambda index: read.append(index) or plain(index))
    for number, batch in enumerate(read_ahead(task.data.batches(steps))):
        assert batch.has_images == (number > 0)
        assert torch.equal(batch.images, torch.from_numpy(plain(batch.index)))
    assert len(read) == len(steps)


def test_images_that_nobody_asks_for_are_not_read(tiny, monkeypatch):
    task, _ = tiny("fedvpt")
    monkeypatch.setattr(Batch, "is_read_ahead", True)
    monkeypatch.delattr(task.data.store.__class__, "images")
    assert len(list(read_ahead(task.data.batches(_steps(task))))) == 3


# ---- a round of a large federation looks at its clients alone -----------------------------------


def test_a_clients_rows_are_those_that_the_partition_gives_it(tiny, tmp_path):
    """A client's rows are in ascending order, whatever the order of clients in the file."""
    store = tiny("head_tuning")[0].data.store
    client = np.random.default_rng(0).permutation(np.arange(len(store)) % 7)
    table = {"client_id": client.astype(np.int32), "label": 0 * store.labels, "test": store.test}
    table |= {"participating": client != 3, "domain": store.domains}
    table |= {"index": np.arange(len(store))}
    write_table(tmp_path / "p.parquet", pa.table(table))
    data = loading.load_partition(store, tmp_path / "p.parquet", list("abcd"), torch.device("cpu"))
    rows = pd.DataFrame(table).groupby(["client_id", "test"])["index"].apply(list)
    for test, halves in ((False, data.train), (True, data.test)):
        assert [part.tolist() for part in halves] == [rows[k, test] for k in range(7)]
    assert data.participating == [0, 1, 2, 4, 5, 6]
    assert data.position == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4, 6: 5}


class _Untouched(dict):
    """A client's state or history, which raises an error if a round reads it."""

    def __iter__(self):
        raise AssertionError("a round copies the state of a client that does not take part")

    items = keys = values = __getitem__ = __iter__


def test_a_round_copies_the_states_of_its_clients_alone(tiny):
    task, hooks = tiny("pfedpg")
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    selected = {update.client_id for update in row.updates}
    absent = next(k for k in range(6, 1000) if k not in selected)
    before = State(state.server, state.clients | {absent: _Untouched()}, state.participation)
    after, row = train_round(task.at(1), hooks, before)
    assert after.clients[absent] is before.clients[absent]
    assert list(after.clients) == [*sorted(selected), absent]


def test_states_are_ordered_by_client_when_a_new_one_comes_in_between():
    """Sums over clients, such as the sum of a mean head, follow this order."""
    one = {"h": torch.ones(1)}
    before = State(
        {}, {1: one, 7: one}, {1: Participation(1), 7: Participation(1)}, {7: {"w": one}}
    )
    after = before.after(State({"x": 1}, {7: {}, 3: one}, {3: Participation(2)}, {3: {"w": one}}))
    assert list(after.clients) == [1, 3, 7] and after.clients[7] == {}
    assert list(after.participation) == [1, 3, 7] and list(after.wrappers) == [3, 7]
    assert after.clients[1] is one and after.server == {"x": 1}
    assert list(before.clients) == [1, 7], "the state before is as it was"


@pytest.mark.parametrize("parts", ["row", "column", "same", "expanded"])
def test_tensors_that_share_memory_are_saved_as_if_they_did_not(tmp_path, parts):
    whole = torch.arange(12.0).view(3, 4)
    other = {
        "row": whole[1],
        "column": whole[:, 2:],
        "same": whole,
        "expanded": whole[:1].expand(2, 4),
    }
    tree = {"a": other[parts], "b": whole}
    tensor_files.save(tmp_path / "x", tree)
    found = tensor_files.load(tmp_path / "x")[0]
    assert torch.equal(found["a"], other[parts]) and torch.equal(found["b"], whole)


def test_all_images_go_to_a_gpu_once_whatever_the_clients(tiny, monkeypatch):
    """In centralised training, the one client of every round has the images of all clients."""
    task, hooks = tiny("centralised")
    read = []
    original = ImageStore.images
    monkeypatch.setattr(federation, "fits_on_gpu", lambda size, device: True)
    monkeypatch.setattr(
        ImageStore, "images", lambda s, rows: read.append(rows) or original(s, rows)
    )
    state = initial_state(task, hooks)
    for number in (1, 2, 3):
        state, _ = train_round(task.at(number), hooks, state)
    assert [rows.tolist() for rows in read] == [list(range(120))]


# ---- images that nobody has are not kept --------------------------------------------------------


def _goes(store):
    """Return True if nothing keeps a store once its caller has let go of it."""
    gc.collect()
    return store() is None


def _store_of_its_own(task):
    """Return the task's store, opened once more, so that no other test holds it."""
    return ImageStore(task.data.store._path)


@pytest.mark.parametrize("device", [torch.device("cpu"), CUDA], ids=str)
def test_a_copy_on_a_gpu_goes_with_its_images(tiny, device):
    data = replace(tiny("fedvpt")[0].data, store=_store_of_its_own(tiny("fedvpt")[0]))
    with pretended_gpu():
        data.device = device
        copy = data.resident
        assert (copy is None) == (device.type == "cpu")
        assert replace(data).resident is copy
        store = weakref.ref(data.store)
        kept = weakref.ref(copy) if copy is not None else lambda: None
        del data, copy
    assert _goes(store) and kept() is None


def test_a_gpu_holds_the_images_of_one_store_at_a_time(tiny):
    data = tiny("fedvpt")[0].data
    first, second = (
        replace(data, device=CUDA, store=_store_of_its_own(tiny("fedvpt")[0])) for _ in "ab"
    )
    with pretended_gpu():
        kept = weakref.ref(first.resident)
        assert second.resident is not None
        gc.collect()
        assert kept() is None


def test_the_parts_of_a_stream_go_with_its_data(tiny):
    """A round's data hold the data of all rounds, and these the images."""
    stream = {"scheme": "iid", "clients": 6, "held_out": 0.2}
    stream |= {"arrivals": {"of": "classes", "at": [3], "keep": False}}
    task, _ = tiny("fedvpt", partition=stream)
    data = replace(task.data, store=_store_of_its_own(task))
    assert data.for_round(1) is data.for_round(2) is not data.for_round(3)
    assert data.for_round(3).for_round(1) is data.for_round(1)
    store = weakref.ref(data.store)
    del data
    assert _goes(store)
