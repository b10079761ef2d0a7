"""The images on which trials are trained and compared."""

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.common.errors import FedLoomError
from fedloom.data.client_draws import validation_split
from fedloom.data.store import ImageStore
from fedloom.jobs import (
    cache_job,
)
from fedloom.planning import paths
from partitioned import make
from tuning_cases import labels_of, make_letters, tune_study


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Return a folder with the dataset, the partitions and the features of `settings_of`."""
    return make_letters(tmp_path_factory)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=120),
    st.floats(0.05, 0.9),
    st.integers(0, 3),
)
def test_a_share_of_every_client_is_held_back_and_every_class_keeps_an_image(pairs, share, seed):
    owner, labels = np.array(pairs).T
    counts = np.zeros((4, 6), int)
    np.add.at(counts, (owner, labels), 1)
    present = counts[counts.sum(1) > 0]
    if (present.max(1) < 2).any():
        with pytest.raises(FedLoomError, match="no two images of one class"):
            validation_split(labels, owner, share, seed)
        return
    held = validation_split(labels, owner, share, seed)
    taken = np.zeros_like(counts)
    np.add.at(taken, (owner[held], labels[held]), 1)
    assert (taken <= np.maximum(counts - 1, 0)).all()
    for k in np.flatnonzero(counts.sum(1)):
        assert taken[k].sum() >= 1
        wanted = np.minimum(np.abs(share * counts[k]), np.maximum(counts[k] - 1, 0))
        assert (np.abs(taken[k] - wanted) <= 1).all() or taken[k].sum() == 1


def test_trials_see_no_test_image_and_the_clients_are_the_same():
    spec = {"scheme": "dirichlet", "kind": "client", "clients": 6, "alpha": 1.0, "held_out": 0.2}
    whole = make(spec)
    part = make(spec | {"validation": 0.2})
    was_test = whole["test"].to_numpy()
    client = part["client_id"].to_numpy()
    assert (client[was_test] == -1).all() and not part["test"].to_numpy()[was_test].any()
    assert not part["participating"].to_numpy()[was_test].any()
    training = ~was_test
    for column in ("client_id", "participating"):
        assert (
            part[column].to_numpy()[training].tolist()
            == whole[column].to_numpy()[training].tolist()
        )
    share = part["test"].to_numpy()[training].mean()
    assert 0.15 < share < 0.2 + 0.02


@pytest.mark.parametrize("method", ["head_tuning", "pep_fedpt"])
def test_no_test_image_bears_on_a_choice(method, letters, tmp_path, monkeypatch):
    """Trials and choice have the same bytes where all test images are replaced by noise.

    One method reads cached features, the other pixels and prototypes.
    """
    for name in ("as_it_is", "replaced"):
        shutil.copytree(letters, tmp_path / name)
    plan, states, choice = tune_study(tmp_path / "as_it_is", method, monkeypatch)
    features = paths.path_for(paths.CACHE, **vars(labels_of(method, cache="features")))
    before = features.read_bytes()

    images = ImageStore.images
    noise = np.random.default_rng(0)

    def with_noise(store, rows):
        pixels = np.array(images(store, rows))
        pixels[store.test[rows]] = noise.integers(0, 256, pixels[store.test[rows]].shape)
        return pixels

    monkeypatch.setattr(ImageStore, "images", with_noise)
    monkeypatch.chdir(tmp_path / "replaced")
    cache_job.run_job(plan.job("cache", labels_of(method, cache="features")), 1)
    assert features.read_bytes() != before, "test images are in the cache"
    assert tune_study(tmp_path / "replaced", method, monkeypatch)[1:] == (states, choice)
