"""FPPL against an image-by-image reference in float64, and its server against plain loops."""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from changed_task import with_training
from fedloom.common.trees import tensor_map
from fedloom.federated.round import initial_state
from first_round import first_cohort, module, upload

fppl = module("fppl")
STREAM = {
    "scheme": "iid",
    "clients": 6,
    "held_out": 0,
    "arrivals": {"of": "classes", "at": [3], "keep": False},
}


def reference_feature(task, params, image, newest):
    """Return the class token of one image, with the prompts of the parts 0 to `newest`."""
    vit = task.backbone
    model = deepcopy(vit.model).double()
    tokens = vit.embed(image[None, None])[0, 0].double()  # [T, d]
    query = model.norm(_plain(model, tokens))[0]
    scores = [
        params["scale"][0] * F.cosine_similarity(query, params["keys"][s], dim=0)
        for s in range(newest + 1)
    ]
    weights = torch.stack(scores).softmax(0)
    if not task.options.fusion:
        weights = F.one_hot(weights.argmax(), len(weights)).double()
    for j, block in enumerate(model.blocks):
        if j < task.options.blocks:
            mixed = sum(w * params["prompts"][s, j] for s, w in enumerate(weights))
            tokens = block(torch.cat([tokens, mixed])[None])[0][: len(tokens)]  # prompts are last
        else:
            tokens = block(tokens[None])[0]
    return model.norm(tokens)[0]


def _plain(model, tokens):
    for block in model.blocks:
        tokens = block(tokens[None])[0]
    return tokens


def a_client(tiny, part, at=(3,), count=1, **options):
    """Return a task in a part of the stream, its hooks, what clients received, and a batch.

    Parameters and prototypes are drawn at random, so that they have no pattern.
    """
    partition = STREAM | {"arrivals": STREAM["arrivals"] | {"at": [*at]}}
    task, hooks = tiny("fppl", partition=partition, prompts=2, blocks=2, **options)
    task = task.at([1, *at][part])
    train = task.data.train
    ids = sorted(sorted(task.data.participating, key=lambda k: -len(train[k]))[:count])
    server = initial_state(task, hooks).server
    stream = torch.Generator().manual_seed(1)
    draw = lambda x: torch.randn(x.shape, generator=stream)  # noqa: E731
    server["params"] = tensor_map(draw, server["params"])
    known = torch.ones(task.num_classes)
    server["constants"]["prototypes"] = draw(server["constants"]["prototypes"])
    server["constants"]["known"] = known
    received, clients, _ = first_cohort(task, hooks, ids, server)
    ends = [0, 1, -2, -1]  # images lie in the order of their classes
    batch = task.data.batch([train[k][ends] for k in ids])
    return task, hooks, received, clients, batch


def test_parameters_start_as_uniform_draws_and_a_scale_of_one(tiny):
    task, hooks = tiny("fppl", partition=STREAM, prompts=3, blocks=13)  # the backbone has 12
    params = initial_state(task, hooks).server["params"]
    classes = task.num_classes
    width = task.backbone.width
    expected = {  # shapes and bounds of the draws
        "prompts": ((2, 12, 3, width), 1),
        "keys": ((2, width), width**-0.5),
        "head": ((classes, width), width**-0.5),
        "bias": ((classes,), width**-0.5),
    }
    assert params.keys() == {"scale", *expected}
    assert params["scale"].tolist() == [1]
    for name, (shape, bound) in expected.items():
        assert params[name].shape == shape
        assert params[name].min() < 0 < params[name].max()
        assert bound / 2 < params[name].abs().max() <= bound
    assert not torch.isin(params["keys"], params["head"]).any()  # they have separate streams


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("fusion", [True, False])
def test_the_loss_is_cross_entropy_and_info_nce_of_the_released_code(tiny, part, fusion):
    options = {"fusion": fusion, "unified": 0.5, "temperature": 0.4}
    task, _, received, clients, batch = a_client(tiny, part, **options)
    losses, extras = fppl.loss(task, received["params"], received, clients, batch)  # [1, B]
    reported = extras["reported_loss"][0]
    params = tensor_map(lambda value: value[0].double(), received["params"])
    now = np.flatnonzero(task.arrived.training.numpy())
    prototypes = received["constants"]["prototypes"][0].double()
    images = zip(batch.images[0], batch.labels[0], losses[0], reported, strict=True)
    for image, label, loss, alone in images:
        feature = reference_feature(task, params, image, part)
        logits = {c: params["head"][c] @ feature + params["bias"][c] for c in now}
        entropy = torch.stack([*logits.values()]).logsumexp(0) - logits[int(label)]
        close = {c: F.cosine_similarity(feature, prototypes[c], dim=0) / 0.4 for c in now}
        pull = torch.stack([*close.values()]).logsumexp(0) - close[int(label)]
        assert loss.item() == pytest.approx(float(entropy + 0.5 * pull), rel=2e-5, abs=2e-5)
        assert alone.item() == pytest.approx(float(entropy), rel=2e-5, abs=2e-5)


