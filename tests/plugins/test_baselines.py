"""PFPT's baselines and FedPR against what their papers say they compute."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from changed_task import with_training
from fedloom.cli.inspect.downlink import downlink_floats
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import stack
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import SERVER_MODEL, tensor_map, train_locally
from first_round import first_cohort, module, upload


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("fedavg_pt", {}, {"head": 76_800, "shared_prompts": 7_680}),
        ("fedavg_pt", {"selection": True}, {"head": 76_800, "shared_prompts": 15_360}),
        ("scaffold_pt", {}, {"head": 2 * 76_800, "shared_prompts": 2 * 7_680}),
        ("fedpr", {}, {"head": 76_800, "shared_prompts": 7_680}),  # 84,480, so 8.4 M in 100 rounds
        ("pfpt", {}, {"head": 76_800, "shared_prompts": 15_360}),  # clients pick from the pool
        (  # 140,544 floats ("0.1 M"), and the counts behind q
            "sgpt",
            {},
            {"head": 76_800, "shared_prompts": 2_304, "group_prompts": 46_080, "keys": 15_360}
            | {"selected": 20},
        ),
        ("promptfl", {}, {"context": 16 * 512}),
        ("head_tuning", {}, {"head": 76_800}),
        ("fedvpt", {}, {"head": 76_800, "shared_prompts": 768}),
        (  # Section 5.2.2 of its paper: 12 rounds are 4.6 M floats
            "pep_fedpt",
            {},
            {"head": 76_800, "shared_prompts": 768, "class_prompts": 76_800, "prototypes": 230_400},
        ),
    ],
)
def test_communication(method, options, expected):
    backbone = "ViT-B-16-quickgelu" if method == "promptfl" else "vit_base_patch16_224"
    assert downlink_floats(method, backbone, 100, options) == expected


def test_a_client_uploads_only_the_prompts_that_it_picked(tiny):
    task, hooks = tiny("fedavg_pt", selection=True, prompts=3, pool=8)
    _, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    width = task.backbone.width
    head = 4 * task.backbone.width
    assert row.bytes_down == 3 * 4 * (head + 8 * width)
    assert row.bytes_up == 3 * (4 * (head + 3 * width) + 8 * 3)


def test_a_prompt_that_no_client_picked_stays_as_it_is(tiny):
    """FedAvg, FedProx and GMM move the prompts of the pool that clients picked, and no others."""
    for name in ("fedavg_pt", "fedprox_pt", "gmm_pt"):
        task, hooks = tiny(name, selection=True, prompts=2, pool=12)
        start = initial_state(task, hooks)
        received, clients, _ = first_cohort(task, hooks, select_for_round(task.at(1), hooks, start))
        updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
        picked = set(torch.cat([u.payload["indices"] for u in updates]).tolist())
        assert 2 <= len(picked) < 12
        server = hooks.aggregate(task=task.at(1), server=start.server, updates=updates)
        old, new = (s["params"]["shared_prompts"] for s in (start.server, server))
        moved = {i for i in range(12) if not torch.equal(old[i], new[i])}
        assert moved == picked


@pytest.mark.parametrize("sampled", [2, 5])
def test_control_variates_sum_to_zero_around_the_servers(tiny, sampled):
    """The server's c is the mean of all c_k, whether all clients take part or some of them."""
    task, hooks = tiny("scaffold_pt", prompts=2)
    task, ids = replace(task, clients_per_round=sampled), task.data.participating
    assert len(ids) == 5
    state = initial_state(task, hooks)
    for number in range(1, 5):
        state, _ = train_round(task.at(number), hooks, state)
        control = state.server["constants"]["control"]
        kept = [state.clients.get(k) or hooks.init_client(task=task, client=k) for k in ids]
        for name in ("head", "shared_prompts"):
            around = torch.stack([own["control"][name] - control[name] for own in kept])
            torch.testing.assert_close(
                around.sum(0), torch.zeros_like(control[name]), atol=1e-5, rtol=0
            )
            assert around.abs().max() > 1e-3


