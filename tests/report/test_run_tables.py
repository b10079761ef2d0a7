"""The Parquet files of a run: labels as columns, and counts of answers on request."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from before_aggregation import BeforeAggregation
from changed_task import with_training
from fedloom.common import tensor_files
from fedloom.common.files import read_table
from fedloom.common.ids import SERVER_MODEL
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import manifest
from fedloom.planning.run_labels import Run
from fedloom.report import metrics

COUNTS = ["round", "client_id", "label", "predicted", "count"]


def _train(tiny, name, folder, confusion=True, around=lambda hooks: hooks):
    task, hooks = tiny(name)
    hooks = around(hooks)
    folder.mkdir(exist_ok=True)
    four = replace(tiny_job(manifest.find_method(name)), confusion=confusion)
    training_job.train_rounds(task, hooks, four, None, tiny_outputs(folder), "same")
    return task, hooks, tiny_outputs(folder)


@pytest.mark.parametrize("name", ["head_tuning", "fedotp"])
def test_confusion_counts_every_answer_of_every_evaluation(tiny, tmp_path, name):
    """FedOTP's server has no model, so the answers of its clients are counted together."""
    task, _, outputs = _train(tiny, name, tmp_path / "a")
    evaluation = read_table(outputs.evaluation).to_pandas()
    counts = read_table(outputs.confusion).to_pandas()
    assert list(counts) == COUNTS
    assert (counts["count"] > 0).all()
    assert counts.equals(counts.sort_values(COUNTS[:4], ignore_index=True))
    keys = ["round", "client_id"]
    hits = counts["count"].where(counts["label"] == counts["predicted"], 0)
    summed = counts.assign(hits=hits).groupby(keys)[["count", "hits"]].sum()
    expected = evaluation.set_index(keys)[["num_test", "num_correct"]].sort_index()
    assert set(evaluation["round"]) == {2, 4}
    assert SERVER_MODEL in set(counts["client_id"])
    np.testing.assert_array_equal(summed.to_numpy(), expected.to_numpy())
    own = counts[(counts["client_id"] == 2) & (counts["round"] == 4)]
    labels = np.bincount(task.data.store.labels[task.data.test[2]], minlength=4)
    by_class = own.groupby("label")["count"].sum().reindex(range(4), fill_value=0)
    assert by_class.tolist() == labels.tolist()


def _train_two_rounds(tiny, folder):
    """Return the task and the files of a job of Head-Tuning, and the state after its two rounds."""
    task, hooks, outputs = _train(tiny, "head_tuning", folder)
    state = initial_state(task, hooks)
    for number in (1, 2):
        state, _ = train_round(task.at(number), hooks, state)
    return task, outputs, state


def test_confusion_is_of_the_models_own_answers(tiny, tmp_path):
    """A loop over images, which shares no code with the evaluation, counts answers of round 2."""
    task, outputs, state = _train_two_rounds(tiny, tmp_path / "a")
    counts = read_table(outputs.confusion).to_pandas()
    counts = counts[(counts["round"] == 2) & (counts["client_id"] == 1)]
    head = state.server["params"]["head"]
    expected = np.zeros((4, 4), int)
    for row in task.data.test[1]:
        expected[
            task.data.store.labels[row], int((head @ task.data.tokens(None)[row]).argmax())
        ] += 1
    found = np.zeros((4, 4), int)
    found[counts["label"], counts["predicted"]] = counts["count"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["head_tuning", "fedotp"])
def test_bins_count_every_answer_of_every_evaluation(tiny, tmp_path, name):
    _, _, outputs = _train(tiny, name, tmp_path / "a")
    bins = read_table(outputs.calibration).to_pandas()
    assert list(bins) == ["round", "client_id", "bin", "count", "correct", "confidence"]
    assert bins.equals(bins.sort_values(["round", "client_id", "bin"], ignore_index=True))
    assert (bins["count"] > 0).all() and bins["bin"].between(0, 14).all()
    mean = bins["confidence"] / bins["count"]
    assert mean.between(bins["bin"] / 15, (bins["bin"] + 1) / 15).all()
    summed = bins.groupby(["round", "client_id"])[["count", "correct"]].sum()
    evaluation = read_table(outputs.evaluation).to_pandas()
    expected = evaluation.set_index(["round", "client_id"])[["num_test", "num_correct"]]
    np.testing.assert_array_equal(summed.to_numpy(), expected.sort_index().to_numpy())


