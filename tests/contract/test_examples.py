"""The examples: nine methods of others as plugins, short, by public names, right, installable."""

import ast
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import three_blocks
from fedloom.common.errors import FedLoomError
from fedloom.contract import driver
from fedloom.contract.tiny import tiny_task
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import download_to, initial_state, select_for_round, train_round
from fedloom.federated.state import Participation, State
from fedloom.federated.task import cohort
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT
from fedloom.toolbox import Update, stack
from images_on_disk import image_folder

pytestmark = pytest.mark.slow

FOLDER = ROOT / "examples/methods"
EXAMPLES = {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/plugin.py"))}
METHODS = ("apfl_prompts", "fedbabu_prompts", "fedem_heads", "fedrep_prompts", "ifca_heads")
WRAPPERS = ("krum_receive", "masks", "power_of_choice", "topk")


def plugin(name):
    return manifest.discover_methods(FOLDER)[name]


@pytest.fixture
def run(tmp_path):
    """run(name, **options): a task and hooks of an example; wrappers are around Head-Tuning."""

    def make(name, around="head_tuning", **options):
        own = plugin(name)
        if own.kind == "method":
            task = tiny_task(own, tmp_path, **options)
            return task, loader.load_hooks(own)
        method = manifest.find_method(around)
        task = tiny_task(method, tmp_path, (own,))
        vars(task.wrappers[name]).update(options)
        return task, loader.load_hooks(method, wrappers=(own,))

    return make


def module(name):
    loader.import_plugin(plugin(name))
    return sys.modules[f"fedloom_plugins.{name}.plugin"]


def update(client, **params):
    return Update({"params": params}, {}, 1, {"train_loss": 0.0}, client=client)


def test_the_examples_are_those_of_the_guide():
    assert sorted(EXAMPLES) == sorted((*METHODS, *WRAPPERS))
    guide = (ROOT / "docs/writing-a-method.md").read_text()
    assert all(f"`examples/methods/{name}`" in guide for name in EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_writes_to_none_of_its_arguments(name):
    """test_house.py checks that it calls public names alone."""
    text = (EXAMPLES[name] / "plugin.py").read_text()
    assert len(text.splitlines()) <= 80
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            assert not any(isinstance(target, ast.Attribute) for target in node.targets)
    described = ast.get_docstring(ast.parse(text))
    assert any(word in described for word in ("Algorithm", "Section")) or name == "topk"


@pytest.mark.parametrize("check", driver.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_the_contract(name, check, tmp_path, monkeypatch):
    three_blocks.check_on(monkeypatch, name)
    check(plugin(name), tmp_path)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_keeps_the_contract(name, monkeypatch):
    three_blocks.check_on(monkeypatch)
    assert "around head_tuning" in driver.check(plugin(name), [manifest.find_method("head_tuning")])


# APFL


def test_apfl_mixes_the_trained_models_and_sends_the_shared_one_alone(run, monkeypatch):
    task, hooks = run("apfl_prompts", alpha=0.25)
    seen = []
    original = module("apfl_prompts").fl.train_locally

    def watched(*given, **more):
        seen.append(original(*given, **more))
        return seen[-1]

    monkeypatch.setattr(module("apfl_prompts").fl, "train_locally", watched)
    state = initial_state(task, hooks)
    for number in (1, 2):  # in the first round the two models train from equal starts
        state, row = train_round(task.at(number), hooks, state)
    shared, own = (seen[-1].params[name]["head"] for name in ("shared", "own"))
    ids = sorted(update.client_id for update in row.updates)
    kept = torch.stack([state.clients[k]["own"]["head"] for k in ids])
    torch.testing.assert_close(kept, 0.75 * shared + 0.25 * own)
    sent = state.server["params"]["shared"].values()
    assert row.bytes_up == 3 * 4 * sum(value.numel() for value in sent)


# FedRep, FedBABU


def changed(before, after):
    return not torch.equal(before, after)


def test_fedrep_trains_heads_then_the_body_and_sends_the_body_alone(run, monkeypatch):
    task, hooks = run("fedrep_prompts")
    seen = []
    original = module("fedrep_prompts").fl.train_locally

    def watched(*given, train, **more):
        trained = original(*given, train=train, **more)
        seen.append((train, more.get("epochs"), trained.params))
        return trained

    monkeypatch.setattr(module("fedrep_prompts").fl, "train_locally", watched)
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    (heads, both) = seen
    assert heads[:2] == (("head",), task.options.head_epochs)
    assert both[:2] == (("shared_prompts",), None), "the epochs of the study"
    body = start.server["params"]["shared_prompts"]
    assert not changed(heads[2]["shared_prompts"], body.expand(3, -1, -1))
    assert not changed(both[2]["head"], heads[2]["head"])
    kept = torch.stack([state.clients[k]["head"] for k in sorted(state.clients)])
    assert not changed(kept, heads[2]["head"])
    mean = both[2]["shared_prompts"].mean(0)
    torch.testing.assert_close(state.server["params"]["shared_prompts"], mean)
    assert row.bytes_up == 3 * 4 * body.numel()


@pytest.mark.parametrize("name", ["fedrep_prompts", "fedbabu_prompts"])
def test_a_held_out_client_learns_its_head_before_the_test(run, name):
    task, hooks = run(name)
    state = initial_state(task, hooks)
    for number in (1, 2):
        state, _ = train_round(task.at(number), hooks, state)
    before, after = [row for row in evaluate(task.at(2), hooks, state)][:2]
    assert before.client_id == after.client_id == 0 and not before.participating
    assert after.personalized and after.loss < 0.9 * before.loss


def test_fedbabu_never_trains_nor_sends_its_head(run):
    task, hooks = run("fedbabu_prompts")
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert row.bytes_up == row.bytes_down == 3 * 4 * task.options.prompts * 16
    clients = cohort(task, [1, 2], [{}, {}])
    received = stack([{"params": state.server["params"]}] * 2)
    heads = [
        module("fedbabu_prompts").model(task.at(t), received, clients)["head"] for t in (0, 1, 7)
    ]
    assert all(torch.equal(heads[0], head) for head in heads)
    assert torch.equal(heads[0][0], heads[0][1]) and heads[0].abs().sum() > 0
    tuned = hooks.personalize(task=task.at(1), received=received, clients=clients)
    assert changed(tuned["head"], heads[0])
    assert changed(tuned["shared_prompts"], received["params"]["shared_prompts"])


# IFCA, FedEM: float64 references, image by image


def features(task, client, part="train"):
    rows = getattr(task.data, part)[client]
    return task.data.tokens(None)[rows].double().numpy(), task.data.store.labels[rows]


def log_likelihood(x, label, head):
    scores = head @ x
    return scores[label] - np.log(np.exp(scores - scores.max()).sum()) - scores.max()


def test_ifca_trains_the_model_of_the_lowest_loss(run):
    task, hooks = run("ifca_heads", clusters=3)
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    heads = start.server["params"]["heads"].double().numpy()
    chosen = {}
    for client in state.clients:
        losses = [
            -sum(log_likelihood(x, y, head) for x, y in zip(*features(task, client), strict=True))
            for head in heads
        ]
        chosen[client] = int(np.argmin(losses))
    assert {k: int(own["cluster"]) for k, own in state.clients.items()} == chosen
    assert {r.client_id: r.metrics["cluster"] for r in row.updates} == chosen, "in clients.parquet"
    for j in range(3):
        old, new = (s.server["params"]["heads"][j] for s in (start, state))
        assert changed(old, new) == (j in chosen.values())


def test_ifca_averages_within_clusters(run):
    task, hooks = run("ifca_heads", clusters=3)
    server = initial_state(task, hooks).server
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(4, 16, generator=generator) for _ in range(3)]
    updates = []
    for client, (head, j) in enumerate(zip(heads, (0, 2, 0), strict=True)):
        sent = update(client, head=head)
        sent.payload["choice"] = torch.eye(3, dtype=torch.int64)[j]
        updates.append(sent)
    after = hooks.aggregate(task=task, server=server, updates=updates)["params"]["heads"]
    torch.testing.assert_close(after[0], (heads[0] + heads[2]) / 2)
    assert not changed(after[1], server["params"]["heads"][1]), "of nobody: as it was"
    torch.testing.assert_close(after[2], heads[1])


def test_fedem_mixes_as_by_hand(run):
    task, hooks = run("fedem_heads", components=3)
    server = initial_state(task, hooks).server
    heads, prior = server["params"]["heads"].double().numpy(), np.array([0.5, 0.3, 0.2])
    ids = [1, 2]
    clients = cohort(task, ids, [{"weights": torch.tensor(prior).float()} for _ in ids])
    received = stack([{"params": server["params"]} for _ in ids])
    found = hooks.personalize(task=task.at(1), received=received, clients=clients)["weights"]
    batch = task.data.batch([task.data.test[k] for k in ids])
    logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    for k, client in enumerate(ids):
        expected = np.zeros(3)
        for x, y in zip(*features(task, client), strict=True):
            joint = prior * np.exp([log_likelihood(x, y, head) for head in heads])
            expected += joint / joint.sum()
        np.testing.assert_allclose(found[k].numpy(), expected / expected.sum(), atol=1e-5)
        x, _ = features(task, client, "test")
        scores = np.einsum("mcd,nd->nmc", heads, x)
        chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        mixed = np.log(np.einsum("m,nmc->nc", prior, chances))
        np.testing.assert_allclose(logits[k][batch.mask[k]].numpy(), mixed, atol=1e-5)


def test_fedem_minimises_the_losses_weighted_by_the_responsibilities(run):
    task, hooks = run("fedem_heads", components=2)
    heads = initial_state(task, hooks).server["params"]["heads"]
    clients = cohort(task, [1], [{"weights": torch.tensor([0.9, 0.1])}])
    batch = task.data.batch([task.data.train[1]])
    received = stack([{"params": {"heads": heads}}])
    moved = {"heads": received["params"]["heads"] + 0.3}
    values = module("fedem_heads").loss(task, moved, received, clients, batch)[0]
    old, new = heads.double().numpy(), (heads + 0.3).double().numpy()
    for value, x, y in zip(values, *features(task, 1), strict=True):
        q = np.array([0.9, 0.1]) * np.exp([log_likelihood(x, y, head) for head in old])
        expected = -(q / q.sum()) @ [log_likelihood(x, y, head) for head in new]
        assert value.item() == pytest.approx(expected, abs=1e-5)


# top-k, Krum, masks, Power-of-Choice


def test_topk_sends_the_largest_changes_and_the_server_adds_them(run):
    task, hooks = run("topk", share=0.2)
    start = initial_state(task, hooks)
    at = replace(task.at(1), selected=(1, 2, 3))
    received = stack(download_to(at, hooks, start, [1, 2, 3])[1])
    clients = cohort(task, [1, 2, 3], [{}] * 3)
    plain = loader.load_hooks(manifest.find_method("head_tuning"))
    whole = plain.client_update(task=at, received=received, clients=clients)
    sent = hooks.client_update(task=at, received=received, clients=clients)
    sent = [replace(update, received={"params": start.server["params"]}) for update in sent]
    got = hooks.receive(task=at, server=start.server, updates=sent)
    old = start.server["params"]["head"].double().numpy().ravel()
    count = math.ceil(0.2 * old.size)
    for one, packed, unpacked in zip(whole, sent, got, strict=True):
        assert packed.payload["sparse"]["head"]["values"].shape == (count,)
        change = one.payload["params"]["head"].double().numpy().ravel() - old
        kept = np.argsort(-np.abs(change))[:count]
        expected = old.copy()
        expected[kept] += change[kept]
        actual = unpacked.payload["params"]["head"].numpy().ravel()
        np.testing.assert_allclose(actual, expected, atol=1e-6)
        assert "sparse" in packed.payload, "the sent update is unchanged"
    _, row = train_round(task.at(1), hooks, start)
    assert row.bytes_up == 3 * count * (4 + 4)


def test_krum_leaves_an_attacker_out(run):
    task, hooks = run("krum_receive", byzantine=1, kept=2)
    points = [[0.0, 0.0], [0.1, 0.0], [0.0, 0.3], [50.0, 50.0], [0.2, 0.1]]
    updates = [update(k, head=torch.tensor(p)) for k, p in enumerate(points)]
    kept = hooks.receive(task=task, server={}, updates=updates)
    # squared distances to the two nearest: 0.05 + 0.01, 0.02 + 0.01, 0.08 + 0.09, ..., 0.02 + 0.05
    assert [u.client for u in kept] == [1, 0]
    assert all(any(u is sent for sent in updates) for u in kept)


def test_krum_refuses_too_few_updates(run):
    task, hooks = run("krum_receive", byzantine=1)
    updates = [update(k, head=torch.zeros(2)) for k in range(4)]
    with pytest.raises(
        FedLoomError, match="krum_receive: 4 updates are too few for byzantine: 1; raise"
    ):
        hooks.receive(task=task, server={}, updates=updates)


@pytest.mark.parametrize(
    ("around", "aggregation"), [("head_tuning", "plain"), ("fedavg_pt", "weighted")]
)
def test_masks_cancel_in_the_mean(run, tiny, around, aggregation):
    """A method's declaration tells the wrapper by which weights the server sums."""
    task, hooks = run("masks", around=around)
    assert task.aggregation == aggregation
    state, _ = train_round(*started(task, hooks))
    plain, _ = train_round(*started(*tiny(around)))
    torch.testing.assert_close(
        state.server["params"]["head"], plain.server["params"]["head"], atol=1e-4, rtol=0
    )


def started(task, hooks):
    return task.at(1), hooks, initial_state(task, hooks)


def uploads(task, hooks, ids):
    at = replace(task.at(1), selected=tuple(ids))
    start = initial_state(task, hooks)
    received = stack(download_to(at, hooks, start, ids)[1])
    clients = cohort(task, ids, [{}] * len(ids))
    updates = hooks.client_update(task=at, received=received, clients=clients)
    return at, [replace(u, client=k) for k, u in zip(ids, updates, strict=True)]


def test_masks_of_lost_clients_are_taken_out(run, tiny):
    task, hooks = run("masks")
    at, sent = uploads(task, hooks, [1, 2, 3, 4])
    _, true = uploads(*tiny("head_tuning"), [1, 2, 3, 4])
    arrived = [sent[0], sent[3]]
    got = hooks.receive(task=at, server={}, updates=arrived)
    total = sum(u.payload["params"]["head"] for u in got)
    expected = sum(true[k].payload["params"]["head"] for k in (0, 3))
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=0)
    assert changed(got[0].payload["params"]["head"], true[0].payload["params"]["head"])


def test_power_of_choice_takes_the_highest_losses_of_the_candidates(run):
    task, hooks = run("power_of_choice", candidates=4)
    losses = {1: 0.3, 2: 0.9, 3: 0.1, 4: 0.5}  # client 5 never trained
    server = initial_state(task, hooks).server
    known = {k: Participation(1, 1, loss) for k, loss in losses.items()}
    left_out = set()
    for number in range(1, 60):
        chosen = select_for_round(task.at(number), hooks, State(server, {}, known))
        out = set(task.data.participating) - set(chosen)
        left_out |= {frozenset(out)}
        # of five clients four are compared: out are one that was not drawn, and the lowest of four
        ranked = sorted(task.data.participating, key=lambda k: losses.get(k, np.inf))
        assert len(chosen) == 3 and (ranked[0] in out or out == set(ranked[:2]))
    assert len(left_out) > 2


def test_power_of_choice_draws_candidates_by_their_images(run):
    task, hooks = run("power_of_choice", candidates=1)
    task = replace(task, clients_per_round=1)
    state = initial_state(task, hooks)
    drawn = [select_for_round(task.at(t), hooks, state)[0] for t in range(1, 1001)]
    images = np.array([len(task.data.train[k]) for k in task.data.participating])
    share = np.array([drawn.count(k) for k in task.data.participating]) / len(drawn)
    assert images.std() > 0
    np.testing.assert_allclose(share, images / images.sum(), atol=4 * 0.5 / 1000**0.5)


# installed


PACKAGE = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "their-methods"
version = "1.0"

[project.entry-points."fedloom.methods"]
fedrep_prompts = "their_methods.fedrep_prompts"
topk = "their_methods.topk"

[tool.setuptools.packages.find]
include = ["their_methods*"]

[tool.setuptools.package-data]
"*" = ["method.toml"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where pip installed two examples as a package, as a third party's; nothing is fetched."""
    folder = tmp_path_factory.mktemp("installed")
    source, site = folder / "source", folder / "site"
    for name in ("fedrep_prompts", "topk"):
        shutil.copytree(EXAMPLES[name], source / "their_methods" / name)
        (source / "their_methods" / name / "__init__.py").touch()
    (source / "their_methods/__init__.py").touch()
    (source / "pyproject.toml").write_text(PACKAGE)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--disable-pip-version-check", "--target", site, source]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site


STUDY = """
study: {name: theirs, rounds: 1, rounds_per_job: 1, seeds: [0], clients_per_round: 2,
        evaluate_every: 1, report: {last_evaluations: 1}}
datasets: {letters: {source: folder, root: ROOT}}
partitions: {two: {scheme: iid, clients: 2}}
methods: {theirs: {plugin: fedrep_prompts, wrappers: [{plugin: topk}]}}
select: {datasets: [letters], partitions: [two], methods: [theirs], tables: [main], figures: []}
"""
RUN = "results/runs/letters/two/micro_vit/theirs/seed0"


def _snakemake(site, folder, *words):
    """Run Snakemake in `folder` on this checkout, with the installed package beside it."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile"]
    command += ["--cores", "1", "--configfile", "study.yaml", *words]
    command += ["--", f"{RUN}/clients.parquet"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "workflow"), str(site)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_installed_package_trains_in_the_workflow_and_its_edits_count(site, tmp_path):
    """From images to a run's rows, by Snakemake; then the package's own __init__.py is edited."""
    image_folder(tmp_path / "letters", ["ant", "bee"], count=8)
    (tmp_path / "study.yaml").write_text(STUDY.replace("ROOT", f"{tmp_path}/letters"))
    _snakemake(site, tmp_path)
    rows = pd.read_parquet(tmp_path / f"{RUN}/clients.parquet")
    assert rows["bytes_up"].tolist() == [8 * math.ceil(0.25 * 4 * 96)] * 2
    file = site / "their_methods/__init__.py"
    file.write_text("FACTOR = 2\n")
    told = _snakemake(site, tmp_path, "-n", "--quiet", "host")
    file.write_text("")
    planned = re.findall(r"^(dataset|partition|train) +\d+$", told, re.MULTILINE)
    assert set(planned) == {"train"}
