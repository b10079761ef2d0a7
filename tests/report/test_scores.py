"""Scores of counted answers equal those of scikit-learn, and a reference of the ECE in float64."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    balanced_accuracy_score,
    f1_score,
    precision_score,
    recall_score,
)

from fedloom.common.ids import SERVER_MODEL
from fedloom.config.settings import ReportedRounds
from fedloom.federated.answer_counts import count_by_confidence
from fedloom.report import scores, tables
from shown_runs import filled, shown, table_files, table_job, table_kind
from table_cases import rounds_table

MACRO = {"average": "macro", "zero_division": 0}
# per case: the classes of images and answers
ANSWERS = {
    "all classes are there": ([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0]),
    "a class without an image is predicted": ([0, 0, 2, 2], [0, 1, 2, 2]),
    "a class is never predicted": ([0, 0, 1, 2], [0, 0, 2, 2]),
    "both": ([5, 5, 7, 9], [5, 3, 7, 7]),
    "one class": ([4, 4], [4, 4]),
    "nothing is right": ([0, 1], [1, 2]),
}


def counts(labels, predicted, **columns):
    """Return rows of a confusion.parquet, one for each image."""
    rows = {"label": labels, "predicted": predicted, "count": 1} | columns
    return filled(rows, "confusion")


def sklearn_scores(labels, predicted):
    """Return scikit-learn's scores in percent."""
    found = {
        "f1": f1_score(labels, predicted, **MACRO),
        "precision": precision_score(labels, predicted, **MACRO),
        "recall": recall_score(labels, predicted, **MACRO),
        "balanced_accuracy": balanced_accuracy_score(labels, predicted),
    }
    return {name: 100 * value for name, value in found.items()}


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label")
@pytest.mark.parametrize("case", ANSWERS)
def test_macro_scores_are_scikit_learns(case):
    labels, predicted = ANSWERS[case]
    expected = sklearn_scores(labels, predicted)
    assert scores.macro_scores(counts(labels, predicted)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_counts_of_the_same_classes_are_added():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 6, 200)
    predicted = draw.integers(2, 9, 200)
    pairs = pd.DataFrame(
        {"label": labels, "predicted": predicted, "half": draw.integers(0, 2, 200)}
    )
    summed = pairs.value_counts().rename("count").reset_index()
    expected = sklearn_scores(labels, predicted)
    assert scores.macro_scores(summed) == pytest.approx(expected, abs=1e-10)


def reference_error(confidence, correct):
    """Return the ECE in percent by the loop of Guo et al. over the bins (m/15, (m+1)/15]."""
    total = 0.0
    for number in range(15):
        members = [k for k, p in enumerate(confidence) if number / 15 < p <= (number + 1) / 15]
        if members:
            accuracy = sum(correct[k] for k in members) / len(members)
            sure = sum(float(confidence[k]) for k in members) / len(members)
            total += len(members) / len(confidence) * abs(accuracy - sure)
    return 100 * total


def calibration(confidence, correct, **columns):
    """Return rows of a calibration.parquet for the answers to some images."""
    found = count_by_confidence(np.array(confidence, np.float32), np.array(correct))
    return filled(pd.DataFrame(found).assign(**columns), "calibration")


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_the_calibration_error_is_that_of_a_loop_in_float64(classes):
    draw = np.random.default_rng(classes)
    confidence = draw.uniform(1 / classes, 1, 500).astype(np.float32)
    correct = draw.uniform(size=500) < confidence**2
    expected = reference_error(confidence.astype(np.float64), correct)
    assert expected > 1
    found = scores.calibration_error(calibration(confidence, correct))
    assert found == pytest.approx(expected, abs=1e-10)


def test_halves_of_the_images_have_the_calibration_error_of_all():
    draw = np.random.default_rng(0)
    confidence, correct = draw.uniform(0.2, 1, 60).astype(np.float32), draw.uniform(size=60) < 0.5
    halves = [calibration(confidence[part], correct[part]) for part in (slice(23), slice(23, 60))]
    expected = reference_error(confidence.astype(np.float64), correct)
    assert scores.calibration_error(pd.concat(halves)) == pytest.approx(expected, abs=1e-10)


def test_a_bin_holds_its_upper_edge_and_no_confidence_is_lost():
    found = count_by_confidence(
        np.array([0, 0.2, 0.25, 1, 1 + 1e-7]), np.array([1, 0, 1, 1, 0]) > 0
    )
    assert found["bin"].tolist() == [0, 2, 3, 14]
    assert found["count"].tolist() == [1, 1, 1, 2]
    assert found["correct"].tolist() == [1, 0, 1, 1]
    np.testing.assert_allclose(found["confidence"], [0, 0.2, 0.25, 2])


