"""Attacks and audits of streams: what stays as it is when other images arrive."""

import numpy as np
import pytest
import torch

from fedloom.contract.tiny import tiny_task
from fedloom.hooks import loader, manifest

CLASSES_ARRIVE = {"of": "classes", "at": [3, 5]}


CLIENTS_ARRIVE = {"of": "clients", "at": [2], "keep": False}


ATTACKS = {"label_flip": {"flip": "next"}, "backdoor": {"target": 2, "poisoned": 0.5}, "audit": {}}


ROUNDS = (1, 3, 5)  # another part of the classes is the newest in each of these rounds


@pytest.fixture
def stream(tmp_path):
    """Return stream(wrapper, arrivals): a task and hooks of PEP-FedPT, which reads priors."""

    def make(name, arrivals):
        method = manifest.find_method("pep_fedpt")
        wrapper = manifest.find_method(name)
        partition = {"scheme": "iid", "clients": 6, "held_out": 0, "arrivals": arrivals}
        task = tiny_task(method, tmp_path, (wrapper,), partition=partition)
        vars(task.wrappers[name]).update(ATTACKS[name])
        return task, loader.load_hooks(method, wrappers=[wrapper])

    return make


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["label_flip", "backdoor"])
def test_honest_clients_train_with_the_priors_that_they_are_evaluated_with(stream, name, keep):
    task, hooks = stream(name, CLASSES_ARRIVE | {"keep": keep})
    honest = [k for k in range(6) if k not in hooks.attackers(task=task)]
    for number in ROUNDS:
        evaluated = task.at(number)
        trained = hooks.training_data(task=evaluated)
        assert torch.equal(trained.priors[honest], evaluated.data.priors[honest])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ATTACKS)
def test_priors_are_of_all_labels_that_a_client_has_trained_on(stream, name, keep):
    task, hooks = stream(name, CLASSES_ARRIVE | {"keep": keep})
    labels = {k: {} for k in range(6)}  # a label by client and image
    for number in ROUNDS:
        data = hooks.training_data(task=task.at(number))
        for client, rows in enumerate(data.train):
            labels[client] |= zip(rows.tolist(), data.labels[rows].tolist(), strict=True)
            known = [*labels[client].values()]
            shares = np.bincount(known, minlength=task.num_classes) / len(known)
            np.testing.assert_allclose(data.priors[client].numpy(), shares, atol=1e-6)


def test_an_image_that_is_withheld_stays_so_when_others_arrive(stream):
    task, hooks = stream("audit", CLASSES_ARRIVE | {"keep": True})
    first, last = (hooks.training_data(task=task.at(number)) for number in (1, 5))
    for client, rows in enumerate(task.at(1).data.train):
        still = np.intersect1d(last.train[client], rows)
        assert still.tolist() == first.train[client].tolist() != rows.tolist()


def test_an_image_that_is_poisoned_stays_so_when_others_arrive(stream):
    task, hooks = stream("backdoor", CLASSES_ARRIVE | {"keep": True})
    first, last = (hooks.training_data(task=task.at(number)) for number in (1, 5))
    rows = np.concatenate(task.at(1).data.train)
    np.testing.assert_array_equal(last.store.images(rows), first.store.images(rows))
    assert torch.equal(last.labels[rows], first.labels[rows])
    assert not torch.equal(first.labels[rows], task.data.labels[rows])


@pytest.mark.parametrize("name", ATTACKS)
def test_a_client_without_images_has_equal_priors_under_an_attack(stream, name):
    task, hooks = stream(name, CLIENTS_ARRIVE)
    data = hooks.training_data(task=task.at(1))
    absent = [k for k, rows in enumerate(task.at(1).data.train) if not len(rows)]
    assert len(absent) == 3
    assert (data.priors[absent] == 1 / task.num_classes).all()
