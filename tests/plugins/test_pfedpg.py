"""pFedPG against its equations, and against what a port of it can get wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer

from changed_task import with_training
from fedloom.backbones.vit import FrozenViT
from fedloom.cli.inspect.downlink import downlink_floats
from fedloom.common.trees import build_tree, leaves, tensor_map
from fedloom.config.reading import read
from fedloom.federated.cohorts import evaluation_cohorts
from fedloom.federated.groups import iterate_examples
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.state import PersonalStates
from fedloom.federated.task import cohort
from fedloom.machine.install import ROOT
from fedloom.toolbox import SERVER_MODEL, Update
from first_round import first_cohort, module

generators = module("pfedpg", "generators")

CLIENTS = 3
PROMPTS = 4
WIDTH = 8
HIDDEN = 5


def random_phi(seed=0):
    """Return float64 arrays with the parameters of every generator."""
    rng = np.random.default_rng(seed)
    shapes = {
        "query": (WIDTH, HIDDEN),
        "key": (WIDTH, HIDDEN),
        "value": (WIDTH, HIDDEN),
        "output": (HIDDEN, WIDTH),
        "hidden": (WIDTH, HIDDEN),
        "bias": (HIDDEN,),
        "tokens": (HIDDEN, PROMPTS, WIDTH),
    }
    phi = {"basis": rng.normal(size=(PROMPTS, WIDTH))}
    phi["descriptors"] = rng.normal(size=(CLIENTS, WIDTH))
    return phi | {"generator": {name: rng.normal(size=shape) for name, shape in shapes.items()}}


def generated(name, phi):
    """Return the prompts that the plugin generates, as float64 NumPy."""
    as_tensors = build_tree((path, torch.from_numpy(value)) for path, value in leaves(phi))
    return generators.GENERATORS[name](as_tensors, as_tensors["descriptors"]).numpy()


def test_attention_is_equation_3():
    phi = random_phi()
    w = phi["generator"]
    base = phi["basis"]
    for n, prompts in enumerate(generated("attention", phi)):
        query = phi["descriptors"][n] @ w["query"]
        scores = np.array([query @ (token @ w["key"]) for token in base]) / np.sqrt(HIDDEN)
        weights = np.exp(scores) / np.exp(scores).sum()
        actual = sum(a * (token @ w["value"]) for a, token in zip(weights, base, strict=True))
        for token, expected in zip(prompts, base, strict=True):
            np.testing.assert_allclose(token, expected + actual @ w["output"], rtol=1e-12)


def test_the_other_generators():
    phi = random_phi()
    w = phi["generator"]
    base = phi["basis"]
    descriptors = phi["descriptors"]
    for d, prompts in zip(descriptors, generated("mlp", phi), strict=True):
        hidden = np.maximum(d @ w["hidden"] + w["bias"], 0)
        for p in range(PROMPTS):
            np.testing.assert_allclose(prompts[p], hidden @ w["tokens"][:, p], rtol=1e-12)
    for d, prompts in zip(descriptors, generated("adain", phi), strict=True):
        for token, before in zip(prompts, base, strict=True):
            normed = (before - before.mean()) / np.sqrt(before.var() + 1e-5)
            np.testing.assert_allclose(token, d.std() * normed + d.mean(), rtol=1e-9)
    for prompts in generated("basis", phi):
        np.testing.assert_array_equal(prompts, base)


def sent(task, hooks, server, ids):
    """Return the prompts P_n [K, P, d] that these clients receive."""
    trees = [hooks.download(task=task, server=server, client=k) for k in ids]
    assert all(list(dict(leaves(tree))) == ["params/prompts"] for tree in trees)
    return torch.stack([tree["params"]["prompts"] for tree in trees])


def uploaded(ids, deltas):
    return [Update({"delta": d}, {}, 1, {}, client=k) for k, d in zip(ids, deltas, strict=True)]


@pytest.mark.parametrize("generator", generators.GENERATORS)
def test_a_server_step_is_the_vector_jacobian_product(tiny, generator):
    """The step equals central differences in float64; who sent nothing keeps its descriptor.

    The step brings every P_n closer to its P~_n; Eq. 5 as printed has the other sign.
    """
    sizes = {"key_dim": 3, "hidden_dim": 3}
    task, hooks = tiny("pfedpg", generator=generator, prompts=2, **sizes, server_lr=0.1)
    server = tensor_map(torch.Tensor.double, hooks.init_server(task=task))
    ids = task.data.participating[:2]
    rng = torch.Generator().manual_seed(0)
    deltas = torch.randn(2, 2, 16, generator=rng, dtype=torch.float64)
    updates = uploaded(ids, deltas)
    after = dict(leaves(hooks.aggregate(task=task.at(1), server=server, updates=updates)))
    for path, value in leaves(server):
        flat = value.view(-1)
        for i in range(0, len(flat), 7):
            before = flat[i].item()
            values = []
            for step in (1e-5, -1e-5):
                flat[i] = before + step
                values.append((sent(task, hooks, server, ids) * deltas).sum().item())
            flat[i] = before
            gradient = (values[0] - values[1]) / 2e-5
            moved = (after[path].view(-1)[i] - before).item()
            assert moved == pytest.approx(0.1 * gradient, rel=1e-5, abs=1e-9), (path, i)
    bank = "params/descriptors"
    assert torch.equal(after[bank][2:], server["params"]["descriptors"][2:])


def test_only_the_delta_is_uploaded(tiny):
    """Table 1 says that K = 10 tokens of d = 768 are 7,680 floats each way, for any head."""
    task, hooks = tiny("pfedpg")
    model = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=768, depth=1, num_heads=1, mlp_ratio=1, num_classes=0
    )
    task = replace(task, backbone=FrozenViT(model))
    state = initial_state(task, hooks)
    ids = select_for_round(task.at(1), hooks, state)
    received, clients, _ = first_cohort(task, hooks, ids)
    for update in hooks.client_update(task=task.at(1), received=received, clients=clients):
        assert {path: v.shape for path, v in leaves(update.payload)} == {"delta": (10, 768)}
        assert update.client_state["head"].abs().sum() > 0, "it is trained, and stays"
    _, row = train_round(task.at(1), hooks, state)
    assert row.bytes_up == row.bytes_down == len(ids) * 4 * 7680
    for classes in (10, 100):
        assert downlink_floats("pfedpg", "vit_base_patch16_224", classes, {}) == {"prompts": 7680}


def cross_entropy(task, prompts, head, rows):
    """Return the cross-entropy [n] of a model with these prompts, by timm's own modules."""
    model = task.backbone.model
    data = task.data
    images = torch.from_numpy(data.store.images(rows).copy())
    tokens = task.backbone.embed(images[None])[0]
    loaded = prompts.expand(len(rows), -1, -1)
    tokens = torch.cat([tokens[:, :1], loaded, tokens[:, 1:]], 1)
    scores = model.norm(model.blocks(tokens))[:, 0] @ head.T
    return F.cross_entropy(scores, data.labels[rows], reduction="none")