# ---- the table: client 0 and 1 take part, 2 is held out -----------------------------------------

# by client: classes of images, of answers, and their confidences
CLIENTS = {
    0: ([0, 0, 1], [0, 1, 1], [0.9, 0.6, 0.7]),
    1: ([2, 2], [2, 0], [0.5, 0.8]),
    2: ([0, 1, 3], [0, 1, 1], [0.95, 0.4, 0.3]),
    SERVER_MODEL: ([0, 3], [1, 1], [1.0, 1.0]),
}


def run_of(folder, clients, rounds=(1, 2), **labels):
    """Write the files of a run whose clients answer so after these rounds; return the run."""
    confusion, calibrated, evaluated = [], [], []
    for number in rounds:
        for client, (label, predicted, confidence) in clients.items():
            own = {"round": number, "client_id": client}
            correct = np.equal(label, predicted)
            confusion.append(counts(label, predicted, **own))
            calibrated.append(calibration(confidence, correct, **own))
            evaluated.append(own | {"participating": client in (0, 1)})
    folder.mkdir()
    files = {"confusion": pd.concat(confusion), "calibration": pd.concat(calibrated)}
    files["evaluation"] = filled(evaluated, "evaluation")
    for name, frame in files.items():
        frame.to_parquet(folder / f"{name}.parquet")
    labels["rounds"] = rounds_table(folder / "rounds.parquet", [1.0])
    paths = {name: folder / f"{name}.parquet" for name in files}
    return shown(**paths, reported=ReportedRounds(tuple(rounds)), **labels)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label")
def test_scores_are_of_every_client_or_of_their_pooled_images(tmp_path):
    run = run_of(tmp_path / "a", CLIENTS)
    found = table_kind("scores", over="both").measure(run)
    expected = {}
    for group, members in {"participating": (0, 1), "held_out": (2,)}.items():
        own = [CLIENTS[client] for client in members]
        each = [
            sklearn_scores(labels, predicted)
            | {
                "ece": reference_error(
                    np.array(confidence, np.float32), np.equal(labels, predicted)
                )
            }
            for labels, predicted, confidence in own
        ]
        labels, predicted, confidence = (np.concatenate(part) for part in zip(*own, strict=True))
        pooled = sklearn_scores(labels, predicted)
        pooled["ece"] = reference_error(np.array(confidence, np.float32), labels == predicted)
        for name in pooled:
            mean = np.mean([numbers[name] for numbers in each])
            expected[f"{group}_clients_{name}"] = mean
            expected[f"{group}_pooled_{name}"] = pooled[name]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found["participating_clients_recall"] < found["participating_clients_balanced_accuracy"]


def test_rounds_weigh_alike_and_only_reported_ones_count(tmp_path):
    first = run_of(tmp_path / "a", {0: ([0, 0], [0, 0], [0.5, 0.5])}, rounds=(1,))
    both = run_of(tmp_path / "b", {0: ([0, 0], [0, 1], [0.5, 0.5])}, rounds=(2, 3))
    pd.concat([pd.read_parquet(run.confusion) for run in (first, both)]).to_parquet(both.confusion)
    pd.concat([pd.read_parquet(run.calibration) for run in (first, both)]).to_parquet(
        both.calibration
    )
    for rounds, expected in (((1, 2), 75), ((2, 3), 50), ((1,), 100)):
        run = shown(**vars(both) | {"reported": ReportedRounds(rounds)})
        found = table_kind("scores").measure(run)
        assert found["participating_clients_balanced_accuracy"] == expected
        assert not any(name.startswith("held_out") for name in found)


def test_recall_is_shown_only_if_it_differs_from_balanced_accuracy(tmp_path):
    run = run_of(tmp_path / "a", CLIENTS)
    tables.write_table(table_job("scores", over="both"), [run], table_files(tmp_path))
    heading = (tmp_path / "t.md").read_text().splitlines()[2]
    titles = [title.strip() for title in heading.strip("|").split("|")]
    assert titles == [
        "Method",
        "Balanced accuracy", "F1", "Precision", "Recall", "ECE",
        "Pooled balanced accuracy", "Pooled F1", "Pooled precision", "Pooled ECE",
        "Held-out balanced accuracy", "Held-out F1", "Held-out precision", "Held-out ECE",
        "Held-out pooled balanced accuracy", "Held-out pooled F1", "Held-out pooled precision",
        "Held-out pooled ECE",
    ]  # fmt: skip


def test_the_lower_calibration_error_is_the_better_one():
    column = table_kind("scores").column
    assert column("held_out_clients_ece").higher_is_better is False
    assert column("participating_pooled_f1").higher_is_better is True
