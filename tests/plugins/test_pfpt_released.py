"""PFPT's released variant against its authors' arithmetic, step by step."""

import itertools
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from changed_task import with_training
from fedloom.common.trees import leaves, stack
from fedloom.contract.tiny import ALIKE, tiny_task
from fedloom.data.batch import shuffled_batches
from fedloom.federated.evaluate import evaluate_globally
from fedloom.federated.local_training import make_optimizer
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from fedloom.toolbox import tensor_map
from pfpt_cases import SMALL, after_training, moved_prompts, networks, released


def test_a_batch_takes_the_prompts_that_most_of_its_images_rank_high(tiny):
    task, _ = tiny("pfpt", prompts=2, pool=4, variant="released")
    prompts = torch.eye(4)[None]
    # the query layer swaps the last two coordinates
    query = torch.eye(4)[[0, 1, 3, 2]][None]
    features = torch.tensor([[3.0, 2, 0, 0], [3, 0, 2, 0], [0, 1, 2, 0], [0, 9, 0, 1]])[None]
    mask = torch.tensor([[True, True, True, False]])  # images rank {0, 1}, {0, 3}, {3, 1}, ...
    params = {"shared_prompts": prompts, "query": query}
    features = features[:, [0, 1, 1, 3]]
    places, found = released.pick(task, params, features, mask)
    assert places.tolist() == [[0, 3]], "{0, 1}, {0, 3}, {0, 3}; the fourth is padding"
    torch.testing.assert_close(found[0, 1], torch.tensor([3.0, 0, 0, 2]) / 13**0.5)


def reference_aggregation(uploaded, nets, z, lr, turns):
    """Return the pool by the authors' code, in which z_t is a matrix [n_t, n] of ones and zeros.

    The coin of prompt i is evaluated on n_t equal entries c_i, and the logarithms are summed.
    """
    clients, each, width = uploaded.shape
    phi = torch.nn.Parameter(uploaded.reshape(-1, width).clone())
    parts = {}
    for name, net in nets.items():
        first, second = (
            torch.nn.Linear(*layer["weight"].T.shape).double() for layer in net.values()
        )
        for linear, layer in zip((first, second), net.values(), strict=True):
            linear.load_state_dict(layer)
        parts[name] = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.Sigmoid())
    everything = [phi, *(p for part in parts.values() for p in part.parameters())]
    optimizer = torch.optim.Adam(everything, lr)
    for _ in range(turns):
        for t in range(clients):
            c = z[t].sum(0)
            gauss = []
            coins = []
            for i in range(len(phi)):
                around = torch.distributions.Normal(phi[i], parts["alpha"](phi[i]))
                gauss.append(around.log_prob(uploaded[t]).sum(1))  # [n_t]
                included = torch.distributions.Bernoulli(parts["g"](phi[i])[0])
                coins.append(sum(included.log_prob(c[i]) for _ in range(each)))
            terms = torch.stack(gauss, 1) + torch.stack(coins)  # [n_t, n]
            optimizer.zero_grad()
            (-(z[t] * terms).sum()).backward()
            optimizer.step()
            terms = terms.detach()
            trials = itertools.permutations(range(len(phi)), each)
            best = max(trials, key=lambda p: sum(terms[k, i] for k, i in enumerate(p)))
            z[t] = torch.nn.functional.one_hot(torch.tensor(best), len(phi)).double()
    return phi.detach()[sum(z).sum(0) > 0]


def test_released_aggregation_step_by_step(tiny):
    """Both aggregations run in float64 from the same networks and first assignments."""
    task, _ = tiny("pfpt", variant="released", hidden=5, server_lr=0.03)
    task.backbone.width = 3
    lengths = set()
    for seed in range(4):
        _, uploaded = moved_prompts(seed, clients=3, each=2, width=3, spread=0.5, pool=3)
        # small beside alpha, as prompts are: z is not decided by nearness alone
        uploaded = 0.2 * uploaded.double()
        at = replace(task, seed=seed)
        stream = at.generator("assignment")
        first = [torch.randperm(6, generator=stream)[:2] for _ in range(3)]
        z = [torch.nn.functional.one_hot(positions, 6).double() for positions in first]
        nets = tensor_map(torch.Tensor.double, networks.init_nets(at))
        expected = reference_aggregation(uploaded, nets, z, 0.03, 4)
        found = released.summarise(at, uploaded, nets, turns=4)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
        lengths.add(len(found))
    assert len(lengths) > 1


