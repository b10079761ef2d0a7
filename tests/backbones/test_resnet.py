"""ResNets: torch's own networks and batch norm, client by client, in float64."""

import copy
import sys
from dataclasses import replace

import pytest
import safetensors.torch
import torch
import torchvision
from torch import nn

from changed_task import with_facts, with_training
from fedloom.backbones import resnet
from fedloom.backbones.backbone import load_backbone
from fedloom.backbones.resnet import FrozenResNet, SmallResNet
from fedloom.federated.evaluate import evaluate_globally
from fedloom.federated.round import initial_state, train_round
from fedloom.toolbox import leaves
from first_round import first_cohort
from refusals import refused

K = 2
B = 4
SIZE = 16


def _network():
    """Return a small ResNet with torch's own batch norm, which is moved from its first values."""
    torch.manual_seed(0)
    network = SmallResNet(1).double()
    for name, value in network.state_dict().items():
        if value.dim() == 1:
            value += 0.2 * (torch.rand_like(value) if "var" in name else torch.randn_like(value))
    return network.eval()


def _backbone(network, size=SIZE):
    """Return the adapter of a copy of the network in float64, pixels included."""
    backbone = FrozenResNet(copy.deepcopy(network).float(), size)
    backbone.model.load_state_dict(
        {k: v for k, v in network.state_dict().items() if "tracked" not in k}
    )
    backbone.model.double()
    pixels = backbone.pixels
    backbone.pixels = lambda images: pixels(images).double()
    return backbone


def test_a_large_resnet_has_torchvisions_bits_and_no_operator_per_client(recwarn):
    """torch warns if it must compute an operator client by client, which is slow."""
    entry = {"name": "resnet18", "weights": "none", "image_size": 64}
    backbone = load_backbone("torchvision", entry)
    images = torch.randint(0, 256, (1, 4, 64, 64, 3), dtype=torch.uint8)
    own = {name: value[None] for name, value in backbone.model.named_parameters()}
    with torch.no_grad():
        shared = backbone.features(images)
        features = backbone.features(images, own)
        backbone.model.avgpool = nn.AdaptiveAvgPool2d(1)
        assert torch.equal(backbone.features(images), shared)
        torch.testing.assert_close(features, shared)
        assert not recwarn.list
        assert torch.equal(backbone.features(images, own), features)
    (warning,) = recwarn.list
    assert "batching rule" in str(warning.message), "torch's own pooling"


def _images():
    return torch.randint(0, 256, (K, B, SIZE, SIZE, 3), dtype=torch.uint8)


def _own(backbone, *trees):
    return {
        name: (value + 0.05 * torch.rand(K, *value.shape).double()).requires_grad_()
        for tree in trees
        for name, value in tree.items()
    }


def test_without_weights_features_are_torchvisions():
    network = torchvision.models.resnet18().eval()
    for name, value in network.state_dict().items():
        if value.dim() == 1 and "tracked" not in name:
            value += 0.2 * torch.rand_like(value)
    network.fc = nn.Identity()
    backbone = FrozenResNet(copy.deepcopy(network), 64)
    images = torch.randint(0, 256, (1, 3, 64, 64, 3), dtype=torch.uint8)
    expected = network(backbone.pixels(images[0]))
    torch.testing.assert_close(backbone.features(images)[0], expected, atol=1e-4, rtol=1e-4)
    cached = backbone.compute_cache(images[0], "features")["final"]
    torch.testing.assert_close(cached, expected, atol=1e-4, rtol=1e-4)


def test_clients_with_own_weights_and_statistics_equal_torch_one_by_one():
    network = _network()
    backbone = _backbone(network)
    images = _images()
    head = torch.randn(K, 5, 64).double()
    weights = _own(backbone, backbone.init_weights(), backbone.init_statistics())
    logits = backbone.forward(images, head, weights=weights)
    logits.square().sum().backward()
    for k in range(K):
        alone = copy.deepcopy(network)
        alone.load_state_dict({n: v[k].detach() for n, v in weights.items()}, strict=False)
        expected = alone(backbone.pixels(images[k])) @ head[k].T
        torch.testing.assert_close(logits[k], expected, atol=1e-10, rtol=1e-10)
        expected.square().sum().backward()
        gradient = weights["layer2.0.conv1.weight"].grad[k]
        other = alone.layer2[0].conv1.weight.grad
        torch.testing.assert_close(gradient, other, atol=1e-8, rtol=1e-8)


def test_a_batch_is_normalised_by_its_images_and_not_by_its_padding():
    network = _network()
    backbone = _backbone(network)
    images = _images()
    head = torch.randn(K, 5, 64).double()
    mask = torch.tensor([[True] * B, [True, True, True, False]])
    weights = _own(backbone, backbone.init_weights())
    logits, moments = backbone.forward_batch(images, head, weights, mask)
    counters = {
        name: value + (moments[name] * mask.view(K, B, *[1] * (moments[name].dim() - 2))).sum(1)
        for name, value in backbone.init_counters(K).items()
    }
    statistics = backbone.statistics(counters)
    for k in range(K):
        alone = copy.deepcopy(network).train()
        for module in alone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # torch then takes a cumulative average
                module.reset_running_stats()
        alone.load_state_dict({n: v[k].detach() for n, v in weights.items()}, strict=False)
        expected = alone(backbone.pixels(images[k][mask[k]])) @ head[k].T
        torch.testing.assert_close(logits[k][mask[k]], expected, atol=1e-9, rtol=1e-9)
        state = alone.state_dict()
        assert set(statistics) == {n for n in state if "running" in n}
        pixels = int(mask[k].sum()) * SIZE * SIZE
        for name in ("bn1.running_mean", "bn1.running_var"):
            biased = (pixels - 1) / pixels if "var" in name else 1.0  # torch divides by n - 1
            torch.testing.assert_close(
                statistics[name][k].double(), state[name] * biased, atol=1e-5, rtol=1e-5
            )
    norms = backbone._norms
    assert all(norm.mask is None and not norm.moments for norm in norms), "no state is left"


