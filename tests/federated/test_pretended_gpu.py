"""Every method on tensors that say that they are on a GPU: see `pretended_gpu`."""

from dataclasses import replace
from threading import get_ident

import pytest
import torch

from changed_task import with_training
from fedloom.backbones.resnet import FrozenResNet, SmallResNet
from fedloom.backbones.vit import FrozenViT
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import leaves
from fedloom.contract.tiny import tiny_task, tiny_vit
from fedloom.federated.augmentation import AugmentedImages
from fedloom.federated.evaluate import compute_artefact, evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from on_device import on_device
from pretended_gpu import CUDA, OnGPU, pretended_gpu
from three_blocks import DEEP

METHODS = sorted(name for name, m in manifest.discover_methods().items() if m.kind == "method")
WRAPPERS = sorted(name for name, m in manifest.discover_methods().items() if m.kind == "wrapper")
TABLES = [(name, table) for name in METHODS for table in manifest.find_method(name).artefacts]
FEWER = {  # steps of the server
    "creff": {"features": 2, "matching_steps": 2, "retraining_epochs": 2},
    "fedic": {"server_steps": 2},
}
RELEASED = {"variant": "released"}
CASES = [
    *((name, FEWER.get(name, {})) for name in METHODS),
    *(("fedpha", RELEASED), ("pfpt", RELEASED)),
]
IMAGES = 120 * 16 * 16  # bytes of the tiny task's images
# these methods ask now and then whether an iteration has settled, or for the longest context
ASKING = ("fedotp", "fedpha", "pfpt")


def _on_gpu(name, folder, backbone=None, around=(), **options):
    """Return a method's tiny task on the GPU, and its hooks."""
    method = manifest.find_method(name)
    if backbone is None and method.family == "vit" and name not in DEEP:
        backbone = tiny_vit(depth=2)
    task = tiny_task(method, folder, wrappers=around, backbone=backbone, **options)
    return on_device(task, CUDA), loader.load_hooks(method, wrappers=around)


def _steps(task, number):
    task = with_training(task, local_steps=number)
    return task


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_method_computes_on_the_gpu_alone(tmp_path, name, options):
    """Two rounds and an evaluation upload images once; a second step adds no wait to a round."""
    with pretended_gpu() as gpu:
        task, hooks = _on_gpu(name, tmp_path, **options)
        state, _ = train_round(_steps(task, 2).at(1), hooks, initial_state(task, hooks))
        waits = []
        for number in (1, 2):
            before = gpu.waits
            after, _ = train_round(_steps(task, number).at(2), hooks, state)
            waits.append(gpu.waits - before)
        evaluate(task.at(2), hooks, after, global_test=True)
        server = [v for _, v in leaves(after.server) if isinstance(v, torch.Tensor)]
        own = [v for _, v in leaves(after.tree()["clients"]) if isinstance(v, torch.Tensor)]
    assert all(isinstance(value, OnGPU) for value in server)
    assert not any(isinstance(value, OnGPU) for value in own), "a client's state is on the host"
    assert gpu.uploads.count(IMAGES) == (0 if task.declared.features_only else 1)
    if name not in ASKING or (not options and name == "fedpha"):
        assert waits[0] == waits[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_computes_on_the_gpu_alone(tmp_path, name):
    """There are two rounds, because some wrappers keep what they did to the first update."""
    around = manifest.find_method(name)
    method = "pep_fedpt" if name == "dp_laplace" else "head_tuning"  # dp_laplace needs prototypes
    with pretended_gpu():
        task, hooks = _on_gpu(method, tmp_path, around=(around,))
        state = initial_state(task, hooks)
        for number in (1, 2):
            state, _ = train_round(_steps(task, 1).at(number), hooks, state)
        evaluate(task.at(2), hooks, state)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "table"), TABLES)
