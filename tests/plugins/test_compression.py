"""top_k and quantize: the upload, its cost and the server's step, by hand."""

import math

import numpy as np
import pytest
import torch

from fedloom.common.trees import leaves
from fedloom.contract.tiny import tiny_task
from fedloom.federated.round import download_to, initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.hooks import loader, manifest
from fedloom.toolbox import Update, stack
from first_round import module


@pytest.fixture
def run(tmp_path):
    """Return run(wrapper, **options): a task, FedVPT's hooks in a wrapper, and its plain hooks."""

    def make(wrapper, **options):
        method = manifest.find_method("fedvpt")
        around = manifest.find_method(wrapper)
        task = tiny_task(method, tmp_path, (around,))
        vars(task.wrappers[wrapper]).update(options)
        hooks = loader.load_hooks(method, wrappers=(around,))
        plain = loader.load_hooks(method)
        return task, hooks, plain

    return make


def uploads(task, hooks, state, ids, kept=None):
    """Return the updates that clients send in this round."""
    received = stack(download_to(task, hooks, state, ids)[1])
    clients = cohort(task, ids, [{}] * len(ids), wrapper_states=kept)
    return hooks.client_update(task=task, received=received, clients=clients)


def changes(task, plain, state, ids):
    """Return the change of every parameter [n] by training, in float64, by client and path."""
    before = dict(leaves(state.server["params"]))
    return [
        {
            path: (value - before[path]).double().numpy().ravel()
            for path, value in leaves(update.payload["params"])
        }
        for update in uploads(task, plain, state, ids)
    ]


# ---- top_k ----------------------------------------------------------------------------------


def test_top_k_sends_the_largest_entries_of_all_parameters_together(run):
    task, hooks, plain = run("top_k", share=0.1)
    state = initial_state(task, hooks)
    task = task.at(1)
    ids = [1, 2, 3]
    for sent, change in zip(
        uploads(task, hooks, state, ids), changes(task, plain, state, ids), strict=True
    ):
        whole = np.concatenate([change[path] for path in sorted(change)])
        count = math.ceil(0.1 * len(whole))
        assert sent.payload["params"] == {}
        got = []
        for path in sorted(change):
            entry = sent.payload["top_k"][path]
            assert entry["positions"].dtype == torch.int32
            values = change[path][entry["positions"].numpy()]
            np.testing.assert_allclose(entry["values"].double().numpy(), values, atol=1e-6)
            got += np.abs(values).tolist()
        assert len(got) == count
        np.testing.assert_allclose(sorted(got), np.sort(np.abs(whole))[-count:], atol=1e-5)


def test_top_k_costs_eight_bytes_an_entry(run):
    task, hooks, _ = run("top_k", share=0.1)
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    numbers = sum(value.numel() for _, value in leaves(state.server["params"]))
    assert row.bytes_up == 3 * 8 * math.ceil(0.1 * numbers)
    assert row.bytes_down == 3 * 4 * numbers


def test_top_k_remembers_what_it_did_not_send(run):
    """Algorithm 1 sends top_k(memory + change), and the new memory is memory + change - sent."""
    task, hooks, plain = run("top_k", share=0.2)
    state = initial_state(task, hooks)
    client = 2
    memory = 0.0
    kept = {}
    for number in (1, 2, 3):
        now = task.at(number)
        (change,) = changes(now, plain, state, [client])
        whole = np.concatenate([change[path] for path in sorted(change)])
        (update,) = uploads(now, hooks, state, [client], [kept])
        total = memory + whole
        order = np.argsort(-np.abs(total), kind="stable")[: math.ceil(0.2 * len(total))]
        sent = np.zeros_like(total)
        sent[order] = total[order]
        kept = update.wrapper_state
        memory = total - sent
        found = [value.double().numpy().ravel() for _, value in leaves(kept["top_k"])]
        np.testing.assert_allclose(np.concatenate(found), memory, atol=1e-5)
        values = [update.payload["top_k"][path]["values"] for path in sorted(change)]
        assert torch.cat(values).double().sum() == pytest.approx(sent.sum(), abs=1e-4)
    assert np.abs(memory).max() > 1e-3


def test_top_k_without_memory_keeps_nothing(run):
    task, hooks, _ = run("top_k", memory=False)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert state.wrappers == {}


@pytest.mark.parametrize(
    ("vector", "sent"),
    [
        ([0.5, -1.0, 1.0 + 1e-7, -0.5, 1.0 - 1e-7], [1, 2]),  # nearly equal magnitudes
        ([0.0, 0.0, 0.0], [0, 1]),
        ([1e-3, 1e9, 2e-3, 1.5e-3], [1, 2]),  # one entry is huge
    ],
)
def test_the_largest_entries_are_sent(vector, sent):
    assert (
        module("top_k").largest_entries(torch.tensor(vector), 2).nonzero().flatten().tolist()
        == sent
    )