@pytest.mark.parametrize(
    ("name", "layers", "floats"), [("resnet20", 20, 269_722 - 650), ("resnet32", 32, 464_154 - 650)]
)
def test_the_small_ones_have_the_layers_and_parameters_of_the_paper(name, layers, floats):
    """He et al. (Table 6) state 0.27 and 0.46 million; the 650 of their classifier are left out."""
    backbone = load_backbone("torchvision", {"name": name, "weights": "none"})
    weights = backbone.init_weights()
    assert sum("conv" in n for n in weights) == layers - 1
    assert sum(value.numel() for value in weights.values()) == floats
    assert backbone.width == 64 and backbone.pixels.size == (32, 32)
    again = load_backbone("torchvision", {"name": name, "weights": "none"})
    assert all(
        torch.equal(a, b)
        for a, b in zip(weights.values(), again.init_weights().values(), strict=True)
    )


def test_the_wide_one_is_that_of_creff_and_fedic():
    """CReFF and FEDIC use a ResNet-8 of width 64, 128, 256, with convolutions in the shortcuts."""
    backbone = load_backbone("torchvision", {"name": "resnet8_wide", "weights": "none"})
    weights = backbone.init_weights()
    stem = 3 * 64 * 9 + 2 * 64
    stages = [(64, 64), (64, 128), (128, 256)]
    convolutions = sum(9 * (a + b) * b + 4 * b for a, b in stages)
    shortcuts = sum(a * b + 2 * b for a, b in stages[1:])
    assert sum(value.numel() for value in weights.values()) == stem + convolutions + shortcuts
    assert backbone.width == 256 and backbone.pixels.size == (32, 32)
    torch.manual_seed(0)
    ours = SmallResNet(1, 4).get_submodule("layer2.0").eval()
    projection = nn.Sequential(nn.Conv2d(64, 128, 1, 2, bias=False), nn.BatchNorm2d(128))
    theirs = torchvision.models.resnet.BasicBlock(64, 128, 2, projection).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(ours(x), theirs(x))


def test_weights_from_a_file(tmp_path):
    torch.manual_seed(3)
    network = torchvision.models.resnet18(num_classes=7)
    safetensors.torch.save_file(network.state_dict(), tmp_path / "r.safetensors")
    spec = {"name": "resnet18", "weights": str(tmp_path / "r.safetensors"), "image_size": 32}
    loaded = resnet.load(spec)
    assert torch.equal(loaded.init_weights()["conv1.weight"], network.conv1.weight)
    assert loaded.pixels.size == (32, 32) and loaded.width == 512
    for wrong, words in (
        ({"weights": "hub"}, ["resnet18", "hub", ".safetensors"]),
        ({"name": "resnet34"}, ["resnet34", "r.safetensors", "80 ('layer1.2.conv1.weight"]),
        ({"name": "resnet99"}, ["resnet99", "did you mean"]),
    ):
        with refused(*words):
            resnet.load(spec | wrong)


def _task(tiny, **options):
    task, hooks = tiny("fedavg", **options)
    torch.manual_seed(0)
    backbone = FrozenResNet(SmallResNet(1), 16)
    task = with_training(task, epochs=1, clip=None)
    return replace(task, backbone=backbone), hooks


@pytest.mark.parametrize("statistics", ["averaged", "kept", "frozen"])
def test_fedavg_trains_a_resnet_with_its_statistics_by_name(tiny, statistics):
    task, hooks = _task(tiny, statistics=statistics)
    state = initial_state(task, hooks)
    after, row = train_round(task.at(1), hooks, state)
    one_by_one, _ = train_round(with_facts(task, stacked=False).at(1), hooks, state)
    for (_, a), (_, b) in zip(leaves(after.tree()), leaves(one_by_one.tree()), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    names = set(task.backbone.init_statistics())
    assert ("statistics" in after.server["params"]) is (statistics == "averaged")
    floats = sum(v.numel() for v in task.backbone.init_weights().values()) + 4 * 64
    extra = sum(v.numel() for v in task.backbone.init_statistics().values())
    sent = row.bytes_up / 3 / 4
    assert sent == floats + (extra if statistics == "averaged" else 0)
    for client in after.clients.values():
        assert set(client.get("statistics", {})) == (names if statistics == "kept" else set())
    first = evaluate_globally(task.at(1), hooks, after).loss
    later = after
    for number in range(2, 7):
        later, _ = train_round(task.at(number), hooks, later)
    assert evaluate_globally(task.at(6), hooks, later).loss < first
    given = evaluate_globally(task.at(1), hooks, after)
    assert (given.num_test > sum(map(len, task.data.test))) is (statistics == "kept")


def test_the_servers_statistics_are_the_mean_of_the_clients(tiny):
    task, hooks = _task(tiny, statistics="averaged")
    received, clients, _ = first_cohort(task.at(1), hooks)
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    after = hooks.aggregate(task=task, server={}, updates=updates)["params"]["statistics"]
    total = sum(update.num_examples for update in updates)
    name = "layer1.0.bn2.running_var"
    expected = sum(
        update.num_examples / total * update.payload["params"]["statistics"][name]
        for update in updates
    )
    torch.testing.assert_close(after[name], expected)
    plugin = sys.modules["fedloom_plugins.fedavg.plugin"]
    assert plugin.TRAINED == ("head", "weights"), "statistics are not trained by gradients"