def trained_on_one_tensor(task, received, clients):
    """Train clients whose pools are parameters around the same memory, one after another.

    Returns:
        That memory, and every client's head and query layer.
    """
    memory = received["params"]["shared_prompts"][0].clone()
    rest = []
    for k, client in enumerate(clients.ids):
        own = tensor_map(
            lambda v, k=k: torch.nn.Parameter(v[k : k + 1].clone()),
            {name: v for name, v in received["params"].items() if name != "shared_prompts"},
        )
        own["shared_prompts"] = torch.nn.Parameter(memory[None])
        assert own["shared_prompts"].data_ptr() == memory.data_ptr()
        optimizer = make_optimizer(task.training, [p for _, p in leaves(own)], task.training.lr)
        one = clients.subset([k])
        images = 0
        rows = task.data.train[client]
        size = task.training.batch_size
        order = shuffled_batches(rows, size, task.training.epochs, task.seed, task.round, client, 0)
        for batch in (task.data.batch([chosen]) for chosen in order):
            batch.seen = (images,)
            values, _ = released.loss(task, own, received, one, batch)
            optimizer.zero_grad()
            values.mean().backward()
            optimizer.step()
            images = images + values.numel()
        rest.append({name: own[name] for name in ("head", "query")})
    return memory, rest


def test_released_clients_train_one_pool_in_memory_from_round_2_on(tiny):
    task, hooks, _, received, clients, first = after_training(tiny, variant="released")
    pools = [update.payload["params"]["shared_prompts"] for update in first]
    assert not torch.equal(pools[0], pools[1]), "copies in round 1"
    at = task.at(2)
    updates = hooks.client_update(task=at, received=received, clients=clients)
    memory, rest = trained_on_one_tensor(at, received, clients)
    for update, own in zip(updates, rest, strict=True):
        sent = update.payload["params"]
        torch.testing.assert_close(sent["shared_prompts"], memory, atol=1e-5, rtol=1e-4)
        assert torch.equal(sent["shared_prompts"], updates[0].payload["params"]["shared_prompts"])
        for name, value in own.items():
            expected = tensor_map(lambda v: v[0].detach(), {name: value})
            torch.testing.assert_close({name: sent[name]}, expected, atol=1e-5, rtol=1e-4)
    assert not torch.equal(*(u.payload["params"]["query"] for u in updates[:2]))


def test_without_a_shared_pool_every_round_is_as_the_first(tiny):
    """Clients' uploads differ, and do not depend on who else takes part."""
    options = {"variant": "released", "shared_pool": False}
    task, hooks, _, received, clients, _ = after_training(tiny, **options)
    updates = hooks.client_update(task=task.at(2), received=received, clients=clients)
    pools = [update.payload["params"]["shared_prompts"] for update in updates]
    alone = hooks.client_update(
        task=task.at(2),
        received=tensor_map(lambda v: v[1:2], received),
        clients=clients.subset([1]),
    )[0]
    torch.testing.assert_close(
        alone.payload["params"]["shared_prompts"], pools[1], atol=1e-4, rtol=1e-4
    )
    assert not torch.equal(pools[0], pools[1]) and not torch.equal(pools[1], pools[2])


def reference_hidden(task, image, prompts, inner):
    """Return the head's first layer on the class token of one image [T, d], in float64."""
    model = deepcopy(task.backbone.model).double()
    tokens = torch.cat([image[:1], prompts, image[1:]])[None].double()
    for block in model.blocks:
        tokens = block(tokens)
    return inner["weight"].double() @ model.norm(tokens)[0, 0] + inner["bias"].double()


def test_the_released_loss_image_by_image(tiny):
    """The loss has dropout after the first layer, cross-entropy and 0.01 times the similarity."""
    task, _, _, received, clients, updates = after_training(tiny, variant="released")
    trained = stack([update.payload["params"] for update in updates])
    batch = task.data.batch([task.data.train[k][:4] for k in clients.ids])
    batch.seen = (0, 4, 8)
    values, adds = released.loss(task, trained, received, clients, batch)
    places, cosine = released.pick(task, trained, batch.features, batch.mask)
    images = task.backbone.embed(batch.images)
    for k, client in enumerate(clients.ids):
        stream = task.generator("dropout", client, 4 * k)
        kept = torch.rand(4, 512, generator=stream) < 0.5
        own = tensor_map(lambda v, k=k: v[k], trained)
        counted = adds["picked"][k].sum(0).nonzero().flatten().tolist()
        assert counted == sorted(places[k].tolist())
        for b, label in enumerate(batch.labels[k]):
            prompts = own["shared_prompts"][places[k]]
            hidden = reference_hidden(task, images[k, b], prompts, own["head"]["inner"])
            outer = tensor_map(torch.Tensor.double, own["head"]["outer"])
            scores = outer["weight"] @ (hidden * kept[b] / 0.5) + outer["bias"]
            entropy = -scores.log_softmax(0)[label].item()
            similarity = cosine[k, b, places[k]].sum().item()
            assert adds["reported_loss"][k, b].item() == pytest.approx(entropy, abs=1e-4)
            assert values[k, b].item() == pytest.approx(entropy + 0.01 * similarity, abs=1e-4)


