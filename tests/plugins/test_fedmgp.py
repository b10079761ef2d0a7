"""FedMGP: losses of groups, which groups are sent, and by what they are replaced, in float64."""

from copy import deepcopy

import open_clip
import pytest
import torch
import torch.nn.functional as F

from changed_task import with_training
from fedloom.common.errors import FedLoomError
from fedloom.federated.round import initial_state
from fedloom.federated.task import cohort
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import load_plan
from fedloom.toolbox import SERVER_MODEL
from first_round import first_cohort, module
from refusals import refused

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def drawn_groups(groups=3, length=2):
    """Return groups of contexts and image prompts of three clients, far from their start."""
    generator = torch.Generator().manual_seed(3)
    shape = 3, groups, length, 16
    return {kind: 0.5 * torch.randn(shape, generator=generator) for kind in ("text", "image")}


def of_texts(model, context, names):
    """Return features of "a photo of a <name>." whose first words a context [L, d] replaces."""
    features = []
    for ids in open_clip.tokenize([f"a photo of a {name}." for name in names]):
        x = model.token_embedding(ids)
        x = torch.cat([x[:1], context, x[1 + len(context) :]]) + model.positional_embedding
        x = model.ln_final(model.transformer(x[None], attn_mask=model.attn_mask))[0]
        features.append(x[ids.argmax()] @ model.text_projection)
    return F.normalize(torch.stack(features), dim=-1)


def of_images(model, prompts, pixels):
    """Return features of images whose patches are followed by prompts [L, d] before the norm."""
    visual = model.visual
    x = visual.conv1(pixels).flatten(2).mT
    first = visual.class_embedding.expand(len(x), 1, -1)
    x = torch.cat([first, x], 1) + visual.positional_embedding
    x = visual.ln_pre(torch.cat([x, prompts.expand(len(x), -1, -1)], 1))
    return F.normalize(visual.ln_post(visual.transformer(x)[:, 0]) @ visual.proj, dim=-1)


def by_hand(task, groups, k, batch):
    """Yield images' and texts' features, and logits, of every group of client k."""
    model = deepcopy(task.backbone.model).double()
    pixels = (batch.images[k].double() / 255 - 0.5).permute(0, 3, 1, 2).expand(-1, 3, -1, -1) / 0.5
    for text, image in zip(groups["text"][k].double(), groups["image"][k].double(), strict=True):
        images = of_images(model, image, pixels)
        texts = of_texts(model, text, task.data.classes)
        yield images, texts, model.logit_scale.exp() * images @ texts.T


