"""Classes that no client trains on: whose images are whose, who answers them, and the table."""

from dataclasses import replace
from types import SimpleNamespace as Wildcards

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedloom
import one_process
from default_config import default_config
from fedloom.common.files import read_table
from fedloom.common.ids import UNASSIGNED
from fedloom.config.partitions import novel_numbers
from fedloom.data.partition import divide_dataset
from fedloom.federated.answer_counts import AnswerCounts, Score
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.evaluate_test_sets import evaluate_test_sets
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import manifest
from fedloom.hooks.manifest import TEST_SETS
from fedloom.planning import paths, records
from fedloom.planning.load_plan import load_plan, resolve
from fedloom.planning.plan import Plan
from fedloom.report import tables
from partitioned import CLASSES, dataset
from refusals import refused
from shown_runs import draw, filled, shown, table_job

METHODS = [
    name
    for name, plugin in manifest.discover_methods().items()
    if TEST_SETS in plugin.all_artefacts(plugin.complete_options({}))
]
NOVEL = {"scheme": "pathological", "clients": 6, "classes_per_client": 2, "held_out": 0.2}
NOVEL |= {"novel_classes": [1]}


SPEC = {"scheme": "iid", "clients": 4, "held_out": 0.25}
novel_sets = st.sets(st.integers(0, CLASSES - 1), min_size=1, max_size=CLASSES - 2)


@settings(deadline=None, max_examples=10)
@given(novel_sets, st.integers(0, 3))
def test_clients_hold_no_image_of_a_novel_class(novel, seed):
    labels, test, domains = dataset(seed)
    table = divide_dataset(labels, test, domains, SPEC | {"novel_classes": sorted(novel)}, seed)
    owner = table["client_id"].to_numpy()
    unseen = np.isin(labels, sorted(novel))
    assert ((owner == UNASSIGNED) == unseen).all()
    assert not table["participating"].to_numpy()[unseen].any()


@settings(deadline=None, max_examples=10)
@given(novel_sets, st.integers(0, 3))
def test_images_of_other_classes_are_divided_as_without_novel_ones(novel, seed):
    labels, test, domains = dataset(seed)
    table = divide_dataset(labels, test, domains, SPEC | {"novel_classes": sorted(novel)}, seed)
    seen = ~np.isin(labels, sorted(novel))
    alone = divide_dataset(labels[seen], test[seen], domains[seen], SPEC, seed)
    for name in ("client_id", "participating", "test"):
        assert (table[name].to_numpy()[seen] == alone[name].to_numpy()).all()
    assert (table["label"].to_numpy() == labels).all()


def test_the_log_names_base_classes_that_held_out_clients_alone_hold(caplog):
    labels, test, domains = dataset(0)
    spec = {"scheme": "disjoint", "clients": 2, "held_out": 0.5, "rest_to_last": False}
    table = divide_dataset(labels, test, domains, spec | {"novel_classes": [0]}, 0).to_pandas()
    (record,) = caplog.records
    untrained = set(table["label"]) - {0} - set(table["label"][table["participating"]])
    assert "held-out" in record.getMessage() and record.args == (sorted(untrained), 0)


def test_a_share_takes_the_last_classes_as_coops_code_does():
    names = [f"class {number}" for number in range(47)]  # DTD: 24 are base
    assert novel_numbers(0.5, names) == list(range(24, 47))
    assert len(novel_numbers(0.29, [str(number) for number in range(100)])) == 29
    assert novel_numbers(["class 3", "class 0"], names) == [0, 3]


@pytest.mark.parametrize(
    ("novel", "words"),
    [(["clas 3"], ["'clas 3'", "'class 3'"]), (0.1, ["0 of 4"]), (0.8, ["3 of 4"])],
)
def test_a_class_that_is_not_there_and_too_few_or_many_are_refused(novel, words):
    with refused("novel_classes", *words):
        novel_numbers(novel, [f"class {number}" for number in range(4)])