@pytest.fixture
def second_round(tiny):
    """Return make(inference): a task, hooks and state after one round with all clients.

    The server's step is large enough to be seen.
    """

    def make(inference):
        task, hooks = tiny("pfedpg", inference=inference, server_lr=0.5)
        task = replace(task, clients_per_round=len(task.data.participating))
        state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
        return task.at(2), hooks, state

    return make


@pytest.mark.parametrize("inference", ["adapted", "generated"])
def test_clients_train_the_prompts_that_the_server_generates(second_round, inference):
    """A port that generates prompts, but lets every client go on with its own, fails here."""
    task, hooks, state = second_round(inference)
    task = with_training(task, batch_size=1000, epochs=1)  # the loss before the only step
    ids = task.data.participating
    made = sent(task, hooks, state.server, ids)
    clients = cohort(task, ids, [state.clients[k] for k in ids])
    updates = hooks.client_update(
        task=task, received={"params": {"prompts": made}}, clients=clients
    )
    for k, prompts, update in zip(ids, made, updates, strict=True):
        head = state.clients[k]["head"]
        expected = cross_entropy(task, prompts, head, task.data.train[k]).mean()
        assert update.metrics["train_loss"] == pytest.approx(expected.item(), rel=1e-5)
        if inference == "adapted":
            trained = update.client_state["prompts"]
            torch.testing.assert_close(trained - prompts, update.payload["delta"])
            assert not torch.allclose(state.clients[k]["prompts"], prompts, atol=1e-3)


