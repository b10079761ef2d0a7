"""A round of a large federation looks at the clients that take part in it, not at all of them."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fedloom.common import tensor_files
from fedloom.common.io import write_table
from fedloom.data import federation
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import Participation, State
from fedloom.federated.task import History


def test_a_clients_rows_are_those_that_the_partition_gives_it(tiny, tmp_path):
    """In ascending order, whatever the order of clients in the file."""
    store = tiny("head_tuning")[0].data.store
    client = np.random.default_rng(0).permutation(np.arange(len(store)) % 7)
    table = {"client_id": client.astype(np.int32), "label": 0 * store.labels, "test": store.test}
    table |= {"participating": client != 3, "domain": store.domains}
    write_table(tmp_path / "p.parquet", pa.table(table))
    data = federation.load(store, tmp_path / "p.parquet", list("abcd"), torch.device("cpu"))
    rows = pd.DataFrame(table).reset_index().groupby(["client_id", "test"])["index"].apply(list)
    for test, halves in ((False, data.train), (True, data.test)):
        assert [part.tolist() for part in halves] == [rows[k, test] for k in range(7)]
    assert data.participating == [0, 1, 2, 4, 5, 6]
    assert data.position == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4, 6: 5}


class _Untouched(dict):
    """The state or the history of a client, which nobody may look into."""

    def __iter__(self):
        raise AssertionError("a round copies the state of a client that does not take part")

    items = keys = values = __getitem__ = __iter__


def test_a_round_copies_the_states_of_its_clients_alone(tiny):
    task, hooks = tiny("pfedpg")
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    selected = {update["client_id"] for update in row["updates"]}
    absent = next(k for k in range(6, 1000) if k not in selected)
    before = State(state.server, state.clients | {absent: _Untouched()}, state.participation)
    after, row = train_round(task.at(1), hooks, before)
    assert after.clients[absent] is before.clients[absent]
    assert list(after.clients) == [*sorted(selected), absent]


def test_states_are_ordered_by_client_when_a_new_one_comes_in_between():
    """Sums over clients, as of a mean head, are made in this order."""
    one = {"h": torch.ones(1)}
    before = State(
        {}, {1: one, 7: one}, {1: Participation(1), 7: Participation(1)}, {7: {"w": one}}
    )
    after = before.after(State({"x": 1}, {7: {}, 3: one}, {3: Participation(2)}, {3: {"w": one}}))
    assert list(after.clients) == [1, 3, 7] and after.clients[7] == {}
    assert list(after.participation) == [1, 3, 7] and list(after.wrappers) == [3, 7]
    assert after.clients[1] is one and after.server == {"x": 1}
    assert list(before.clients) == [1, 7], "the state before is as it was"


def test_the_history_is_made_of_what_is_asked_for(tiny):
    data = tiny("head_tuning")[0].data
    known = {2: Participation(3, 5, 0.5), 4: Participation(1, 2, None)}
    history = History(data, known)
    assert history.rounds == {1: 0, 2: 3, 3: 0, 4: 1, 5: 0}
    assert history.last_round == {2: 5, 4: 2} and history.train_loss == {2: 0.5}
    assert history.num_examples == {k: len(data.train[k]) for k in (1, 2, 3, 4, 5)}
    assert vars(History(data, known)).keys().isdisjoint(("num_examples", "rounds", "last_round"))


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