def test_clients_know_the_names_and_numbers_of_base_classes_alone(tiny):
    data = tiny("promptfl", partition=NOVEL)[0].data
    assert data.classes == ("alpha", "gamma", "long delta")
    stored = data.store.labels
    test = data.store.test
    for numbers, federation in (([0, 2, 3], data), ([1], data.unseen["novel"])):
        names = np.array(["alpha", "beta", "gamma", "long delta"])
        assert federation.classes == tuple(names[numbers]) and federation.num_classes == len(
            numbers
        )
        for number, label in zip(stored, federation.labels.tolist(), strict=True):
            assert label == (numbers.index(number) if number in numbers else -1)
    for rows in data.train + data.test:
        assert 1 not in stored[rows]
    for rows in data.unseen["novel"].test:
        np.testing.assert_array_equal(rows, np.flatnonzero(test & (stored == 1)))
    for k, rows in enumerate(data.train):
        counts = np.bincount(stored[rows], minlength=4)[[0, 2, 3]]
        np.testing.assert_allclose(data.priors[k], counts / counts.sum(), rtol=1e-6)


def test_a_confusion_counts_classes_by_their_numbers_in_the_data_set(tiny):
    task = tiny("promptfl", partition=NOVEL)[0]
    counted = AnswerCounts()
    rows = task.data.test[0]
    counted.add(task, 0, [Score(rows, np.full(len(rows), 2), np.ones(len(rows)), 0, 0.0)])
    found = counted.confusion().to_pandas()
    assert set(found["label"]) == set(task.data.store.labels[rows])
    assert set(found["predicted"]) == {3}, "the third of the base classes 0, 2, 3"


def _trained(tiny, name):
    task, hooks = tiny(name, partition=NOVEL | {"novel_classes": [1, 2]})
    return task.at(1), hooks, train_round(task.at(1), hooks, initial_state(task, hooks))[0]


@pytest.mark.parametrize("name", METHODS)
def test_participating_clients_answer_own_all_base_and_all_novel_images(tiny, name):
    task, hooks, state = _trained(tiny, name)
    rows = evaluate_test_sets(task, hooks, state)
    table = pd.DataFrame([row.columns() for row in rows]).set_index(["test_set", "client_id"])
    stored = task.data.store.labels
    test = task.data.store.test
    everyone = {"base": np.isin(stored, [0, 3]), "novel": np.isin(stored, [1, 2])}
    for client in task.data.participating:
        assert table.loc[("own", client), "num_test"] == len(task.data.test[client])
        for name, images in everyone.items():
            assert table.loc[(name, client), "num_test"] == (images & test).sum()
    assert len(table) == 3 * len(task.data.participating)
    assert (table["num_correct"] <= table["num_test"]).all()


def test_a_learned_context_is_put_before_names_that_no_client_has_seen(tiny):
    task, hooks, state = _trained(tiny, "promptfl")
    table = pd.DataFrame([row.columns() for row in evaluate_test_sets(task, hooks, state)])
    names = ["beta", "gamma"]
    numbers = [1, 2]
    rows = np.flatnonzero(task.data.store.test & np.isin(task.data.store.labels, numbers))
    with torch.no_grad():
        text = task.backbone.text_features(state.server["params"]["context"], names).double()
    cosine = task.data.tokens(None)[rows].double() @ text.T
    truth = torch.tensor([numbers.index(k) for k in task.data.store.labels[rows]])
    losses = torch.nn.functional.cross_entropy(task.backbone.logit_scale * cosine, truth)
    novel = table[table["test_set"] == "novel"]
    assert (novel["num_correct"] == int((cosine.argmax(1) == truth).sum())).all()
    np.testing.assert_allclose(novel["loss"], losses.item(), rtol=1e-5)


def test_one_model_answers_once_as_each_of_its_clients(tiny):
    task, hooks, state = _trained(tiny, "fedclip")

    class Counted:
        """The same hooks, which count predicted images; with `apart`, clients seem stateful."""

        def __init__(self, apart):
            self.apart = apart
            self.images = 0

        def takes(self, hook, argument):
            return self.apart

        def predict(self, **given):
            self.images += int(given["batch"].mask.sum())
            return hooks.predict(**given)

        def __getattr__(self, name):
            return getattr(hooks, name)

    once = Counted(apart=False)
    each = Counted(apart=True)
    keys = ["test_set", "client_id"]
    frames = [
        pd.DataFrame([row.columns() for row in evaluate_test_sets(task, counted, state)])
        for counted in (once, each)
    ]
    pd.testing.assert_frame_equal(*(f.sort_values(keys).reset_index(drop=True) for f in frames))
    own = sum(len(task.data.test[k]) for k in task.data.participating)
    assert each.images - own == len(task.data.participating) * (once.images - own)