def test_a_confidence_is_the_softmax_of_the_models_own_logits(tiny, tmp_path):
    """A loop over images in float64, which shares no code with the evaluation, sorts them."""
    task, outputs, state = _train_two_rounds(tiny, tmp_path / "a")
    bins = read_table(outputs.calibration).to_pandas()
    bins = bins[(bins["round"] == 2) & (bins["client_id"] == 1)].set_index("bin")
    head = state.server["params"]["head"].numpy().astype(float)
    expected = {}
    for row in task.data.test[1]:
        powers = np.exp(head @ task.data.tokens(None)[row].numpy().astype(float))
        shares = powers / powers.sum()
        count, correct, total = expected.get(int(np.ceil(15 * shares.max())) - 1, (0, 0, 0.0))
        correct += int(shares.argmax() == task.data.store.labels[row])
        expected[int(np.ceil(15 * shares.max())) - 1] = (count + 1, correct, total + shares.max())
    assert set(bins.index) == set(expected)
    for number, values in expected.items():
        found = bins.loc[number, ["count", "correct", "confidence"]].tolist()
        assert found == pytest.approx(values, rel=1e-5)


def test_counting_answers_changes_no_other_file(tiny, tmp_path):
    _, _, counted = _train(tiny, "fedvpt", tmp_path / "a")
    _, _, plain = _train(tiny, "fedvpt", tmp_path / "b", confusion=False)
    for kind in ("evaluation", "state"):
        assert getattr(counted, kind).read_bytes() == getattr(plain, kind).read_bytes()


def test_a_checkpoint_has_counts_by_confidence_only_on_request(tiny, tmp_path):
    for name, confusion in (("a", True), ("b", False)):
        _train(tiny, "head_tuning", tmp_path / name, confusion=confusion)
        parts = (tmp_path / name / "checkpoint").glob("*.safetensors")
        packed = [tensor_files.load(part)[0]["rows"] for part in parts]
        assert any("calibration" in rows for rows in packed) == confusion


def test_a_killed_job_writes_the_same_counts(tiny, tmp_path):
    _, _, whole = _train(tiny, "fedvpt", tmp_path / "whole")

    def kill(task):
        if task.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(tiny, "fedvpt", tmp_path / "killed", around=partial(BeforeAggregation, kill))
    _, _, resumed = _train(tiny, "fedvpt", tmp_path / "killed")
    for kind in ("confusion", "calibration", "evaluation", "state"):
        assert getattr(whole, kind).read_bytes() == getattr(resumed, kind).read_bytes()


def test_nobody_asks_for_it_by_default(tiny, tmp_path):
    task, hooks, outputs = _train(tiny, "head_tuning", tmp_path / "a", confusion=False)
    assert outputs.rounds.is_file()
    assert not outputs.confusion.exists() and not outputs.calibration.exists()
    assert torch.is_tensor(initial_state(task, hooks).server["params"]["head"])
    assert evaluate(task.at(1), hooks, initial_state(task, hooks))


def test_a_folder_of_runs_is_one_data_frame(tiny, tmp_path):
    _, _, outputs = _train(tiny, "head_tuning", tmp_path / "a")
    runs = [Run("digits", "six", "vit", m, s) for m in ("a", "b") for s in (0, 3)]
    for run in runs:
        for kind in ("evaluation", "rounds", "confusion", "calibration"):
            target = tmp_path / kind / f"{run.method}{run.seed}.parquet"
            metrics.join([getattr(outputs, kind)] * 2, target, run, {})
    for kind in ("evaluation", "rounds", "confusion", "calibration"):
        one = read_table(getattr(outputs, kind))
        table = pq.read_table(tmp_path / kind)
        labels = ["dataset", "partition", "backbone", "method", "seed"]
        assert table.column_names == [*labels, *one.column_names]
        for name in labels[:4]:
            assert pa.types.is_dictionary(table.schema.field(name).type)
        frame = pd.read_parquet(tmp_path / kind)
        sizes = frame.groupby(["method", "seed"], observed=True).size()
        assert sizes.to_dict() == {(r.method, r.seed): 2 * len(one) for r in runs}
        assert set(frame["dataset"]) == {"digits"}
        joined = read_table(tmp_path / kind / "b3.parquet")
        assert joined.drop_columns(labels).equals(pa.concat_tables([one, one]))


def test_a_method_may_say_itself_what_guessing_loses(tiny):
    """FedCLIP tells the images of a batch apart, whatever the number of classes."""
    task, hooks = tiny("fedclip")
    task = with_training(task, batch_size=3)
    assert task.num_classes == 4
    _, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert row.guessing_loss == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("method", "options", "classes"),
    [("fedtpg", {}, 2), ("fedtpg", {"names": "all"}, 4), ("fedmvp", {}, 2)],
)
def test_who_trains_among_its_own_classes_guesses_among_them(tiny, method, options, classes):
    task, hooks = tiny(method, heads=2, **options)
    _, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert row.guessing_loss == pytest.approx(np.log(classes))
