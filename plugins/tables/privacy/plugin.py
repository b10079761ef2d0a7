"""A table shows how well attacks on privacy succeed in runs with the wrapper `audit`.

Two attacks guess whether a client trained on an image. One takes images of low loss for members:
Yeom et al., "Privacy Risk in Machine Learning" (CSF 2018), Adversary 2. The other compares the
confidence of a model with that of models that did not train on the image: Carlini et al.,
"Membership Inference Attacks From First Principles" (IEEE S&P 2022), Section VI-A. It is their
offline attack with one variance for all images, which orders images by the difference of these
confidences.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from fedloom.report.output_toolbox import (
    Column,
    KindSpec,
    PlottedRun,
    RunsTable,
    describe_rounds,
    metrics,
)

COLUMNS = {
    "accuracy": Column("Accuracy"),
    "epsilon": Column("Epsilon", higher_is_better=None),
    "loss_auc": Column("AUC, loss", higher_is_better=False),
    "ratio_auc": Column("AUC, likelihood ratio", higher_is_better=False),
    "ratio_rate": Column("True positives", higher_is_better=False),
    "class_distance": Column("Class distance", higher_is_better=None),
    "class_distance_blind": Column("Blind guess", higher_is_better=None),
}


def attack(member: pd.Series, score: pd.Series, false_rate: float) -> tuple[float, float]:
    """Return the AUC and the true positive rate of an attack, in %.

    The true positive rate is the highest with at most `false_rate` false positives.

    Args:
        member: whether each image was trained on.
        score: the attack's score of each image; a higher score says that it was trained on.
        false_rate: between 0 and 1.
    """
    from sklearn.metrics import roc_auc_score, roc_curve  # slow to import

    false, true, _ = roc_curve(member, score, drop_intermediate=False)
    return 100 * float(roc_auc_score(member, score)), 100 * float(true[false <= false_rate].max())


def score_images(own: pd.DataFrame, others: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the images of a run that at least one other run withheld, with a column `score`.

    The score is the confidence of the image in this run, minus its mean confidence in the other
    runs that withheld it.

    Args:
        own: the artefact `membership` of the run.
        others: the artefacts of the runs with other seeds.
    """
    keys = ["client_id", "image"]
    if not others:
        return own.assign(score=np.nan).iloc[:0]
    out = pd.concat([frame[~frame["member"]] for frame in others])
    means = out.groupby(keys)["confidence"].mean().rename("reference")
    both = own.join(means, on=keys, how="inner")
    return both.assign(score=both["confidence"] - both["reference"])


class Privacy(RunsTable):
    """How well attackers infer training images from models, and class shares from uploads.

    Members are images that clients trained on. Non-members are images that clients withheld
    (wrapper `audit`). A random guess has an AUC of 50 %.
    """

    spec = KindSpec(artefact="membership")
    column: ClassVar = COLUMNS.__getitem__

    false_rate: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """False-positive rate of the attacker: the share of non-members that it may take for
    members."""

    def complete(self, settings: Any, output: Any, where: object) -> Any:
        """Return the output with the study's seeds, since `measure` compares runs of all seeds."""
        return replace(output, extra=output.extra | {"seeds": [*settings.study.seeds]})

    def measure(self, run: PlottedRun, seeds: list[int]) -> dict[str, float]:
        """Return the numbers of one run by column, in % but for epsilon and the distances."""
        own = metrics.artefact(run)
        rounds = metrics.frame(run.rounds).sort_values("round")
        numbers = metrics.accuracies(metrics.evaluation(run.evaluation), run.reported)
        found = {"accuracy": numbers["participating_mean"]}
        if "epsilon" in rounds:
            found["epsilon"] = float(rounds["epsilon"].iloc[-1])
        found["loss_auc"], _ = attack(own["member"], -own["loss"], self.false_rate)
        others = [metrics.frame(_artefact_with_seed(run, k)) for k in seeds if k != run.seed]
        known = score_images(own, others)
        if known["member"].nunique() == 2:
            found["ratio_auc"], found["ratio_rate"] = attack(
                known["member"], known["score"], self.false_rate
            )

        # the distances between guessed and true class shares
        for name in ("class_distance", "class_distance_blind"):
            found[name] = float(rounds[name].mean())
        return found

    def describe(self, runs: list[PlottedRun]) -> str:
        """Return what the caption says: what is attacked, and by whom."""
        return (
            "test accuracy in %, and how well attackers infer training images from models and "
            "class shares from uploads"
        )

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        """Return a sentence on each column."""
        return (
            f"Accuracies of participating clients are from {describe_rounds(runs)}.",
            "Epsilon is that after the last round.",
            "AUC in % is that of membership inference by an image's loss, and by its confidence "
            "minus that of runs of other seeds that did not train on it.",
            "True positives in % are those of the latter at "
            f"{100 * self.false_rate:g} % false positives.",
            "The class distance is the total variation distance of a client's class shares and "
            "those that a server guesses from the upload, mean over rounds and clients; a blind "
            "guess takes equal shares.",
        )


def _artefact_with_seed(run: PlottedRun, seed: int) -> Path:
    """Return the path of the run's artefact with another seed; it is an input of the table, too."""
    assert run.artefact is not None, "the kind names one"
    return run.artefact.parents[1].with_name(f"seed{seed}") / "artefacts" / run.artefact.name