def test_a_control_variate_is_the_clients_mean_gradient(tiny):
    """The new c_k after one step is the gradient g at x, and y = x - lr (g - c_k + c)."""
    task, hooks = tiny("scaffold_pt", prompts=2)
    task = with_training(task, epochs=1, batch_size=1000)
    ids = task.data.participating[:3]
    generator = torch.Generator().manual_seed(0)

    def noise(tree):
        return tensor_map(lambda v: 0.1 * torch.randn(v.shape, generator=generator), tree)

    params = noise(hooks.init_server(task=task)["params"])
    control = noise(params)
    owns = [noise(params) for _ in ids]
    received = stack([{"params": params, "constants": {"control": control}} for _ in ids])
    clients = cohort(task, ids, [{"control": own} for own in owns])
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    for client, own, update in zip(ids, owns, updates, strict=True):
        at = stack([tensor_map(lambda v: v.clone().requires_grad_(), params)])
        for value in at.values():
            value.retain_grad()
        batch = task.data.batch([task.data.train[client]])
        scores = task.backbone.forward_prompted(batch.images, at["shared_prompts"], at["head"])
        entropy = F.cross_entropy(scores[0], batch.labels[0])
        entropy.backward()
        assert update.metrics["train_loss"] == pytest.approx(entropy.item(), abs=1e-5)
        for name, value in at.items():
            gradient = value.grad[0]
            sent = update.payload
            kept = update.client_state["control"][name]
            stepped = params[name] - task.training.lr * (gradient - own[name] + control[name])
            torch.testing.assert_close(kept, gradient, atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(sent["control"][name], kept - own[name])
            torch.testing.assert_close(sent["params"][name], stepped, atol=1e-6, rtol=0)


def random_params(like):
    """Yield parameters of the same shapes, drawn anew from a normal distribution each time."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield tensor_map(lambda v: torch.randn(v.shape, generator=generator), like)


def test_scaffolds_server_moves_a_step_towards_the_unweighted_mean(tiny):
    task, hooks = tiny("scaffold_pt", prompts=2, server_lr=0.25)
    server = hooks.init_server(task=task)
    sent = random_params(server["params"])
    control = server["constants"]["control"]
    updates = [upload(next(sent), examples, control=control) for examples in (1, 9)]
    after = hooks.aggregate(task=task.at(1), server=server, updates=updates)["params"]
    for name, start in server["params"].items():
        one, two = (update.payload["params"][name].double() for update in updates)
        expected = 0.75 * start.double() + 0.25 * (one + two) / 2
        torch.testing.assert_close(after[name].double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("training", [{"optimizer": "adam"}, {"momentum": 0.9}, {"clip": 1.0}])
def test_scaffold_refuses_what_its_control_variates_cannot_take(tiny, training):
    task, hooks = tiny("scaffold_pt")
    task = with_training(task, **training)
    with pytest.raises(FedLoomError, match=r"scaffold_pt: .* plain SGD; set training.optimizer"):
        hooks.init_server(task=task)


def test_deep_prompts_replace_those_of_the_block_before(tiny):
    """Timm's own blocks compute FedVPT-D with prompts at blocks 2 and 5, image by image."""
    task, hooks = tiny("fedvpt_deep", blocks=[5, 2], prompts=3)
    generator = torch.Generator().manual_seed(0)
    width = task.backbone.width
    params = {
        "head": torch.randn(1, 4, width, generator=generator),
        "shared_prompts": torch.randn(1, 2, 3, width, generator=generator),  # [K, S, P, d]
    }
    _, clients, batch = first_cohort(task, hooks, task.data.participating[:1])
    model = task.backbone.model
    actual = hooks.predict(task=task, received={"params": params}, clients=clients, batch=batch)
    for i in range(4):
        tokens = task.backbone.embed(batch.images)[:, i]  # [1, T, d]
        patches = tokens[:, 1:]
        for number, block in enumerate(model.blocks, 1):
            if number in (2, 5):
                prompts = params["shared_prompts"][:, (2, 5).index(number)]
                patches = tokens[:, -patches.shape[1] :]
                tokens = torch.cat([tokens[:, :1], prompts, patches], 1)
            tokens = block(tokens)
        expected = model.norm(tokens)[0, 0] @ params["head"][0].T
        torch.testing.assert_close(actual[0, i], expected, atol=1e-4, rtol=1e-4)


def test_deep_prompts_beyond_the_last_block_are_refused(tiny):
    task, hooks = tiny("fedvpt_deep", blocks=[13, 2, 5])
    with pytest.raises(FedLoomError, match=r"option blocks must name .* 12, .* got \[2, 5, 13\]"):
        hooks.init_server(task=task)
    task, hooks = tiny("fedvpt_deep", blocks=[12, 2], prompts=3)
    shape = hooks.init_server(task=task)["params"]["shared_prompts"].shape
    assert shape == (2, 3, task.backbone.width)


def test_a_pool_must_hold_what_a_client_picks(tiny):
    for name in ("fedavg_pt", "fedprox_pt", "fedopt_pt", "gmm_pt"):
        task, hooks = tiny(name, selection=True, prompts=5, pool=4)
        with pytest.raises(FedLoomError, match=f"^{name}: option prompts is 5, but the pool hold"):
            hooks.init_server(task=task)
    for options in ({"selection": True, "pool": 5}, {"pool": 4}):  # the second has no pool
        task, hooks = tiny("fedavg_pt", prompts=5, **options)
        assert len(hooks.init_server(task=task)["params"]["shared_prompts"]) == 5


def _proximal(tiny, **options):
    """Return FedProx's term [K] as a function of float64 parameters, its start, and a point."""
    task, _ = tiny("fedprox_pt", **options)
    fedprox = module("fedprox_pt")
    generator = torch.Generator().manual_seed(0)
    shapes = {"head": (2, 3, 4), "shared_prompts": (2, 5, 4)}
    start, point = (
        {name: torch.randn(shape, generator=generator).double() for name, shape in shapes.items()}
        for _ in range(2)
    )
    return lambda params: fedprox.proximal(task, params, start), start, point


def test_the_proximal_gradient_is_mu_times_the_distance(tiny):
    term, start, point = _proximal(tiny, mu=0.3)
    at = tensor_map(lambda v: v.clone().requires_grad_(), point)
    term(at).sum().backward()
    for name, value in at.items():
        expected = 0.3 * (point[name] - start[name])
        torch.testing.assert_close(value.grad, expected)
        assert value.grad.abs().max() > 0.1
    step = torch.zeros_like(point["head"])
    step[1, 2, 0] = 1e-6
    ahead, behind = (term(point | {"head": point["head"] + s * step}) for s in (1, -1))
    slope = (ahead - behind) / 2e-6
    assert slope[0] == 0, "another client's term"
    assert slope[1].item() == pytest.approx(at["head"].grad[1, 2, 0].item(), abs=1e-6)


def test_the_released_proximal_gradient_has_norm_mu_half_and_none_at_the_start(tiny):
    term, start, point = _proximal(tiny, mu=0.3, variant="released")
    for given, expected in ((point, 0.15), (start, 0.0)):
        at = tensor_map(lambda v: v.clone().requires_grad_(), given)
        term(at).sum().backward()
        flat = torch.cat([value.grad.flatten(1) for value in at.values()], 1)
        torch.testing.assert_close(flat.norm(dim=1), torch.full((2,), expected).double())


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_server_steps_as_adam_on_the_pseudo_gradient(tiny, variant):
    """One torch Adam, which keeps its moments, takes the same three steps beside the server."""
    options = {"server_lr": 0.05, "server_betas": [0.8, 0.95], "server_eps": 1e-3}
    task, hooks = tiny("fedopt_pt", variant=variant, **options)
    server = hooks.init_server(task=task)
    own = tensor_map(torch.clone, server["params"])
    sent = random_params(server["params"])
    adam = torch.optim.Adam(own.values(), 0.05, (0.8, 0.95), 1e-3)
    for number in (1, 2, 3):
        updates = [upload(next(sent), examples) for examples in (1, 3)]
        mean = tensor_map(lambda a, b: a / 4 + 3 * b / 4, *(u.payload["params"] for u in updates))
        for name, value in own.items():
            value.grad = value - mean[name]
        adam.step()
        server = hooks.aggregate(task=task.at(number), server=server, updates=updates)
        judged = hooks.download(task=task, server=server, client=SERVER_MODEL)["params"]
        given = hooks.download(task=task, server=server, client=0)["params"]
        for name, value in own.items():
            torch.testing.assert_close(judged[name], value, atol=1e-6, rtol=1e-6)
            expected = value if variant == "paper" else mean[name]
            torch.testing.assert_close(given[name], expected, atol=1e-6, rtol=1e-6)


def test_the_pseudo_gradient_of_a_prompt_is_that_of_its_pickers(tiny):
    """Adam's first step moves a prompt by lr towards its pickers, and not at all if it has none."""
    task, hooks = tiny("fedopt_pt", selection=True, prompts=1, pool=3, server_lr=0.01)
    server = hooks.init_server(task=task)
    pool = server["params"]["shared_prompts"]
    updates = [
        upload(server["params"] | {"shared_prompts": prompt}, indices=torch.tensor([index]))
        for index, prompt in ((0, pool[:1] + 1), (2, pool[2:] - 1))
    ]
    after = hooks.aggregate(task=task.at(1), server=server, updates=updates)
    moved = after["params"]["shared_prompts"] - pool
    expected = torch.tensor([[0.01], [0.0], [-0.01]]).expand_as(moved)
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_mixture_recovers_planted_centroids(tiny, variant):
    """Clients' prompts form clusters of several sizes; a centroid takes the row of its prompt."""
    task, hooks = tiny("gmm_pt", variant=variant, prompts=4)
    rng = np.random.default_rng(0)
    server = hooks.init_server(task=task)
    centres = rng.normal(size=(4, task.backbone.width))
    old = centres[[2, 0, 3, 1]] + rng.normal(scale=0.2, size=centres.shape)
    server["params"]["shared_prompts"] = torch.tensor(old, dtype=torch.float32)
    members = {i: [] for i in range(4)}
    updates = []
    for client in range(30):
        belongs = rng.permutation([0, 1, 2, 3] if client % 2 else [0, 1, 2, 2])
        points = centres[belongs] + rng.normal(scale=0.01, size=centres.shape)
        for i, point in zip(belongs, points, strict=True):
            members[i].append(point)
        prompts = torch.tensor(points, dtype=torch.float32)
        updates.append(upload(server["params"] | {"shared_prompts": prompts}, client=client))
    actual = hooks.aggregate(task=task.at(1), server=server, updates=updates)
    everywhere = np.mean([point for points in members.values() for point in points], 0)
    for row, i in enumerate((2, 0, 3, 1)):
        total = np.sum(members[i], 0)
        count = len(members[i])
        if variant == "released":  # the prior counts as one more point, at the mean of all
            total = total + everywhere
            count = count + 1
        centroid = actual["params"]["shared_prompts"][row]
        np.testing.assert_allclose(centroid, total / count, atol=1e-5)


def test_fedpr_moves_prompts_only_where_the_global_ones_are_weak(tiny):
    task, hooks = tiny("fedpr", prompts=6)
    server = hooks.init_server(task=task)
    prompts = server["params"]["shared_prompts"]
    _, _, v = np.linalg.svd((prompts.T @ prompts).double().numpy())
    strong = v[: int(0.2 * task.backbone.width)].T  # [d, 3]
    received, clients, _ = first_cohort(task, hooks, task.data.participating[:2])
    moved = {}
    for number in (1, 2):
        for update in hooks.client_update(task=task.at(number), received=received, clients=clients):
            change = (update.payload["params"]["shared_prompts"] - prompts).double().numpy()
            across = np.abs(change @ strong).max() / np.abs(change).max()
            moved.setdefault(number, []).append(across)
    assert min(moved[1]) > 0.01, "the first round knows no prompts"
    assert max(moved[2]) < 1e-4


def test_fedprs_projector_is_that_of_the_weak_directions(tiny):
    prompts = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    actual = module("fedpr").projector(prompts, 0.2).double().numpy()
    _, _, v = np.linalg.svd((prompts.T @ prompts).double().numpy())
    weak = v[2:].T
    np.testing.assert_allclose(actual, weak @ weak.T / np.sqrt(8), atol=1e-5)
    assert np.linalg.norm(actual) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_step_is_projected_and_other_parameters_are_not(tiny, optimizer):
    task, _ = tiny("head_tuning")
    task = with_training(task, optimizer=optimizer)
    ids = task.data.participating[:3]

    def loss(task, params, received, clients, batch):
        scores = batch.features @ (params["head"] + params["other"]).mT
        return F.cross_entropy(scores.mT, batch.labels, reduction="none")

    start = {name: torch.ones(3, 4, task.backbone.width) for name in ("head", "other")}
    clients = cohort(task, ids, [{} for _ in ids])
    matrix = torch.zeros(task.backbone.width, task.backbone.width)
    matrix[0, 0] = 0.5
    ends = [
        train_locally(task.at(1), loss, {}, clients, params=start, project=project).params
        for project in (None, {"head": matrix}, {"head": torch.eye(task.backbone.width)})
    ]
    free, projected, whole = (end["head"] - start["head"] for end in ends)
    assert free[..., 1:].abs().max() > 1e-3
    assert projected[..., 0].abs().max() > 1e-3
    assert (projected[..., 1:] == 0).all()
    torch.testing.assert_close(whole, free, atol=1e-5, rtol=0)
    assert not torch.equal(ends[1]["other"], start["other"])


@pytest.mark.parametrize("name", ["gmm_pt", "centralised"])
def test_the_prompts_of_some_rounds_are_kept_for_a_figure(tiny, name):
    """Prompts for PFPT's Fig. 3 and 5 are kept before round 1 and after every second round."""
    task, hooks = tiny(name, prompts=2, history=2)
    task = with_training(task, epochs=1, batch_size=100)
    state = initial_state(task, hooks)
    seen = {0: state.server["params"]["shared_prompts"]}
    for number in (1, 2, 3, 4):
        state, _ = train_round(task.at(number), hooks, state)
        seen[number] = state.server["params"]["shared_prompts"]
    table = hooks.artefact(task=task, server=state.server, cohorts=iter(()), name="prompt_history")
    assert table["round"] == [0, 0, 2, 2, 4, 4]
    expected = torch.cat([seen[number] for number in (0, 2, 4)])
    torch.testing.assert_close(torch.tensor(table["vector"]), expected)
