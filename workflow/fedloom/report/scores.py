"""Compute scores from counts of answers: macro averages over classes, and the calibration error."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.report import metrics
from fedloom.report.plotted_runs import PlottedRun


def macro_scores(confusion: pd.DataFrame) -> dict[str, float]:
    """Return scores in percent that weigh every class alike, by scikit-learn's definitions.

    - `balanced_accuracy` is the mean recall of the classes that have images.
    - `f1`, `precision` and `recall` are means over all classes that have images or are predicted
      (the default `labels` of scikit-learn). A score without a denominator is 0 (zero_division=0):
      the precision of a class that is never predicted, and the recall of a class without images.

    So `recall` equals `balanced_accuracy` if every predicted class has images, and is lower if not.

    Args:
        confusion: rows of a confusion.parquet. Counts of the same pair of classes are added.
    """
    labels, predicted, counts = confusion[["label", "predicted", "count"]].to_numpy().T
    classes, positions = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    of_image, of_answer = np.split(positions, 2)
    size = len(classes)

    # the images of each class, the answers that name it, and those of them that are right [C]
    images = np.bincount(of_image, counts, size)
    answers = np.bincount(of_answer, counts, size)
    right = np.bincount(of_image, counts * (labels == predicted), size)

    recall = _ratio(right, images)
    return {
        "balanced_accuracy": 100 * float(recall[images > 0].mean()),
        "f1": 100 * float(_ratio(2 * right, images + answers).mean()),
        "precision": 100 * float(_ratio(right, answers).mean()),
        "recall": 100 * float(recall.mean()),
    }


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return numerator / denominator [C]; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)


def by_bin(calibration: pd.DataFrame) -> pd.DataFrame:
    """Return the `count`, `correct` and `confidence` of each bin, added over all rows.

    `calibration` has rows of a calibration.parquet. Bins without images are left out.
    """
    return calibration.groupby("bin")[["count", "correct", "confidence"]].sum()


def calibration_error(calibration: pd.DataFrame) -> float:
    """Return the expected calibration error (ECE) in percent.

    It is the mean over images of |accuracy - mean confidence| of the image's bin (Guo et al., "On
    Calibration of Modern Neural Networks", ICML 2017, equation 3).

    Args:
        calibration: rows of a calibration.parquet. Counts of the same bin are added.
    """
    bins = by_bin(calibration)
    # a bin's gap times its images is the gap between two sums
    gaps = (bins["correct"] - bins["confidence"]).abs()
    return 100 * float(gaps.sum() / bins["count"].sum())


def counts_of(
    run: PlottedRun, file: Path, rounds: Sequence[int], participating: bool = True
) -> pd.DataFrame:
    """Return the rows of a run's clients after some rounds, without those of the global test.

    Args:
        run: the run.
        file: its confusion.parquet or calibration.parquet.
        rounds: the evaluated rounds.
        participating: True for the clients that train, False for those held out of training.
    """
    clients = metrics.frame(run.evaluation)
    of_group = clients["participating"] == participating
    members = set(clients["client_id"][of_group]) - {SERVER_MODEL}
    rows = metrics.frame(file)
    return rows[rows["round"].isin(rounds) & rows["client_id"].isin(members)]