def test_as_many_clients_answer_at_once_as_the_set_with_the_most_classes_lets(tiny, monkeypatch):
    task, hooks, state = _trained(tiny, "promptfl")
    at_once = lambda task, *states: 1 if "beta" in task.data.classes else 9  # noqa: E731
    monkeypatch.setattr("fedloom.federated.groups.clients_evaluated_at_once", at_once)
    cohorts = []

    def received(task, hooks, state, ids):
        cohorts.append(ids)
        return prepare_clients(task, hooks, state, ids)

    monkeypatch.setattr("fedloom.federated.evaluate_test_sets.prepare_clients", received)
    evaluate_test_sets(task, hooks, state)
    assert cohorts[1:] == [[k] for k in task.data.participating], "after the server's model"


def _config(*methods, **partition):
    config = default_config()
    config["partitions"]["new"] = {"scheme": "iid", "clients": 10, **partition}
    config["tables"]["new"] = {"kind": "base_to_novel"}
    config["select"] |= {"partitions": ["new"], "methods": list(methods), "figures": []}
    config["select"] |= {"tables": ["new"], "backbones": ["micro_clip"]}
    return config


@pytest.mark.parametrize(
    ("methods", "partition", "words"),
    [
        (["fedvpt"], {"novel_classes": 0.5}, ["methods.fedvpt", "new.novel_classes", "head"]),
        (["promptfl"], {}, ["tables.new", "novel_classes"]),
        (["promptfl"], {"novel_classes": 1.0}, ["partitions.new.novel_classes"]),
    ],
)
def test_what_cannot_be_tested_on_novel_classes_is_refused(methods, partition, words):
    with refused(*words):
        resolve(_config(*methods, **partition))


def test_a_clip_method_declares_that_it_predicts_among_other_classes(monkeypatch):
    plugin = manifest.find_method("promptfl")
    other = plugin.model_copy(update={"unseen_classes": False})
    monkeypatch.setattr("fedloom.config.protocols.find_method", lambda name: other)
    with refused("methods.promptfl", "new.novel_classes", "unseen_classes"):
        resolve(_config("promptfl", novel_classes=0.5))


def _answered(folder, own, base, novel):
    """Return a run of two clients, which are tested on 10 own, 20 base and 5 novel images each."""
    rows = [
        {
            "test_set": name,
            "client_id": k,
            "num_test": total,
            "num_correct": correct[k],
            "loss": 0.0,
        }
        for name, total, correct in (("own", 10, own), ("base", 20, base), ("novel", 5, novel))
        for k in (0, 1)
    ]
    file = folder / f"{novel}.parquet"
    filled(rows, "test_sets").to_parquet(file)
    return shown(artefact=file)


def test_the_table_has_means_over_clients_and_what_they_make_together(tmp_path):
    runs = [
        _answered(tmp_path, (10, 6), (8, 12), (1, 1)),
        _answered(tmp_path, (8, 8), (10, 10), (4, 2)),
    ]
    runs = [replace(run, seed=seed) for seed, run in enumerate(runs)]
    (row,) = tables.build_table(table_job("base_to_novel"), runs).frame.to_dict("records")
    assert (row["own"], row["base"], row["novel"]) == (80, 50, 40)
    first = 3 / (1 / 80 + 1 / 50 + 1 / 20)
    second = 3 / (1 / 80 + 1 / 50 + 1 / 60)
    assert row["harmonic_mean"] == pytest.approx((first + second) / 2)
    # twice FedMGP's CM
    first = 80 + 2 / (1 / 50 + 1 / 20)
    second = 80 + 2 / (1 / 50 + 1 / 60)
    assert row["combined"] == pytest.approx((first + second) / 4)
    first = 3 / (1 / 80 + 1 / 50 + 1 / 20)
    second = 3 / (1 / 80 + 1 / 50 + 1 / 60)
    assert row["harmonic_mean_std"] == pytest.approx(abs(first - second) / 2**0.5)


def test_bars_stand_by_the_columns_of_the_table(tmp_path):
    run = _answered(tmp_path, (10, 6), (8, 12), (1, 1))
    (axis,) = draw("accuracy_bars", [run], by="base_to_novel").axes
    names = ["Own", "Base", "Novel", "Harmonic mean", "Combined"]
    assert [text.get_text() for text in axis.get_xticklabels()] == names
    table = tables.build_table(table_job("base_to_novel"), [run]).frame
    heights = [bar.get_height() for bar in axis.patches]
    assert heights == table[["own", "base", "novel", "harmonic_mean", "combined"]].iloc[0].tolist()


