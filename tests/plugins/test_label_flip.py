"""Label flips: whose labels are changed, and who trains on them."""

import numpy as np
import pytest
import torch

from attacks import IDS, attacked_runs, heads, uploads
from fedloom.hooks import loader, manifest
from fedloom.toolbox import draw_attackers


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which two of five clients attack."""
    return attacked_runs(tmp_path)


@pytest.mark.parametrize("flip", ["opposite", "next"])
def test_attackers_alone_train_on_other_classes_and_have_their_priors(run, flip):
    task, hooks = run("label_flip", flip=flip)
    true = task.data.labels.clone()
    data = hooks.training_data(task=task)
    flipped = {"opposite": [3, 2, 1, 0], "next": [1, 2, 3, 0]}[flip]
    for k in range(6):
        rows = task.data.train[k]
        attacks = k in draw_attackers(task, 0.4)
        expected = [flipped[c] if attacks else c for c in true[rows].tolist()]
        assert data.labels[rows].tolist() == expected
        counts = np.bincount(expected, minlength=4) / len(rows)
        np.testing.assert_allclose(data.priors[k].numpy(), counts, atol=1e-6)
        assert torch.equal(data.labels[task.data.test[k]], true[task.data.test[k]])
    assert torch.equal(task.data.labels, true), "the data as they are stay so"


def test_the_cohort_trains_on_the_poisoned_data(run):
    task, hooks = run("label_flip")
    honest = heads(task, loader.load_hooks(manifest.find_method("head_tuning")))
    poisoned = heads(task, hooks)
    changed = {k for k in IDS if not torch.equal(honest[k], poisoned[k])}
    assert changed == set(draw_attackers(task, 0.4))
    seen = []

    class Watched:
        def __getattr__(self, name):
            def call(**arguments):
                seen.extend([arguments["clients"].priors] if name == "client_update" else [])
                return getattr(hooks, name)(**arguments)

            return call

    uploads(task, Watched())
    assert torch.equal(seen[0], hooks.training_data(task=task).priors[IDS])
