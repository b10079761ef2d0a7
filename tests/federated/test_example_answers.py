"""The artefact `answers`: nine test images, and what clients answer on them."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fedloom.federated import example_answers
from fedloom.federated.round import initial_state, train_round


class _Personal:
    """Hooks of a method whose clients answer with the class and certainty that they keep."""

    def __init__(self, hooks, states=None, personalized=None):
        self._hooks = hooks
        self._states = states
        self._personalized = personalized

    def __getattr__(self, name):
        return getattr(self._hooks, name)

    def unseen_client_state(self, task, client, states, received):
        return {"answer": torch.tensor(self._states[client])}

    def personalize(self, task, received, clients):
        if self._personalized is None:
            return None
        kept = [torch.tensor(self._personalized[client]) for client in clients.ids]
        return {"answer": torch.stack(kept)}

    def predict(self, task, received, clients, batch):
        classes = clients.state["answer"].long()  # [K]
        logits = torch.zeros(*batch.labels.shape, task.num_classes)
        logits[torch.arange(len(classes)), :, classes] = 2.0
        return logits


def test_answers_are_those_of_the_model_after_the_round(tiny):
    """The reference takes the trained head's logits on the cached features, in float64."""
    task, hooks = tiny("head_tuning")
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    rows = example_answers.example_answers(task.at(1), hooks, state)
    assert len(rows) == 9

    head = state.server["params"]["head"].double().numpy()  # [C, d]
    features = task.data.tokens(None).double().numpy()  # [N, d]
    for row in rows:
        exponents = np.exp(features[row.image] @ head.T)
        shares = exponents / exponents.sum()
        assert row.predicted == shares.argmax()
        assert row.probability == pytest.approx(shares.max(), abs=1e-5)
        assert row.label == task.data.store.labels[row.image]
        assert row.image in task.data.test[row.client_id]


def test_a_personalised_client_answers_with_its_personal_model(tiny):
    task, hooks = tiny("head_tuning")
    states = {client: client % 4 for client in range(6)}
    others = {client: (client + 1) % 4 for client in range(6)}
    state = initial_state(task, hooks)
    for personalized, expected in ((None, states), (others, others)):
        personal = _Personal(hooks, states, personalized)
        rows = example_answers.example_answers(task.at(1), personal, state)
        assert {row.client_id: row.predicted for row in rows} == {
            client: expected[client] for client in task.data.participating
        }
        share = np.exp(2) / (np.exp(2) + 3)
        assert [row.probability for row in rows] == pytest.approx([share] * 9, abs=1e-6)


def test_answers_include_what_wrappers_add_to_logits(tiny):
    class Adding(_Personal):
        def answer_offsets(self, task, clients):
            return torch.tensor([0.0, 0, 0, 3]).expand(len(clients), 4)

    task, hooks = tiny("head_tuning")
    adding = Adding(hooks, dict.fromkeys(range(6), 1))
    rows = example_answers.example_answers(task.at(1), adding, initial_state(task, hooks))
    share = np.exp(3) / (np.exp(3) + np.exp(2) + 2)
    assert {row.predicted for row in rows} == {3}
    assert [row.probability for row in rows] == pytest.approx([share] * 9, abs=1e-6)


def test_images_are_spread_over_the_honest_clients_that_train(tiny, monkeypatch):
    """Each client shows one image before one shows two; client 0 is held out."""
    task, hooks = tiny("head_tuning")
    state = initial_state(task, hooks)
    monkeypatch.setattr(example_answers, "attacking_clients", lambda task, hooks: [4])
    rows = example_answers.example_answers(task.at(1), hooks, state)
    counts = np.bincount([row.client_id for row in rows], minlength=6)
    assert counts[[0, 4]].tolist() == [0, 0]
    assert sorted(counts[[1, 2, 3, 5]]) == [2, 2, 2, 3]
    assert len({row.image for row in rows}) == 9


def test_fewer_images_are_shown_if_there_are_not_nine(tiny):
    task, hooks = tiny("head_tuning")
    few = [rows[:1] for rows in task.data.test]
    task = replace(task, data=replace(task.data, test=few))
    rows = example_answers.example_answers(task.at(1), hooks, initial_state(task, hooks))
    shown = sorted(row.image for row in rows)
    assert shown == sorted(int(few[k][0]) for k in (1, 2, 3, 4, 5))


def test_all_methods_of_a_seed_show_the_same_images(tiny):
    def images(name, seed):
        task, hooks = tiny(name)
        task = replace(task, seed=seed)
        rows = example_answers.example_answers(task.at(1), hooks, initial_state(task, hooks))
        return [(row.client_id, row.image) for row in rows]

    assert images("head_tuning", 0) == images("fedvpt", 0) == images("ditto", 0)
    assert images("head_tuning", 0) != images("head_tuning", 1)


def test_predicted_classes_have_the_numbers_of_the_dataset(tiny):
    task, hooks = tiny("head_tuning")
    state = initial_state(task, hooks)
    plain = example_answers.example_answers(task.at(1), hooks, state)
    moved = replace(task, data=replace(task.data, numbers=np.array([10, 11, 12, 13])))
    rows = example_answers.example_answers(moved.at(1), hooks, state)
    assert [row.predicted for row in rows] == [row.predicted + 10 for row in plain]


def test_pictures_are_small_png_files(tiny):
    task, hooks = tiny("head_tuning")
    (row, *_) = example_answers.example_answers(task.at(1), hooks, initial_state(task, hooks))
    with Image.open(io.BytesIO(row.picture)) as picture:
        stored = task.data.store.images(np.array([row.image]))[0]
        assert np.array_equal(np.asarray(picture), stored[..., 0])

    wide = example_answers.as_png(np.zeros((120, 240, 3), np.uint8))
    with Image.open(io.BytesIO(wide)) as picture:
        assert (picture.width, picture.height, picture.mode) == (96, 48, "RGB")