@pytest.mark.parametrize("key", [{"metric": "global"}, {"personalized": False}])
def test_bars_of_test_sets_refuse_the_keys_of_bars_by_partition(key):
    config = _config("promptfl", novel_classes=0.5)
    config["figures"] = {"bars": {"kind": "accuracy_bars", "by": "base_to_novel", **key}}
    with refused("figures.bars", *key, "by: partition"):
        resolve(config)


STUDY = """
study: {name: letters, rounds: 1, seeds: [0], clients_per_round: 2, evaluate_every: 1,
        report: {last_evaluations: 1}, training: {epochs: 1, batch_size: 16, lr: 0.01}}
datasets:
  letters: {source: glyphs, classes: 6, draws: 1}
  others: {source: glyphs, classes: 8, draws: 1, styles: [noisy]}
partitions: {new: {scheme: iid, clients: 2, novel_classes: 0.5, transfer_to: [others, letters]}}
tables: {new: {kind: base_to_novel}, others: {kind: cross_dataset}}
select: {datasets: [letters], partitions: [new], backbones: [micro_clip],
         methods: [promptfl], tables: [new, others], figures: []}
"""


def test_a_study_of_new_letters_and_another_dataset_from_images_to_tables(tmp_path, monkeypatch):
    (tmp_path / "letters.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    plan = load_plan([tmp_path / "letters.yaml"])
    labels = {"dataset": "letters", "partition": "new", "backbone": "micro_clip", "seed": 0}
    asked = Wildcards(**labels, method="promptfl", artefact=TEST_SETS)
    read = [paths.path_for(pattern, **labels | {"dataset": "others"}) for pattern in OTHERS]
    assert plan.other_inputs(asked) == read, "the dataset itself is no other"
    for name in ("letters", "others"):
        own = Wildcards(**labels | {"dataset": name, "cache": "features"})
        one_process.run("dataset", plan.job("dataset", own))
        one_process.run("cache", plan.job("cache", own))
    one_process.run("partition", plan.job("partition", asked))
    one_process.train(plan, Wildcards(**labels), "promptfl", {TEST_SETS})
    rows = read_table(paths.path_for(paths.ARTEFACT, **vars(asked))).to_pandas()
    assert set(rows["test_set"]) == {"own", "base", "novel", "dataset others"}
    assert set(rows[rows["test_set"] == "dataset others"]["num_test"]) == {8 * 3}
    means = (100 * rows["num_correct"] / rows["num_test"]).groupby(rows["test_set"]).mean().round(2)
    for label, sets in (("new", ["own", "base", "novel"]), ("others", ["base", "dataset others"])):
        one_process.run("table", plan.job("table", Wildcards(label=label)))
        text = paths.path_for(paths.TABLE, study="letters", label=label).read_text()
        row = [line for line in text.splitlines() if line.startswith("|")][-1]
        assert list(map(float, row.split("|")[2 : 2 + len(sets)])) == means[sets].tolist()
    records.write_record(plan)
    groups = ["base", "novel", "dataset others"]
    for found in (fedloom.results("letters"), fedloom.scan("letters").df()):
        by_group = found.groupby("group", observed=True)["accuracy"].mean()
        assert by_group[groups].round(2).tolist() == means[groups].tolist()
        assert by_group["participating"].round(2) == means["own"] and len(by_group) == 4
        assert set(found["client"]) == {0, 1} and set(found["round"]) == {1}


OTHERS = (paths.STORE, paths.CACHE.replace("{cache}", "features"))


def test_datasets_that_are_not_there_are_refused():
    with refused("partitions.new.transfer_to", "'styels'", "'styles'"):
        resolve(_config("promptfl", novel_classes=0.5, transfer_to=["styels"]))
    with refused("methods.fedvpt", "new.transfer_to", "head"):
        resolve(_config("fedvpt", transfer_to=["styles"]))


def test_targets_leave_a_partition_as_it_is():
    asked = Wildcards(dataset="glyphs", partition="new", seed=0)
    jobs = [
        Plan(resolve(_config("promptfl", novel_classes=0.5, **more))).job("partition", asked)
        for more in ({}, {"transfer_to": ["styles"]})
    ]
    assert jobs[0] == jobs[1]