def test_a_label_without_a_prototype_is_drawn_nowhere(tiny):
    task, _, received, clients, batch = a_client(tiny, 0)
    drawn = fppl.loss(task, received["params"], received, clients, batch)[0][0]
    feature = fppl.features(task, received["params"], batch)
    logits = fppl.logits_among(received["params"], feature, task.arrived.training)
    entropy = F.cross_entropy(logits[0], batch.labels[0], reduction="none")
    assert (drawn - entropy).abs().min() > 1e-3
    one, other = batch.labels[0].unique().tolist()
    # a prototype that is the only one draws nothing either: its share is 1
    for known in ([], [one], [other]):
        flags = torch.tensor([[float(c in known) for c in range(task.num_classes)]])
        received["constants"]["known"] = flags
        found = fppl.loss(task, received["params"], received, clients, batch)[0][0]
        torch.testing.assert_close(found, entropy)


def test_only_the_newest_part_has_a_gradient(tiny):
    task, _, received, clients, batch = a_client(tiny, 1)
    params = tensor_map(lambda value: value.clone().requires_grad_(), received["params"])
    fppl.loss(task, params, received, clients, batch)[0].sum().backward()
    by_part = params["prompts"].grad[0].flatten(1).abs().sum(1)
    assert by_part[1] > 0 and by_part[0] == 0
    assert (params["keys"].grad[0].abs().sum(1) > 0).all()


def test_a_part_starts_as_the_one_before_until_it_is_trained(tiny):
    task, hooks, received, clients, _ = a_client(tiny, 2, at=(3, 5))
    task = with_training(task, lr=0.0)
    for trained, source in ((0, 1), (1, 2)):
        received["constants"]["trained"] = torch.tensor([[1.0, 1.0, trained]])
        (update,) = hooks.client_update(task=task, received=received, clients=clients)
        before = received["params"]["prompts"][0]
        assert torch.equal(update.payload["params"]["prompts"], before[[0, 1, source]])


def test_prototypes_are_mean_features_of_the_classes_that_a_client_holds(tiny):
    task, hooks, received, clients, _ = a_client(tiny, 0, count=2)
    few, many = sorted(clients.num_examples)
    assert few < many  # so the smaller client's batch is filled up
    updates = hooks.client_update(task=task, received=received, clients=clients)
    for client, update in zip(clients.ids, updates, strict=True):
        params = tensor_map(lambda value: value.double(), update.payload["params"])
        rows = task.data.train[client]
        labels = task.data.labels.numpy()[rows]
        held = update.payload["held"].bool().tolist()
        assert held == [c in labels for c in range(task.num_classes)]
        images = torch.from_numpy(task.data.store.images(rows))
        for label in np.unique(labels):
            own = [reference_feature(task, params, image, 0) for image in images[labels == label]]
            found = update.payload["prototypes"][label]
            mean = torch.stack(own).mean(0).float()
            torch.testing.assert_close(found, mean, atol=1e-5, rtol=1e-4)


def test_the_server_averages_the_last_prototypes_of_every_client(tiny):
    task, hooks, *_ = a_client(tiny, 0, debias_epochs=0)
    state = initial_state(task, hooks).server
    classes = task.num_classes
    width = task.backbone.width
    sent = {}
    for round_, holders in enumerate(({0: (0, 1), 3: (1,)}, {0: (1,), 2: (2,)})):
        updates = []
        for client, held in holders.items():
            values = torch.randn(classes, width)
            flags = torch.tensor([float(c in held) for c in range(classes)])
            sent |= {(client, c): values[c] for c in held}
            params = tensor_map(torch.clone, state["params"])
            updates.append(
                upload(params, 2, client, prototypes=values * flags[:, None], held=flags)
            )
        state = hooks.aggregate(task=task, server=state, updates=updates)
        assert round_ or len(sent) == 3
    for c in range(classes):
        kept = [value for (_, label), value in sent.items() if label == c]
        assert bool(state["constants"]["known"][c]) == bool(kept)
        if kept:
            mean = torch.stack(kept).mean(0)
            torch.testing.assert_close(state["constants"]["prototypes"][c], mean)
    assert state["constants"]["trained"].tolist() == [1, 0]


