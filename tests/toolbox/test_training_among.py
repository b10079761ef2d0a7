"""Losses of clients that train among their own classes: by hand, in float64."""

import math

import pytest
import torch

import fedloom.toolbox as fl

# of two clients and four classes
CLASSES = torch.tensor([[True, False, True, True], [False, True, True, False]])
LABELS = torch.tensor([[0, 2, 3], [1, 2, 2]])


def test_cross_entropy_among_a_clients_classes_knows_no_other_class():
    logits = 3 * torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    found = fl.cross_entropy_among(logits, LABELS, CLASSES)
    assert found.shape == (2, 3)
    for k in range(2):
        for b in range(3):
            scores = logits[k, b].double()
            total = sum(scores[c].exp() for c in range(4) if CLASSES[k, c])
            wanted = total.log() - scores[LABELS[k, b]]
            torch.testing.assert_close(found[k, b].double(), wanted, atol=1e-6, rtol=1e-6)


def test_logits_of_other_classes_get_no_gradient():
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    fl.cross_entropy_among(logits, LABELS, CLASSES).sum().backward()
    others = ~CLASSES[:, None].expand(2, 3, 4)
    assert (logits.grad[others] == 0).all()
    assert (logits.grad[~others] != 0).all()


def test_the_loss_of_a_label_of_another_class_is_infinite():
    labels = torch.tensor([[1, 2, 3], [1, 2, 2]])
    found = fl.cross_entropy_among(torch.zeros(2, 3, 4), labels, CLASSES)
    assert found[0, 0] == math.inf
    assert found.isfinite().sum() == 5


@pytest.mark.parametrize("classes", [2, 3, 7, 100])
def test_the_loss_of_guessing_is_the_logarithm_to_the_bit(classes):
    among = torch.ones(2, classes, dtype=torch.bool)
    among[1, 1:] = False
    assert fl.guessing_losses(among).tolist() == [math.log(classes), 0.0]


def test_equal_logits_have_the_loss_of_guessing():
    found = fl.cross_entropy_among(torch.zeros(2, 3, 4, dtype=torch.float64), LABELS, CLASSES)
    wanted = fl.guessing_losses(CLASSES)[:, None].expand(2, 3)
    torch.testing.assert_close(found, wanted)
