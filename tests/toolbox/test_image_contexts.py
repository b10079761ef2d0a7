"""Logits of images, each under its own text context: against one text at a time, in float64."""

from copy import deepcopy

import pytest
import torch

import clip_by_hand
import fedloom.toolbox as fl
from changed_task import with_limits
from first_round import first_cohort

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.mark.parametrize(("at_once", "sizes"), [(1, [1] * 4), (3, [3, 1]), (100, [4])])
def test_every_image_is_compared_with_the_texts_of_its_own_context(tiny, at_once, sizes):
    task, hooks = tiny("cocoop")
    _, clients, batch = first_cohort(task, hooks)
    features = batch.features  # [K, B, d']
    names = task.data.classes
    task = with_limits(task, prompts=at_once * len(clients) * len(names))
    generator = torch.Generator().manual_seed(2)
    contexts = 0.5 * torch.randn(*features.shape[:2], 3, task.backbone.width, generator=generator)

    parts = fl.split_images(task, contexts)
    assert [part.shape[1] for part in parts] == sizes
    found = fl.contextual_logits(task, features, parts)
    assert found.shape == (*features.shape[:2], len(names))

    model = deepcopy(task.backbone.model).double()
    for k in range(len(clients)):
        for b in range(features.shape[1]):
            texts = clip_by_hand.features(model, contexts[k, b].double(), names)
            wanted = clip_by_hand.logits(model, features[k, b : b + 1].double(), texts)
            torch.testing.assert_close(found[k, b].double(), wanted[0], **CLOSE)


def test_where_one_image_is_too_many_it_is_encoded_alone(tiny):
    task = with_limits(tiny("cocoop")[0], prompts=1)
    parts = fl.split_images(task, torch.zeros(2, 3, 5))
    assert [part.shape for part in parts] == [(2, 1, 5)] * 3