def test_a_memory_of_other_shapes_is_dropped():
    change = {"a": torch.ones(2), "b": {"c": torch.ones(3)}}
    same = {"a": torch.full((2,), 7.0), "b": {"c": torch.full((3,), 7.0)}}
    assert module("top_k").usable_memory(same, change) is same
    fresh = module("top_k").usable_memory({"a": torch.ones(4)}, change)
    assert all(not value.any() for _, value in leaves(fresh))


# ---- quantize -------------------------------------------------------------------------------


def test_levels_are_next_to_the_entry_and_right_in_expectation():
    """Section 3.1: E[Q_s(v)] = v, and every draw is one of two neighbouring levels."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, 8, generator=generator)
    norm = row.norm(dim=1)
    s = 7
    draws = 4000
    found = torch.cat([module("quantize").levels(row, norm, s, generator) for _ in range(draws)])
    v = row[0].double().numpy()
    exact = s * np.abs(v) / np.linalg.norm(v)
    levels = np.abs(found.numpy())
    assert ((levels == np.floor(exact)) | (levels == np.floor(exact) + 1)).all()
    mean = found.double().mean(0).numpy() * np.linalg.norm(v) / s
    error = np.linalg.norm(v) / s * np.sqrt(0.25 / draws)
    np.testing.assert_allclose(mean, v, atol=5 * error)
    assert len(np.unique(levels[:, 0])) == 2, "else it rounds"


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 13])
def test_codes_are_packed_to_the_bit(bits):
    codes = torch.randint(2**bits, (37,), generator=torch.Generator().manual_seed(1))
    packed = module("quantize").pack(codes, bits)
    assert packed.dtype == torch.uint8 and len(packed) == math.ceil(37 * bits / 8)
    assert torch.equal(module("quantize").unpack(packed, bits, 37), codes)


def test_what_the_server_gets_lies_on_the_levels_of_the_bucket(run):
    task, hooks, plain = run("quantize", bits=3, bucket=10)
    state = initial_state(task, hooks)
    task = task.at(1)
    ids = [1, 2, 3]
    exact = changes(task, plain, state, ids)
    sent = uploads(task, hooks, state, ids)
    for client, update in zip(ids, sent, strict=True):
        update.client = client
        update.received = {"params": state.server["params"]}
    before = dict(leaves(state.server["params"]))
    for update, change in zip(
        hooks.receive(task=task, server=state.server, updates=sent), exact, strict=True
    ):
        for path, value in leaves(update.payload["params"]):
            found = (value - before[path]).double().numpy().ravel()
            for start in range(0, len(found), 10):
                bucket = change[path][start : start + 10]
                norm = np.linalg.norm(bucket)
                part = found[start : start + 10]
                level = part * 3 / norm  # s = 2^2 - 1
                np.testing.assert_allclose(level, np.round(level), atol=1e-3)
                assert (np.abs(part - bucket) <= norm / 3 + 1e-6).all()
                assert np.abs(level).max() > 0.5


def test_quantize_counts_bits_and_norms(run):
    task, hooks, _ = run("quantize", bits=3, bucket=10)
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    sizes = [value.numel() for _, value in leaves(state.server["params"])]
    expected = sum(math.ceil(n * 3 / 8) + 4 * math.ceil(n / 10) for n in sizes)
    assert row.bytes_up == 3 * expected


def test_clients_and_rounds_draw_by_themselves(run):
    """Two clients with the same change send different levels, and others in the next round."""
    task, _, _ = run("quantize", bits=2)
    received = {"params": {"head": torch.zeros(2, 50)}}
    clients = cohort(task, [1, 2], [{}] * 2)

    def levels(number):
        update = Update({"params": {"head": torch.linspace(-1, 1, 50)}}, {}, 1, {})
        packing = module("quantize").client_update(task.at(number), received, clients)
        next(packing)
        with pytest.raises(StopIteration) as end:
            packing.send([update, update])
        return [sent.payload["quantize"]["head"]["levels"] for sent in end.value.value]

    first = levels(1)
    again = levels(1)
    later = levels(2)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], later[0])


def test_a_bucket_of_zeros_stays_zero():
    generator = torch.Generator().manual_seed(0)
    sent = module("quantize").quantise(torch.zeros(5), 4, 3, generator)
    assert not module("quantize").dequantise(sent, torch.zeros(5), 4, 3).any()