@pytest.mark.parametrize(("variant", "sign"), [("paper", -1), ("released", 1)])
def test_the_loss_is_the_mean_of_the_groups_and_their_weighted_distance(tiny, variant, sign):
    task, hooks = tiny("fedmgp", groups=3, weight=20.0, variant=variant)
    received, clients, batch = first_cohort(task, hooks)
    groups = drawn_groups()
    names = module("fedmgp").texts_after_context(task)
    losses, more = module("fedmgp").loss(task, groups, received, clients, batch, names)
    for k in range(3):
        parts = list(by_hand(task, groups, k, batch))
        entropy = sum(F.cross_entropy(p[2], batch.labels[k], reduction="none") for p in parts) / 3
        pairs = [(parts[i], parts[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
        of_image = sum((a[0] - b[0]).abs().mean(1) for a, b in pairs) / 3  # [B]
        of_text = sum((a[1] - b[1]).abs().mean() for a, b in pairs) / 3
        added = sign * 20.0 * (of_image + of_text) / 2
        torch.testing.assert_close(more["reported_loss"][k].double(), entropy, **CLOSE)
        torch.testing.assert_close(losses[k].double(), entropy + added, **CLOSE)
        assert of_image.min() > 0.01 and of_text > 0.01, "the groups differ"


def test_groups_start_around_the_words(tiny):
    task, hooks = tiny("fedmgp", groups=40, length=3)
    state = hooks.init_client(task=task, client=0)
    (ids,) = open_clip.tokenize("a photo of")
    noise = state["text"] - task.backbone.model.token_embedding(ids[1:4])
    assert noise.std() == pytest.approx(0.01, rel=0.1) and abs(noise.mean()) < 0.001
    assert state["image"].std() == pytest.approx(0.02, rel=0.1)


def test_clients_start_with_the_same_groups_and_the_server_with_the_first(tiny):
    task, hooks = tiny("fedmgp", groups=40, length=3)
    server = initial_state(task, hooks).server["params"]
    states = [hooks.init_client(task=task, client=k) for k in (0, 1)]
    for kind in ("text", "image"):
        assert torch.equal(states[0][kind], states[1][kind]) and not states[0][f"{kind}_sent"].any()
        assert torch.equal(server[kind], states[0][kind][:2])
        assert not torch.equal(server[kind][0], server[kind][1])


def test_a_context_longer_than_the_words_starts_from_noise_behind_them(tiny):
    task, hooks = tiny("fedmgp", groups=40, length=6)
    text = hooks.init_client(task=task, client=0)["text"]
    assert text[:, 4:].std() == pytest.approx(0.02, rel=0.1)
    assert module("fedmgp").texts_after_context(task) == list(task.data.classes)


def test_words_behind_a_context_count_among_the_tokens_that_the_tower_holds(tiny):
    task, _ = tiny("fedmgp", length=2)
    limit = task.backbone.max_context_length(task.data.classes)
    initial_state(*tiny("fedmgp", length=2, words=" ".join(["photo"] * limit)))
    with refused("fedmgp", "context of 2 tokens", "holds 1"):
        initial_state(*tiny("fedmgp", length=2, words=" ".join(["photo"] * (limit + 1))))


def test_groups_are_drawn_by_their_cosines_after_round_1(tiny):
    task, _ = tiny("fedmgp", groups=3, temperature=0.5)
    method = module("fedmgp")
    similar = torch.tensor([0.9, 0.1, -0.8])
    for number, weights in ((1, torch.ones(3)), (2, torch.exp(similar / 0.5))):
        rows = [method.draw(task.at(number), k, similar) for k in range(3000)]
        found = torch.stack(rows).mean(0)  # shares of the first and of the second draw
        p = weights / weights.sum()
        second = sum(p[i] * p.index_fill(0, torch.tensor(i), 0) / (1 - p[i]) for i in range(3))
        torch.testing.assert_close(found[0], p, atol=0.03, rtol=0)
        torch.testing.assert_close(found[1], second, atol=0.03, rtol=0)
        assert all((row.sum(0) <= 1).all() for row in rows)


def test_groups_are_drawn_anew_in_every_round_and_by_every_client(tiny):
    task, _ = tiny("fedmgp", groups=5)
    similar = torch.zeros(5)
    drawn = {
        tuple(module("fedmgp").draw(task.at(number), client, similar).argmax(1).tolist())
        for number in range(2, 12)
        for client in range(10)
    }
    assert len(drawn) == 20, "all ordered pairs of five"
    of_one_client = {
        tuple(module("fedmgp").draw(task.at(number), 0, similar).argmax(1).tolist())
        for number in range(2, 12)
    }
    assert len(of_one_client) > 5


def test_a_group_is_as_near_as_its_nearest_shared_one():
    groups = drawn_groups()["text"]
    shared = drawn_groups()["image"][:, :2]
    found = module("fedmgp").cosines(groups, shared)
    for k in range(3):
        for g in range(3):
            a = groups[k, g].flatten().double()
            all_ = [a @ b / a.norm() / b.norm() for b in shared[k].flatten(1).double()]
            assert found[k, g].item() == pytest.approx(max(all_).item(), abs=1e-5)


@pytest.fixture
def sent(tiny):
    """Return a task in round 2, its hooks, what three clients received, and their updates."""
    task, hooks = tiny("fedmgp", groups=4, length=2)
    task = task.at(2)
    received, clients, batch = first_cohort(task, hooks)
    updates = hooks.client_update(task=task, received=received, clients=clients)
    return task, hooks, received, clients, batch, updates


def test_clients_send_the_drawn_groups_as_they_trained_them(sent):
    task, _, received, clients, _, updates = sent
    method = module("fedmgp")
    for k, update in enumerate(updates):
        kept = update.client_state
        for kind in ("text", "image"):
            first, second = kept[f"{kind}_sent"].argmax(1).tolist()
            assert first != second
            torch.testing.assert_close(
                update.payload["params"][kind], torch.stack([kept[kind][first], kept[kind][second]])
            )
            assert not torch.equal(kept[kind], clients.state[kind][k]), "trained"
            similar = method.cosines(kept[kind][None], received["params"][kind][k : k + 1])[0]
            assert torch.equal(kept[f"{kind}_sent"], method.draw(task, clients.ids[k], similar))


def with_means(updates):
    """Return the groups {kind: [K, G, L, d]} of clients, with means in place of those sent."""
    expected = {kind: torch.zeros(3, 4, 2, 16) for kind in ("text", "image")}
    for kind, groups in expected.items():
        means = [sum(u.payload["params"][kind][r] for u in updates) / 3 for r in (0, 1)]
        for k, update in enumerate(updates):
            groups[k] = update.client_state[kind]
            for rank, g in enumerate(update.client_state[f"{kind}_sent"].argmax(1).tolist()):
                groups[k, g] = means[rank]
    return expected


def test_clients_get_means_in_place_of_the_groups_that_they_sent(sent):
    """Clients that come back merge, predict and resume with the means over the three clients."""
    task, hooks, _, clients, batch, updates = sent
    server = initial_state(task, hooks).server
    after = hooks.aggregate(task=task, server=server, updates=updates)
    back = cohort(task, clients.ids, [update.client_state for update in updates])
    again = {"params": {kind: v.expand(3, -1, -1, -1) for kind, v in after["params"].items()}}
    expected = with_means(updates)
    for kind, groups in module("fedmgp").merge(again, back.state).items():
        torch.testing.assert_close(groups, expected[kind])
    found = hooks.predict(task=task, received=again, clients=back, batch=batch)
    for k in range(3):
        logits = torch.stack([part[2] for part in by_hand(task, expected, k, batch)]).mean(0)
        torch.testing.assert_close(found[k].double(), logits, **CLOSE)
    at_rest = with_training(task, lr=0.0)
    resumed = hooks.client_update(task=at_rest, received=again, clients=back)
    torch.testing.assert_close(resumed[0].client_state["text"], expected["text"][0])


def test_who_never_trained_predicts_with_the_shared_groups_alone(tiny):
    task, hooks = tiny("fedmgp", groups=4)
    shared = {kind: value[:, :2] for kind, value in drawn_groups(4).items()}
    _, _, batch = first_cohort(task, hooks)
    one = {kind: value[0] for kind, value in shared.items()}
    unseen = hooks.unseen_client_state(task=task, client=0, states={}, received={"params": one})
    received = {"params": {kind: value[:1] for kind, value in shared.items()}}
    batch = task.data.batch([batch.index[0]])
    expected = torch.stack([part[2] for part in by_hand(task, shared, 0, batch)]).mean(0)
    fresh = hooks.init_client(task=task, client=SERVER_MODEL)
    for who in (cohort(task, [0], [unseen]), cohort(task, [SERVER_MODEL], [fresh])):
        found = hooks.predict(task=task, received=received, clients=who, batch=batch)
        torch.testing.assert_close(found[0].double(), expected, **CLOSE)


def test_the_baselines_of_table_1_have_the_released_options():
    """The options checked differ from the defaults; papers/fedmgp/protocol.yaml lists them."""
    methods = load_plan([ROOT / "workflow/papers/fedmgp/table1.yaml"]).settings.methods
    assert methods["promptfl"].options["length"] == 16
    of_fedotp = {"length": 16, "mass": 0.8, "eps": 0.1}
    assert methods["fedotp"].options.items() >= of_fedotp.items()
    of_fedpgp = {"length": 16, "rank": 8, "mu": 0.5, "temperature": 0.5}
    assert methods["fedpgp"].options.items() >= of_fedpgp.items()
    of_fedtpg = {"length": 4, "names": "all", "weighted": True}
    assert methods["fedtpg"].options.items() >= of_fedtpg.items()
    assert methods["promptfolio"].options.items() >= {"length": 16, "theta": 1.0}.items()
    for method in methods.values():
        training = method.training
        assert (training["lr"], training["epochs"], training["batch_size"]) == (0.001, 2, 8)


def test_more_shared_groups_than_groups_are_refused(tiny):
    task, hooks = tiny("fedmgp", groups=2, shared=3)
    with pytest.raises(FedLoomError, match=r"shared must be at most options\.groups, 2, got 3"):
        initial_state(task, hooks)
