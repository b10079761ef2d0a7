"""A run's task and hooks from the files of its labels."""

import shutil
from dataclasses import asdict, replace

import pytest
import safetensors.torch
import torch

from fedloom.backbones import cache
from fedloom.backbones.backbone import load_backbone
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt, write_receipt
from fedloom.common.trees import leaves
from fedloom.config.settings import LIBRARIES, Wrapper
from fedloom.contract.tiny import tiny_job, tiny_task
from fedloom.federated import build_task
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import TrainingOptions, WarmStart
from fedloom.hooks import loader, manifest
from fedloom.hooks.training_options import DEFAULTS, Training
from fedloom.planning import paths
from fedloom.planning.job_specs import MethodSpec

CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return files(name, wrapper), which makes a tiny task, its hooks and a spec.

    The files that the spec names hold the same as the task.
    """

    def make(name, wrapper=None):
        method = manifest.find_method(name)
        around = () if wrapper is None else (manifest.find_method(wrapper, role="wrapper"),)
        task = tiny_task(method, tmp_path, around)
        spec = tiny_job(method).spec
        wrappers = tuple(Wrapper(w.name, w.complete_options({})) for w in around)
        training = {
            key: value for key, value in asdict(task.training).items() if key != "schedule_rounds"
        }
        known = MethodSpec(name, vars(task.options), training, wrappers, method.needs)
        spec = replace(spec, method=known, schedule_rounds=4)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(build_task, "load_backbone", lambda *known: task.backbone)
        for file, pattern in (
            ("images.arrow", paths.STORE),
            ("partition.parquet", paths.PARTITION),
        ):
            path = paths.path_for(pattern, spec.run)
            path.parent.mkdir(parents=True)
            shutil.copy(tmp_path / file, path)
            facts = read_receipt(tmp_path / file) if pattern == paths.STORE else {}
            write_receipt(path, **(facts | {"classes": list(task.data.classes)}))
        for needed in {"features", "patches"} & set(method.needs):
            path = paths.path_for(paths.CACHE, spec.run, cache=needed)
            cache.write_cache(task.backbone, task.data.store, needed, path)
            write_receipt(path)
        if "patches" in method.needs:  # a cache holds them in half precision
            patches = task.data.patches().half()
            task.data.patches = lambda: patches
        if "prototypes" in method.needs:
            path = paths.path_for(paths.PROTOTYPES, spec.run)
            tensor_files.save(path, vars(task.warm_start))
            write_receipt(path)
        return task, loader.load_hooks(method, wrappers=list(around)), spec

    return make


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [("pep_fedpt", "dp_laplace"), ("head_tuning", None), ("promptfl", None), ("fedotp", None)],
)
def test_a_task_made_of_files_trains_as_the_task_that_they_are_of(files, name, wrapper):
    """Data, caches and prototypes come from files; options, wrappers and training from the spec."""
    task, hooks, spec = files(name, wrapper)
    made, own = _built(spec)
    same = "seed", "options", "training", "wrappers", "clients_per_round", "declared"
    for field in same:
        assert getattr(made, field) == getattr(task, field), field
    states = [
        train_round(t.at(1), h, initial_state(t, h))[0] for t, h in ((task, hooks), (made, own))
    ]
    expected, found = (dict(leaves(state.tree())) for state in states)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        torch.testing.assert_close(
            found[path], value, atol=1e-6, rtol=1e-6, msg=lambda m, p=path: f"{p}: {m}"
        )


def _built(spec):
    return build_task.build_task(spec, paths.run_inputs(spec.run, spec.method.needs), CPU)


def addresses(value):
    """Return the addresses of a value's floating-point tensors, modulo 64 bytes."""
    tensors = vars(value).values() if isinstance(value, WarmStart) else [value]
    return {tensor.data_ptr() % 64 for tensor in tensors if tensor.is_floating_point()}


@pytest.mark.parametrize("name", ["pep_fedpt", "sgpt", "fedotp"])
def test_what_files_give_to_arithmetic_lies_as_if_it_were_made(files, name):
    """Prototypes and priors lie in memory, and the batch's rows of features and patches.

    The other rows stay on disk.
    """
    *_, spec = files(name)
    task, _ = _built(spec)
    batch = task.data.batch([rows[:3] for rows in task.data.train[1:4]])
    found = {"priors": task.data.priors}
    found |= {"prototypes": task.prototypes} if "prototypes" in spec.method.needs else {}
    if "features" in spec.method.needs:
        found |= {"features": batch.features, "block": batch.class_tokens(1)}
    found |= {"patches": batch.patches} if "patches" in spec.method.needs else {}
    assert len(found) > 1
    assert {key: addresses(value) for key, value in found.items()} == {key: {0} for key in found}


@pytest.mark.parametrize("family", ["vit", "clip"])
def test_weights_of_a_file_lie_as_if_they_were_made(family):
    settings = {
        "name": f"micro_{family}",
        "weights": f"workflow/resources/micro_{family}.safetensors",
    }
    weights = load_backbone(LIBRARIES[family], settings).model.state_dict()
    assert all(addresses(value) <= {0} for value in weights.values())


@pytest.mark.parametrize("pattern", [paths.STORE, paths.PARTITION, paths.CACHE])
def test_an_input_that_was_changed_is_named(files, pattern):
    *_, spec = files("promptfl")
    path = paths.path_for(pattern, spec.run, cache="features")
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FedLoomError, match=f"^{path}: not what its receipt"):
        _built(spec)


def test_a_cohort_is_at_most_all_participating_clients(files):
    task, _, spec = files("head_tuning")
    clients = len(task.data.participating)
    made, _ = _built(replace(spec, clients_per_round=clients))
    assert made.clients_per_round == clients
    line = f"^study.clients_per_round: must be at most {clients}, the participating"
    with pytest.raises(FedLoomError, match=line):
        _built(replace(spec, clients_per_round=clients + 1))


def test_class_tokens_are_those_at_the_input_of_the_block_that_is_asked_for(tmp_path):
    """Blocks count from 1, and the file is not needed again for a block that was read."""
    # [N, M, d] and [N, d]
    inputs = torch.arange(24.0).view(4, 3, 2)
    final = torch.randn(4, 2)
    safetensors.torch.save_file({"inputs": inputs, "final": final}, tmp_path / "x")
    tokens = build_task.cached_tokens(tmp_path / "x", CPU)
    for block in (1, 2, 3):
        assert torch.equal(tokens(block), inputs[:, block - 1])
    assert torch.equal(tokens(None), final)
    (tmp_path / "x").unlink()
    assert torch.equal(tokens(1), inputs[:, 0])


def test_training_options_are_those_of_a_study_with_their_defaults():
    """The options also have the schedule's number of rounds, for which a method must ask."""
    known = TrainingOptions(optimizer="adam", lr=0.1, schedule="cosine", epochs=2, batch_size=8)
    assert asdict(known).keys() - {"schedule_rounds"} == Training.model_fields.keys()
    for name, default in DEFAULTS.items():
        found = getattr(known, name)
        assert (list(found) if name == "betas" else found) == default, name
    with pytest.raises(FedLoomError, match=r"reads task.training.rounds, .* add uses_rounds"):
        print(known.rounds)
    assert replace(known, schedule_rounds=7).rounds == 7