def test_the_server_weighs_parameters_by_training_images(tiny):
    task, hooks, *_ = a_client(tiny, 0, debias_epochs=0)
    server = initial_state(task, hooks).server
    classes = task.num_classes
    nothing = {"prototypes": torch.zeros(classes, task.backbone.width)}
    nothing["held"] = torch.zeros(classes)
    one, three = (tensor_map(torch.rand_like, server["params"]) for _ in range(2))
    updates = [upload(one, 1, 0, **nothing), upload(three, 3, 1, **nothing)]
    for name, value in hooks.aggregate(task=task, server=server, updates=updates)["params"].items():
        torch.testing.assert_close(value, (one[name] + 3 * three[name]) / 4)


def three_prototypes(tiny, **options):
    """Return a task, a head, and two clients' uploads with three prototypes of two classes."""
    task, *_ = a_client(tiny, 0, debias_lr=0.01, **options)
    classes = task.num_classes
    width = task.backbone.width
    stream = torch.Generator().manual_seed(1)
    held = torch.zeros(6, classes)
    held[0, :2] = held[4, 1] = 1
    uploaded = torch.randn(6, classes, width, generator=stream)
    params = {
        "head": torch.randn(classes, width, generator=stream) / 4,
        "bias": torch.randn(classes, generator=stream),
    }
    return task, params, uploaded, held


def reference_debiased(params, uploaded, batches):
    """Return head and bias after a step of Adam for each batch of (client, class), in float64."""
    head, bias = (params[k].clone().double().requires_grad_() for k in ("head", "bias"))
    optimizer = torch.optim.Adam([head, bias], lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        losses = [
            F.cross_entropy((head @ uploaded[k, c].double() + bias)[:2], torch.tensor(c))
            for k, c in batch
        ]
        torch.stack(losses).mean().backward()
        optimizer.step()
    return {"head": head.detach().float(), "bias": bias.detach().float()}


def test_debiasing_is_adam_on_all_prototypes_among_their_classes(tiny):
    task, params, uploaded, held = three_prototypes(tiny, debias_epochs=3)
    task = with_training(task, batch_size=8)  # one step takes all prototypes
    result = fppl.debias_head(task, params, uploaded, held)
    wanted = reference_debiased(params, uploaded, [[(0, 0), (0, 1), (4, 1)]] * 3)
    torch.testing.assert_close(result, wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(result["head"][2:], params["head"][2:])


def test_debiasing_goes_through_batches_in_a_fresh_order_every_epoch(tiny):
    task, params, uploaded, held = three_prototypes(tiny, debias_epochs=4)
    task = with_training(task, batch_size=2)  # so that the last of the three prototypes is alone
    result = fppl.debias_head(task, params, uploaded, held)
    of_last = [  # the batches of an epoch, by the prototype that comes last
        [[(0, 1), (4, 1)], [(0, 0)]],
        [[(0, 0), (4, 1)], [(0, 1)]],
        [[(0, 0), (0, 1)], [(4, 1)]],
    ]

    def agrees(epochs):
        batches = [batch for last in epochs for batch in of_last[last]]
        wanted = reference_debiased(params, uploaded, batches)
        return all(result[name].allclose(wanted[name], atol=1e-5) for name in wanted)

    (epochs,) = filter(agrees, product(range(3), repeat=4))
    assert len({*epochs}) > 1


@pytest.mark.parametrize("part", [0, 1])
def test_images_are_classified_among_the_classes_that_have_arrived(tiny, part):
    task, hooks, received, clients, batch = a_client(tiny, part)
    logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    out = ~task.arrived.seen
    assert (logits[..., out] == fppl.OUT).all() and (logits[..., ~out] > fppl.OUT).all()