def test_an_artefact_is_computed_on_the_gpu_alone(tmp_path, name, table):
    options = manifest.find_method(name).artefacts[table].options
    with pretended_gpu():
        task, hooks = _on_gpu(name, tmp_path, **options)
        state, _ = train_round(_steps(task, 1).at(1), hooks, initial_state(task, hooks))
        compute_artefact(task.at(1), hooks, state, table)


@pytest.mark.parametrize("statistics", ["averaged", "kept", "frozen"])
def test_a_resnet_computes_on_the_gpu_alone(tmp_path, statistics):
    with pretended_gpu():
        task, hooks = _on_gpu("fedavg", tmp_path, statistics=statistics)
        task = replace(task, backbone=FrozenResNet(SmallResNet(1), 16, CUDA))
        task = with_training(task, clip=None)
        state, _ = train_round(_steps(task, 1).at(1), hooks, initial_state(task, hooks))
        evaluate(task.at(1), hooks, state, global_test=True)


def test_its_numbers_are_those_of_the_cpu(tmp_path, tiny):
    task, hooks = tiny("fedvpt")
    state, here = train_round(_steps(task, 2).at(1), hooks, initial_state(task, hooks))
    rows = evaluate(task.at(1), hooks, state)
    with pretended_gpu():
        task, hooks = _on_gpu("fedvpt", tmp_path, tiny_vit())
        state, there = train_round(_steps(task, 2).at(1), hooks, initial_state(task, hooks))
        assert there.train_loss == pytest.approx(here.train_loss, rel=1e-6)
        assert evaluate(task.at(1), hooks, state) == rows


@pytest.mark.parametrize("augment", [True, "shift"])
def test_augmented_images_are_drawn_ahead_of_a_step_and_as_on_a_cpu(
    tmp_path, tiny, monkeypatch, augment
):
    task, hooks = tiny("fedvpt")
    task = with_training(task, augment=augment)
    _, here = train_round(_steps(task, 3).at(1), hooks, initial_state(task, hooks))
    threads = []
    read = AugmentedImages.read
    monkeypatch.setattr(
        AugmentedImages, "read", lambda own, b: threads.append(get_ident()) or read(own, b)
    )
    with pretended_gpu():
        task, hooks = _on_gpu("fedvpt", tmp_path, tiny_vit())
        task = with_training(task, augment=augment)
        _, there = train_round(_steps(task, 3).at(1), hooks, initial_state(task, hooks))
    assert there.train_loss == pytest.approx(here.train_loss, rel=1e-6)
    assert [thread == get_ident() for thread in threads] == [True, False, False]


def test_a_tensor_left_on_the_cpu_is_seen(tmp_path):
    with pretended_gpu():
        task, hooks = _on_gpu("fedvpt", tmp_path)
        task = replace(task, data=replace(task.data, labels=task.data.labels.cpu()))
        with pytest.raises(FedLoomError, match="index: expected all tensors on one device"):
            train_round(task.at(1), hooks, initial_state(task, hooks))


def test_a_generator_of_the_cpu_is_seen(tmp_path, monkeypatch):
    def drawn(vit, count, generator):
        return torch.rand(count, vit.width, generator=generator, device=vit.device)

    monkeypatch.setattr(FrozenViT, "init_prompts", drawn)
    with pretended_gpu():
        task, hooks = _on_gpu("fedvpt", tmp_path)
        with pytest.raises(FedLoomError, match="'cuda' device type for generator"):
            initial_state(task, hooks)


def test_numpy_reads_no_tensor_of_a_gpu():
    with pretended_gpu():
        tensor = torch.ones(2, device=CUDA)
        with pytest.raises(TypeError, match="cuda:0"):
            tensor.numpy()
        assert tensor.cpu().numpy().sum() == 2


def test_a_download_waits_once_however_many_clients_there_are(tmp_path):
    with pretended_gpu() as gpu:
        task, hooks = _on_gpu("pfedmoap", tmp_path)
        server = initial_state(task, hooks).server
        server = {**server, "known": torch.ones_like(server["known"])}
        before = gpu.waits
        hooks.download(task=task.at(1), server=server, client=2)
        assert gpu.waits == before + 1
