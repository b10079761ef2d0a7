"""How many clients and images are in flight at once, by what they take."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from changed_task import with_facts, with_limits, with_training
from fedloom.backbones.resnet import FrozenResNet
from fedloom.backbones.vit import FrozenViT
from fedloom.common.trees import leaves
from fedloom.federated import groups
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.machine import memory

PROMPTS = {"prompts": torch.zeros(4, 16)}


def test_groups_are_few_and_of_equal_size():
    assert groups.equal_groups(10, 7) == [range(5), range(5, 10)]
    assert groups.equal_groups(10, 4) == [range(4), range(4, 7), range(7, 10)]
    assert groups.equal_groups(3, 256) == [range(3)]


@pytest.mark.parametrize(
    ("sizes", "width", "expected"),
    [
        ([1, 1, 2, 2, 3, 9, 20], 99, [4, 1, 1, 1]),  # a fifth client of 3 would make 15
        ([1, 1, 2, 2, 3, 9, 20], 2, [2, 2, 1, 1, 1]),
        ([10, 10], 99, [1, 1]),
        ([3] * 7, 99, [3, 3, 1]),
        ([0, 0, 0], 99, [3]),
        ([], 99, []),
    ],
)
def test_a_cohort_has_as_many_clients_as_one_batch_holds_the_images_of(sizes, width, expected):
    parts = groups.groups_by_images(sizes, width, images=10)
    assert [len(part) for part in parts] == expected
    assert [k for part in parts for k in part] == list(range(len(sizes)))


def test_clients_train_at_once_whose_images_fit_the_caches_of_a_cpu(tiny):
    task, _ = tiny("fedvpt")  # batches of 4 images, of 5 tokens of 16 floats
    assert task.backbone.image_floats == 5 * 16
    task = with_limits(task, floats=3 * 4 * 5 * 16)
    assert groups.clients_trained_at_once(task, PROMPTS) == 3
    parts = with_training(task, micro_batch=2)
    assert groups.clients_trained_at_once(parts, PROMPTS) == 6, "half a batch is in flight"
    from_caches = with_facts(task, forward_inputs=())
    assert groups.clients_trained_at_once(from_caches, PROMPTS) > 1000, "caches alone"
    assert groups.clients_trained_at_once(with_facts(task, stacked=False), PROMPTS) == 1
    assert groups.clients_trained_at_once(with_limits(task, floats=1), PROMPTS) == 1, "at least one"


def _on_gpu(task, monkeypatch, bytes_of_gpu=80e9):
    """Return the task on a GPU with this memory, which the machine need not have."""
    known = SimpleNamespace(total_memory=bytes_of_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    return replace(task, data=replace(task.data, device=torch.device("cuda")))


def _besides(task):
    """Return the bytes of weights and of three clients' prompts: five copies and their uploads."""
    weights = sum(value.numel() * 4 for value in task.backbone.model.parameters())
    return weights + (5 + 1) * 3 * 4 * 16 * 4


def test_activations_of_a_group_fit_half_of_the_free_memory_of_a_gpu(tiny, monkeypatch):
    task, _ = tiny("fedvpt")  # batches of 4 images, of 5 tokens of 16 floats, in twelve blocks
    client = 4 * (12 * (5 + 1) * 16 * 11) * 4  # 11 numbers of 4 bytes per token, prompts included
    images = 120 * 16 * 16  # all images stay on the GPU
    whole = _besides(task) + images + 2 * 3 * client

    def at_once(bytes_of_gpu, *states, task=task):
        return groups.clients_trained_at_once(
            _on_gpu(task, monkeypatch, bytes_of_gpu), PROMPTS, *states
        )

    assert (at_once(whole), at_once(whole - 1)) == (3, 2)
    assert at_once(client) == 1, "at least one"
    assert at_once(80e9) > 1000
    frozen = at_once(1e8)
    assert frozen // 2 < at_once(1e8, task=with_facts(task, trains_weights=True)) < frozen
    half = replace(task, backbone=FrozenViT(task.backbone.model, precision="bf16"))
    assert at_once(1e8, task=half) == pytest.approx(frozen * 11 / 8, abs=2)


def test_images_stay_on_a_gpu_of_twice_their_size():
    assert memory.stays_on_gpu(5, 10) and not memory.stays_on_gpu(6, 10)
    left = memory.free_activation_bytes(100, weights=10, states=5, images=50)
    assert left == memory.ACTIVATION_SHARE * 35
    left = memory.free_activation_bytes(100, weights=10, states=5, images=51)
    assert left == memory.ACTIVATION_SHARE * 85
    assert memory.free_activation_bytes(10, weights=10, states=5, images=0) == 0