@pytest.mark.parametrize("inference", ["adapted", "generated"])
def test_everyone_predicts_with_its_prompts(second_round, inference):
    task, hooks, state = second_round(inference)
    for received, clients in evaluation_cohorts(task, hooks, state):
        batch = next(iterate_examples(task, [task.data.test[k] for k in clients.ids]))
        scores = hooks.predict(task=task, received=received, clients=clients, batch=batch)
        losses = F.cross_entropy(scores.mT, batch.labels, reduction="none")
        for i, k in enumerate(clients.ids):
            kept = state.clients.get(k, {})  # a held-out client has trained no prompts
            prompts = kept.get("prompts", received["params"]["prompts"][i])
            expected = cross_entropy(task, prompts, clients.state["head"][i], task.data.test[k])
            torch.testing.assert_close(losses[i][batch.mask[i]], expected, rtol=1e-5, atol=1e-6)


def test_held_out_clients_get_the_prompts_of_the_mean_descriptor(tiny):
    task, hooks = tiny("pfedpg")
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    phi = state.server["params"]
    (stranger,) = set(range(task.data.num_clients)) - set(task.data.participating)
    assert phi["descriptors"].shape[0] == len(task.data.participating)
    mean = phi["descriptors"].mean(0, keepdim=True)
    mine = sent(task, hooks, state.server, [stranger, SERVER_MODEL, *task.data.participating])
    torch.testing.assert_close(mine[0], generators.attention(phi, mean)[0])
    assert torch.equal(mine[1], phi["basis"])
    assert len({tuple(prompts.flatten().tolist()) for prompts in mine}) == len(mine)
    heads = torch.stack([kept["head"] for kept in state.clients.values()])
    for client in (stranger, SERVER_MODEL):
        kept = hooks.unseen_client_state(
            task=task.at(1), client=client, states=state.personal, received={}
        )
        torch.testing.assert_close(kept["head"], heads.mean(0))
        assert not kept["adapted"]


@pytest.mark.parametrize("inference", ["adapted", "generated"])
def test_a_shared_head_is_averaged_by_training_images(tiny, inference):
    """Prompts stay personal; the head is the same for all, strangers and the server's model too."""
    task, hooks = tiny("pfedpg", head="shared", inference=inference)
    before = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, before)
    ids = select_for_round(task.at(1), hooks, before)
    prompts = 10 * 16
    head = task.num_classes * 16
    assert row.bytes_up == row.bytes_down == len(ids) * 4 * (prompts + head)
    assert all("head" not in kept for kept in state.clients.values())
    received, clients, _ = first_cohort(task, hooks, ids)
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    sizes = torch.tensor([float(len(task.data.train[k])) for k in ids])
    heads = torch.stack([update.payload["params"]["head"] for update in updates])
    expected = (sizes[:, None, None] * heads).sum(0) / sizes.sum()
    torch.testing.assert_close(state.server["params"]["head"], expected)
    assert sizes.unique().numel() > 1, "else a plain mean would pass"
    for client in (SERVER_MODEL, *range(task.data.num_clients)):
        sent_to = hooks.download(task=task, server=state.server, client=client)
        assert torch.equal(sent_to["params"]["head"], state.server["params"]["head"])


def test_an_untrained_head_is_the_clients_own_from_round_to_round(tiny):
    task, hooks = tiny("pfedpg", newcomer_head="untrained")
    heads = [
        hooks.unseen_client_state(
            task=task.at(number), client=k, states=PersonalStates({}), received={}
        )["head"]
        for number, k in ((1, 5), (2, 5), (1, SERVER_MODEL))
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert 0.9 * 16**-0.5 < heads[0].abs().max() <= 16**-0.5
    assert heads[0].min() < 0 < heads[0].max()


def test_published_tables_agree_with_each_other():
    """Tables 4 and 5 of the paper repeat numbers of Tables 1 and 2."""
    paper = read(ROOT / "workflow/papers/pfedpg/numbers.yaml")["tables"]
    rows = {number: paper[number]["rows"] for number in paper}
    assert [len(rows[number]) for number in (1, 2, 3, 4, 5)] == [10, 10, 10, 5, 6]
    repeats = [
        (rows[4]["FedVPT"], "FedVPT"),
        (rows[4]["pFedPG"], "pFedPG"),
        (rows[5]["10"], "pFedPG"),
    ]
    for row, name in repeats:
        for column, metrics in row.items():
            first = (rows[1][name] | rows[2][name])[column]
            assert metrics["participating_mean"] == first["participating_mean"]
