"""Accuracies of methods: the main table and ablations, clients held out, and domains."""

from typing import ClassVar

from fedloom.config.output_kinds import AccuracyTable
from fedloom.report import metrics, requirements
from fedloom.report.tables.layout import Column
from fedloom.study.plot_inputs import PlottedRun

COLUMNS = {
    "participating_mean": Column("Mean"),
    "participating_worst": Column("Worst"),
    "pooled": Column("Pooled"),
    "held_out_mean": Column("Held-out mean"),
    "held_out_worst": Column("Held-out worst"),
    "global": Column("Global test set"),
    "backdoor_rate": Column("Backdoor rate", higher_is_better=False),
}
GROUPS = {"participating_mean": Column("Participating"), "held_out_mean": Column("Held-out")}
DOMAIN = "domain_"


class Accuracy(AccuracyTable):
    """Mean over clients, and the worst client (PEP-FedPT Tables 1, 4, 5, 7-12).

    The mean is unweighted, and the worst is the minimum over clients; those held out are apart.
    """

    pooled: bool = False
    """A column more, in which all test images of the participating clients count together, beside
    the mean over clients."""
    column: ClassVar = COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the accuracies of a run in percent, see `metrics.accuracies`."""
        rows = metrics.evaluation(run.evaluation, self.personalized)
        numbers = metrics.accuracies(rows, run.reported)
        return numbers | ({"pooled": metrics.pooled(rows, run.reported)} if self.pooled else {})

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say whose accuracy is shown, and at which rounds."""
        text = f"test accuracy of clients in %, {at(runs)}"
        if self.pooled:
            text += "; pooled: over all test images of the participating clients together"
        if "global" in self.measure(runs[0]):
            text += (
                "; global test set: all test images, with the server's model or, where a method "
                "has none, the participating clients' own, averaged"
            )
        return text + without(self)


class HeldOut(AccuracyTable):
    """Participating and held-out clients side by side (PEP-FedPT Tables 3, 13)."""

    requires = (requirements.held_out,)
    column: ClassVar = GROUPS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the mean accuracy of both groups in percent; without held-out clients, of one."""
        rows = metrics.evaluation(run.evaluation, self.personalized)
        numbers = metrics.accuracies(rows, run.reported)
        return {name: numbers[name] for name in GROUPS if name in numbers}

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say which two groups of clients are compared, and at which rounds."""
        return (
            "mean test accuracy in % of clients that take part in training and of clients held "
            f"out, {at(runs)}"
        )


class Domains(AccuracyTable):
    """Mean over each domain's clients, over all, and pooled (PEP-FedPT Table 2)."""

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Compute accuracies in percent of the participating clients at the reported rounds.

        `domain_<name>` is the unweighted mean over the clients of a domain; a client whose images
        belong to several has the domain "a+b".
        """
        evaluated = metrics.evaluation(run.evaluation, self.personalized)
        group = evaluated[evaluated["participating"]]
        rows = group[group["round"].isin(run.reported.rounds)]
        by_domain = metrics.percent(rows).groupby([rows["domain"], rows["round"]]).mean()
        means = by_domain.groupby("domain").mean()
        return {f"{DOMAIN}{name}": float(value) for name, value in means.items()} | {
            "participating_mean": float(metrics.by_round(rows).mean()),
            "participating_worst": metrics.worst(group, run.reported),
            "pooled": metrics.pooled(group, run.reported),
        }

    def column(self, metric: str) -> Column:
        """Return how an accuracy is shown; a domain's heading is its name."""
        if metric.startswith(DOMAIN):
            return Column(metric.removeprefix(DOMAIN) or "(none)")
        return COLUMNS[metric]

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say over which clients the accuracies are, and at which rounds."""
        return (
            "test accuracy in % of the participating clients: mean over each domain's clients, "
            f"mean and worst over all, and over all their test images pooled; {at(runs)}"
        ) + without(self)


def without(table: AccuracyTable) -> str:
    """Say so if methods that personalise clients are shown without it."""
    return "" if table.personalized else "; without personalisation before the test"


def at(runs: list[PlottedRun]) -> str:
    """Say at which rounds the runs' accuracies were measured; by run where these differ."""
    # methods report other rounds than others on the same partition
    several = len({(r.partition, r.reported) for r in runs}) > len({r.partition for r in runs})
    names: dict[str, dict[str, None]] = {}
    for run in runs:
        name = f"{run.title} on {run.partition}" if several else run.partition
        names.setdefault(_rounds(run), {})[name] = None
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{', '.join(of_text)}: {text}" for text, of_text in names.items())


def _rounds(run: PlottedRun) -> str:
    """Say which rounds are reported of a run."""
    rounds, worst = run.reported.rounds, run.reported.worst_of
    names = ", ".join(map(str, rounds))
    text = f"round {names}" if len(rounds) == 1 else f"mean of rounds {names}"
    if worst:
        text += (
            f" (worst: the lowest mean over clients of {len(worst)} evaluations, rounds {worst[0]} "
            f"to {worst[-1]})"
        )
    return text