def test_prompts_before_all_classes_take_their_part_of_a_gpu(tiny, monkeypatch):
    task, _ = tiny("promptfl")
    client = 11 * 4 * task.backbone.text_floats(task.data.classes)
    whole = _besides(task) + 2 * 3 * client
    assert groups.clients_trained_at_once(_on_gpu(task, monkeypatch, whole), PROMPTS) == 3


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "vit_small_patch16_dinov3", "vit_small_plus_patch16_dinov3",
     "eva02_tiny_patch14_224", "aimv2_large_patch14_224", "resnet50"],
)  # fmt: skip
def test_bytes_that_training_keeps_of_an_image_are_those_of_a_backward_pass(name):
    """The estimate is at least the bytes that torch saves, and at most a fifth more."""
    size = {} if name == "resnet50" else {"img_size": 224}
    network = timm.create_model(name, num_classes=0, **size).eval()
    backbone = FrozenViT(network) if size else FrozenResNet(network, 224)
    network.requires_grad_(name == "resnet50")  # a ViT trains prompts, not weights
    weights = {value.untyped_storage().data_ptr() for value in network.parameters()}
    saved = {}

    def note(value):
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return value

    image = torch.rand(1, 3, 224, 224, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        features = network(image)
    assert features.requires_grad
    assert sum(saved.values()) <= backbone.training_bytes <= 1.2 * sum(saved.values())


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize(("prompts", "trains"), [(1, False), (50, False), (0, True)])
def test_bytes_that_wait_follow_precision_prompts_and_trained_weights(precision, prompts, trains):
    """The estimate is at least the bytes that torch saves, and at most 35 % more."""
    sizes = {"img_size": 224, "patch_size": 16, "embed_dim": 128, "depth": 6, "num_heads": 2}
    vit = FrozenViT(VisionTransformer(**sizes, num_classes=0), precision=precision)
    own = {name: value[None].clone().requires_grad_() for name, value in vit.init_weights().items()}
    context = torch.randn(1, prompts, 128, requires_grad=True)

    def kept(images):
        saved = {}
        batch = torch.zeros(1, images, 224, 224, 3, dtype=torch.uint8)

        def note(value):
            storage = value.untyped_storage()
            saved[storage.data_ptr()] = storage  # keep it, so that no other has its address
            return value

        with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            if trains:
                out = vit.forward(batch, vit.init_head(4)[None], weights=own)
            else:
                out = vit.forward_prompted(batch, context, vit.init_head(4)[None])
        assert out.requires_grad
        return sum(storage.nbytes() for storage in saved.values())

    measured = kept(3) - kept(2)  # the difference has no weights, which may be cast
    step = memory.ClientStep(
        *(0, 1, vit.image_floats, vit.training_bytes),
        prompt_floats=prompts * 128,
        trains_weights=trains,
    )
    assert measured <= step.kept <= 1.35 * measured


@pytest.mark.parametrize(
    ("name", "options"),
    [("pfpt", {"variant": "released"}), ("sgpt", {"variant": "released", "frequency": True})],
)
def test_clients_that_depend_on_each_other_train_as_one_cohort_of_any_size(tiny, name, options):
    """In round 2, each client starts from the one before it, so a cohort must not be cut in two."""
    task, hooks = tiny(name, **options)
    assert task.declared.whole_cohorts
    ends = []
    for size in (2**28, 10):
        task = with_limits(task, state_bytes=size)
        state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
        ends.append(train_round(task.at(2), hooks, state))
    (whole, row), (small, other) = ends
    assert row.train_loss == other.train_loss
    for (path, value), (_, again) in zip(leaves(whole.server), leaves(small.server), strict=True):
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(again)), path


def test_clients_train_at_once_whose_prompts_for_all_classes_fit(tiny):
    task, _ = tiny("promptfl")
    width = task.backbone.width
    depth = task.backbone.text_depth
    tokens = 0
    for name in task.data.classes:
        tokens += len(task.backbone._text.ids(f"{name}.")) + 1  # one for the EOT
    task = with_limits(task, text_floats=3 * tokens * width * depth)
    assert groups.clients_trained_at_once(task, PROMPTS) == 3
    assert groups.clients_evaluated_at_once(task, State({"params": PROMPTS})) == 3
    task = with_limits(task, floats=6 * 4 * task.backbone.image_floats)
    both = with_facts(task, forward_inputs=("images", "texts"))
    assert groups.clients_trained_at_once(both, PROMPTS) == 2, (
        "a third for texts, a sixth for images"
    )


def test_images_are_evaluated_at_once_that_fit_the_caches_of_a_cpu(tiny):
    task, _ = tiny("fedvpt")
    assert groups.images_per_pass(with_limits(task, floats=50 * 5 * 16)) == 50
    task = with_limits(task, floats=5 * 16)
    assert groups.images_per_pass(task) == memory.MIN_IMAGES_PER_PASS
    assert groups.images_per_pass(with_facts(task, features_only=True)) == 4096


def test_groups_of_clients_train_and_are_evaluated_as_all_at_once(tiny):
    task, hooks = tiny("pep_fedpt")
    ends = []
    for floats in (2**17, 2 * 4 * 5 * 16):
        task = with_limits(task, floats=floats)
        state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
        ends.append((state.server["params"], row.train_loss, evaluate(task, hooks, state)))
    (whole, loss, rows), (split, again, others) = ends
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, atol=1e-5, rtol=1e-5)
    assert again == pytest.approx(loss, rel=1e-5)
    assert [r.client_id for r in rows] == [r.client_id for r in others] == list(range(6))
    assert [r.loss for r in others] == pytest.approx([r.loss for r in rows], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ifca", {"head": "drawn"}),
        ("per_fedavg", {}),
        ("creff", {}),
        ("fedem", {}),
        ("pep_fedpt", {}),
        ("fedavg_pt", {"selection": True}),
    ],
)
def test_a_clients_images_count_alike_in_one_batch_and_in_several(tiny, name, options):
    """Losses, gradients, means and votes count all images of a client, not its last batch alone."""
    task, hooks = tiny(name, **options)
    task = with_training(task, epochs=1)
    ends = []
    for images in (256, 2 * task.data.num_clients):
        task = with_limits(task, images=images, features=images)
        state = initial_state(task, hooks)
        for number in (1, 2):
            state, _ = train_round(task.at(number), hooks, state)
        rows = evaluate(task.at(2), hooks, state)
        ends.append((dict(leaves(state.tree())), [row.loss for row in rows]))
    (whole, losses), (split, others) = ends
    assert others == pytest.approx(losses, rel=1e-4)
    for path, value in whole.items():
        torch.testing.assert_close(split[path], value, atol=1e-4, rtol=1e-4)