def test_test_images_pick_in_batches_as_large_as_in_training(tiny):
    """Tests have no dropout; their batches are cut from the first image on."""
    task, hooks, *_, clients, updates = after_training(tiny, variant="released", pool=12)
    trained = {"params": stack([update.payload["params"] for update in updates])}
    batch = task.data.batch([task.data.train[k][:7] for k in clients.ids])
    found = hooks.predict(task=task, received=trained, clients=clients, batch=batch)
    images = task.backbone.embed(batch.images)
    differ = False
    for k in range(3):
        own = tensor_map(lambda v, k=k: v[k], trained["params"])
        outer = tensor_map(torch.Tensor.double, own["head"]["outer"])
        picked = []
        for start, stop in ((0, 4), (4, 7)):
            part = (x[:, start:stop] for x in (batch.features, batch.mask))
            places = released.pick(task, trained["params"], *part)[0][k]
            picked += [places] * (stop - start)
        differ |= set(picked[0].tolist()) != set(picked[-1].tolist())
        for b in range(int(batch.mask[k].sum())):
            prompts = own["shared_prompts"][picked[b]]
            hidden = reference_hidden(task, images[k, b], prompts, own["head"]["inner"])
            expected = outer["weight"] @ hidden + outer["bias"]
            torch.testing.assert_close(found[k, b].double(), expected, atol=1e-4, rtol=1e-4)
    assert differ


@pytest.mark.parametrize("head", ["averaged", "personal"])
def test_released_clients_train_alone_as_in_a_cohort(tiny, head):
    task, hooks, _, received, clients, together = after_training(
        tiny, variant="released", head=head
    )
    for k, update in enumerate(together):
        alone = hooks.client_update(
            task=task,
            received=tensor_map(lambda v: v[k : k + 1], received),  # noqa: B023
            clients=clients.subset([k]),
        )[0]
        for part in ("payload", "client_state"):
            pair = getattr(update, part), getattr(alone, part)
            torch.testing.assert_close(*pair, atol=1e-4, rtol=1e-4)


def test_the_released_variant_learns(tmp_path, monkeypatch):
    method = manifest.find_method("pfpt")
    options = SMALL | {"variant": "released"}
    task = tiny_task(method, tmp_path, partition=ALIKE, **options)
    task = with_training(task, lr=0.005)
    hooks = loader.load_hooks(method)
    losses = []
    monkeypatch.setattr(released, "TURNS", 10)  # fewer turns save time
    state = initial_state(task, hooks)
    for number in range(1, 7):
        state, _ = train_round(task.at(number), hooks, state)
        losses.append(evaluate_globally(task.at(number), hooks, state).loss)
    assert max(losses[-2:]) < 0.5 * losses[0], losses


def test_released_clients_send_all_that_anybody_picked(tiny):
    task, hooks, server, *_, updates = after_training(tiny, variant="released", pool=40)
    after = hooks.aggregate(task=task, server=server, updates=updates)
    picked = [set(u.payload["picked"].nonzero().flatten().tolist()) for u in updates]
    union = sorted(set.union(*picked))
    assert 3 <= min(map(len, picked)) < len(union) < 40
    start = server["params"]["shared_prompts"]
    for k, update in enumerate(updates):
        sent = update.payload["params"]["shared_prompts"]
        untouched = sorted(set(range(40)) - picked[k])
        assert torch.equal(sent[untouched], start[untouched])
        assert not torch.equal(sent[sorted(picked[k])], start[sorted(picked[k])])
    sent = torch.stack([update.payload["params"]["shared_prompts"] for update in updates])
    pool = released.summarise(task, sent[:, union], networks.init_nets(task), 50)
    assert torch.equal(after["params"]["shared_prompts"], pool)
