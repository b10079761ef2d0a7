"""What attacks on privacy find in the runs that the wrapper `audit` is around, beside epsilon.

Yeom et al., "Privacy Risk in Machine Learning" (CSF 2018), Adversary 2; Carlini et al., "Membership
Inference Attacks From First Principles" (IEEE S&P 2022), Section VI-A: the offline attack with one
variance for all images, which orders images as the difference of confidences does.
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
    """Return AUC and true positive rate at `false_rate`, in %, where members score higher."""
    from sklearn.metrics import roc_auc_score, roc_curve  # slow to import

    false, true, _ = roc_curve(member, score, drop_intermediate=False)
    return 100 * float(roc_auc_score(member, score)), 100 * float(true[false <= false_rate].max())


def ratio(own: pd.DataFrame, others: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the images of a run that another run withheld, with a `score`.

    It is the image's confidence minus its mean over the runs that withheld it.
    """
    keys = ["client_id", "image"]
    if not others:
        return own.assign(score=np.nan).iloc[:0]
    out = pd.concat([frame[~frame["member"]] for frame in others])
    means = out.groupby(keys)["confidence"].mean().rename("reference")
    both = own.join(means, on=keys, how="inner")
    return both.assign(score=both["confidence"] - both["reference"])


class Privacy(RunsTable):
    """Membership inference on trained models, and what uploads tell of a client's classes.

    Members are images that clients trained on, non-members images that they withheld (wrapper
    `audit`). An AUC of 50 % is that of guessing.
    """

    spec = KindSpec(artefact="membership")
    column: ClassVar = COLUMNS.__getitem__

    false_rate: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """False-positive rate of the attacker: the share of non-members that it may take for
    members."""

    def complete(self, settings: Any, output: Any, where: object) -> Any:
        """Return the output with the seeds, whose runs are references of each other."""
        return replace(output, extra=output.extra | {"seeds": [*settings.study.seeds]})

    def measure(self, run: PlottedRun, seeds: list[int]) -> dict[str, float]:
        """Return the numbers of one run, in %; epsilon and distances as they are."""
        own = metrics.artefact(run)
        rounds = metrics.frame(run.rounds).sort_values("round")
        numbers = metrics.accuracies(metrics.evaluation(run.evaluation), run.reported)
        found = {"accuracy": numbers["participating_mean"]}
        if "epsilon" in rounds:
            found["epsilon"] = float(rounds["epsilon"].iloc[-1])
        found["loss_auc"], _ = attack(own["member"], -own["loss"], self.false_rate)
        others = [metrics.frame(_of_seed(run, k)) for k in seeds if k != run.seed]
        known = ratio(own, others)
        if known["member"].nunique() == 2:
            found["ratio_auc"], found["ratio_rate"] = attack(
                known["member"], known["score"], self.false_rate
            )

        # the distances of the classes that a server guesses
        for name in ("class_distance", "class_distance_blind"):
            found[name] = float(rounds[name].mean())
        return found

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say what the numbers are."""
        return (
            f"mean test accuracy in % of participating clients, {describe_rounds(runs)}; epsilon "
            "after the last "
            "round; AUC in % of membership inference by an image's loss, and by its confidence "
            "minus that of runs of other seeds that did not train on it; true positives in % of "
            f"the latter at {100 * self.false_rate:g} % false positives; total variation distance "
            "of a client's class shares and those that a server guesses from the upload, mean over "
            "rounds and clients, and of equal shares"
        )


def _of_seed(run: PlottedRun, seed: int) -> Path:
    """Return the artefact of another seed of a run, which the table has among its inputs."""
    assert run.artefact is not None, "the kind names one"
    return run.artefact.parents[1].with_name(f"seed{seed}") / "artefacts" / run.artefact.name
