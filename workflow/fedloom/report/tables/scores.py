"""Tabulate scores that weigh every class alike, and the calibration error."""

from collections.abc import Callable
from typing import Literal

import pandas as pd

from fedloom.config.output_kinds import RunsTable
from fedloom.config.settings import KindSpec
from fedloom.planning.paths import COUNTS_OF_ANSWERS
from fedloom.report import metrics, requirements, scores
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.accuracy import describe_rounds
from fedloom.report.tables.layout import Column

TITLES = {
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "ece": "ECE",
}
# the words that a title begins with; the scores per client of participating clients have none
WORDS = {"participating": "", "held_out": "held-out ", "clients": "", "pooled": "pooled "}
DESCRIPTIONS = {
    "clients": "mean over clients",
    "pooled": "on the pooled test images of all clients",
    "both": "mean over clients, and on their pooled test images",
}


class Scores(RunsTable):
    """Balanced accuracy, macro F1, macro precision, macro recall and expected calibration error
    (ECE), in %, of participating and of held-out clients.

    Each score is computed of every client and averaged over clients, or computed once on the test
    images of all clients together. Classes weigh alike: a macro score is the unweighted mean over
    the classes that have test images or are predicted, and balanced accuracy is the mean recall of
    the classes that have test images. The two differ if a class without test images is predicted,
    as a client's often is; macro recall is shown only if they differ in some run. ECE is the
    distance between accuracy and confidence in 15 bins of confidence; with few test images a client
    it is too high by chance, so compare it between methods or take pooled images. Methods that
    personalise answer after that.
    """

    spec = KindSpec(run_tables=COUNTS_OF_ANSWERS, requires=(requirements.counted_answers,))

    over: Literal["clients", "pooled", "both"] = "clients"
    """Over what a score is computed: every client's own test images, of which the mean over clients
    is shown; the test images of all clients pooled; or both."""

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the mean over the reported rounds of each score, named <group>_<over>_<score>.

        A group without clients is left out.
        """
        numbers: dict[str, float] = {}
        for group, participating in metrics.IS_PARTICIPATING.items():
            rounds = run.reported.rounds
            confusion = scores.counts_of(run, run.confusion, rounds, participating)
            calibration = scores.counts_of(run, run.calibration, rounds, participating)
            if confusion.empty:
                continue

            for over in self._shown():
                found = _means(confusion, over, scores.macro_scores)
                found |= _means(calibration, over, _calibration_score)
                numbers |= {f"{group}_{over}_{name}": value for name, value in found.items()}
        return numbers

    def _shown(self) -> tuple[str, ...]:
        """Return over what scores are shown: clients, pooled, or one after the other."""
        if self.over == "both":
            return ("clients", "pooled")
        return (self.over,)

    def select_columns(self, measured: list[dict[str, float]]) -> list[dict[str, float]]:
        """Leave out a macro recall that equals the balanced accuracy beside it in every run."""
        names = dict.fromkeys(name for numbers in measured for name in numbers)
        repeated = set[str]()
        for name in names:
            other = name.replace("_recall", "_balanced_accuracy")
            if name != other and all(run.get(name) == run.get(other) for run in measured):
                repeated.add(name)
        return [
            {name: value for name, value in numbers.items() if name not in repeated}
            for numbers in measured
        ]

    def column(self, metric: str) -> Column:
        """Return the heading of a score; of two calibration errors, the lower is better."""
        for group in metrics.IS_PARTICIPATING:
            for over in ("clients", "pooled"):
                start = f"{group}_{over}_"
                if metric.startswith(start):
                    score = metric.removeprefix(start)
                    title = f"{WORDS[group]}{WORDS[over]}{TITLES[score]}"
                    return Column(title[0].upper() + title[1:], score != "ece")
        raise KeyError(metric)

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say what the scores are of."""
        return f"scores of test answers in %, {DESCRIPTIONS[self.over]}"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        """Return sentences on the weights of classes, and on the rounds that count."""
        return (
            "Classes weigh alike, except in the calibration error, in which images do.",
            f"Scores are from {describe_rounds(runs)}.",
        )


def _means(
    rows: pd.DataFrame, over: str, compute: Callable[[pd.DataFrame], dict[str, float]]
) -> dict[str, float]:
    """Return the mean over rounds of some scores.

    Args:
        rows: counts of answers by round and client.
        over: `clients` for the mean over clients, `pooled` for the scores of their added counts.
        compute: returns the scores of some rows.
    """
    keys = ["round"]
    if over == "clients":
        keys.append("client_id")
    found = {key: compute(own) for key, own in rows.groupby(keys)}
    by_key = pd.DataFrame.from_dict(found, orient="index")

    # every round weighs alike, however many clients were evaluated
    rounds = [key[0] for key in found]
    means = by_key.groupby(rounds).mean().mean()
    return {str(name): float(value) for name, value in means.items()}


def _calibration_score(calibration: pd.DataFrame) -> dict[str, float]:
    """Return the expected calibration error in percent, by the name of its column."""
    return {"ece": scores.calibration_error(calibration)}
