"""Tabulate accuracies: on clients, on domains, and on classes or domains without training."""

from statistics import fmean, harmonic_mean
from typing import ClassVar

from fedloom.common.ids import BASE_CLASSES, NOVEL_CLASSES, OTHER_DATASET_PREFIX, OWN_IMAGES
from fedloom.config.output_kinds import AccuracyTable, RunsTable
from fedloom.config.settings import KindSpec, ReportedRounds
from fedloom.hooks.manifest import TEST_SETS
from fedloom.report import metrics, requirements
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.layout import Column

ACCURACY_COLUMNS = {
    "participating_mean": Column("Mean"),
    "participating_worst": Column("Worst"),
    "pooled": Column("Pooled"),
    "held_out_mean": Column("Held-out mean"),
    "held_out_worst": Column("Held-out worst"),
    "global": Column("Global test set"),
    "backdoor_rate": Column("Backdoor rate", higher_is_better=False),
}
GROUP_COLUMNS = {
    "participating_mean": Column("Participating"),
    "held_out_mean": Column("Held-out"),
}


class Accuracy(AccuracyTable):
    """Mean accuracy over clients, and the worst client's (PEP-FedPT Tables 1, 4, 5, 7-12).

    The mean is unweighted, and the worst is the minimum over clients; held-out clients have
    separate columns. The column of the global test set shows the accuracy on all test images: that
    of the server's model or, if a method has none, the mean over the participating clients' own
    models.
    """

    column: ClassVar = ACCURACY_COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        rows = metrics.evaluation(run.evaluation, self.personalized)
        return metrics.accuracies(rows, run.reported)

    def describe(self, runs: list[PlottedRun]) -> str:
        return "test accuracy of clients in %"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return reported_accuracies(self, runs)


class HeldOut(AccuracyTable):
    """Mean accuracy of participating and of held-out clients (PEP-FedPT Tables 3, 13)."""

    spec = KindSpec(requires=(requirements.held_out,))
    column: ClassVar = GROUP_COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        rows = metrics.evaluation(run.evaluation, self.personalized)
        numbers = metrics.accuracies(rows, run.reported)
        return {name: numbers[name] for name in GROUP_COLUMNS if name in numbers}

    def describe(self, runs: list[PlottedRun]) -> str:
        return "test accuracy in % of clients that take part in training and of clients held out"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return reported_accuracies(self, runs)


class Domains(AccuracyTable):
    """Mean accuracy over the clients of each domain, mean and worst over all clients, and accuracy
    on the pooled test images of all clients (PEP-FedPT Table 2).
    """

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Compute accuracies in percent of the participating clients at the reported rounds.

        `domain_<name>` is the unweighted mean over the clients of a domain. A client with images of
        several domains has the domain "a+b".
        """
        evaluated = metrics.evaluation(run.evaluation, self.personalized)
        in_rounds = evaluated["round"].isin(run.reported.rounds)
        rows = evaluated[evaluated["participating"] & in_rounds]

        # the mean over the clients of a domain, then over rounds
        by_domain = metrics.percent(rows).groupby([rows["domain"], rows["round"]]).mean()
        means = by_domain.groupby("domain").mean()
        numbers = {f"{metrics.DOMAIN_PREFIX}{name}": float(mean) for name, mean in means.items()}

        # over all domains
        overall = metrics.accuracies(evaluated, run.reported)
        for name in ("participating_mean", "participating_worst"):
            numbers[name] = overall[name]
        numbers["pooled"] = metrics.pooled(evaluated, run.reported)
        return numbers

    def column(self, metric: str) -> Column:
        if metric.startswith(metrics.DOMAIN_PREFIX):
            return Column(metric.removeprefix(metrics.DOMAIN_PREFIX) or "(none)")
        return ACCURACY_COLUMNS[metric]

    def describe(self, runs: list[PlottedRun]) -> str:
        return "test accuracy of participating clients in %, by domain"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        columns = (
            "The column of a domain is the mean over its clients; mean and worst are over all "
            "participating clients, and pooled is the accuracy on the test images of all of them."
        )
        return (columns, *reported_accuracies(self, runs))


def heading(self: RunsTable, metric: str) -> Column:
    """Return the column of an accuracy; if it is on another dataset, the heading is its label."""
    if metric.startswith(OTHER_DATASET_PREFIX):
        return Column(metric.removeprefix(OTHER_DATASET_PREFIX))
    return Column(metric.replace("_", " ").capitalize())


class BaseToNovel(RunsTable):
    """Mean accuracy over clients on their own test images, on all images of base classes, and on
    all images of novel classes, which no client trains on (FedTPG, FedPGP, FedMGP).

    On images of base classes, a client's model predicts among base classes only; on images of novel
    classes, among novel classes only. One column is the harmonic mean of the three accuracies.
    Another is FedMGP's combined metric: half the accuracy on own images, plus half the harmonic
    mean of the other two. Both are computed from a run's means over clients.
    """

    spec = KindSpec(partition_key="novel_classes", artefact=TEST_SETS)
    column: ClassVar = heading

    def measure(self, run: PlottedRun) -> dict[str, float]:
        means = metrics.by_test_set(run)
        numbers = {name: means[name] for name in (OWN_IMAGES, BASE_CLASSES, NOVEL_CLASSES)}
        unseen = harmonic_mean((numbers[BASE_CLASSES], numbers[NOVEL_CLASSES]))
        numbers["harmonic_mean"] = harmonic_mean(numbers.values())
        numbers["combined"] = fmean((numbers[OWN_IMAGES], unseen))
        return numbers

    def describe(self, runs: list[PlottedRun]) -> str:
        return "test accuracy of participating clients in % on own images, base and novel classes"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return (
            "Accuracies are means over participating clients after the last round.",
            "On their own images and on all images of base classes, models predict among base "
            "classes; on all images of novel classes, which no client trains on, among novel "
            "classes.",
            "The harmonic mean is that of all three accuracies.",
            "Combined is the mean of two numbers: the accuracy on own images, and the harmonic "
            "mean of those on base and on novel classes.",
        )


class CrossDataset(RunsTable):
    """Mean accuracy over clients on the classes of training, and on other data sets (FedTPG).

    The column `source` is the accuracy on all test images of the classes of training. There is a
    column for each dataset in `transfer_to`, and the mean over these datasets.
    """

    spec = KindSpec(partition_key="transfer_to", artefact=TEST_SETS)
    column: ClassVar = heading

    def measure(self, run: PlottedRun) -> dict[str, float]:
        means = metrics.by_test_set(run)
        others = {
            name: mean for name, mean in means.items() if name.startswith(OTHER_DATASET_PREFIX)
        }
        numbers = {"source": means[BASE_CLASSES]}
        numbers |= others
        numbers["mean_of_others"] = fmean(others.values())
        return numbers

    def describe(self, runs: list[PlottedRun]) -> str:
        return "test accuracy of participating clients in % on their classes and on other datasets"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return (
            "Accuracies are means over participating clients after the last round, on all test "
            "images.",
            "The source is the classes that clients train on; on another dataset, models predict "
            "among its classes.",
        )


class LeaveOneDomainOut(AccuracyTable):
    """Mean accuracy over the clients of each domain, measured in the partition that leaves this
    domain out of training; and the mean over these partitions."""

    spec = KindSpec(partition_key="held_out_domains", across_partitions=True)
    column: ClassVar = Domains.column

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the mean accuracy of held-out clients in percent, under two names.

        One is the column of their domain. The other is `held_out_mean`, whose mean over partitions
        the table shows.
        """
        rows = metrics.evaluation(run.evaluation, self.personalized)
        mean = metrics.accuracies(rows, run.reported)["held_out_mean"]
        held_out = rows[~rows["participating"] & (rows["domain"] != "")]
        return {
            metrics.DOMAIN_PREFIX + "+".join(held_out["domain"].unique()): mean,
            "held_out_mean": mean,
        }

    def describe(self, runs: list[PlottedRun]) -> str:
        return "test accuracy of clients in %, by the domain that is left out of training"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        columns = "No client trains on the domain of a column, whose clients are tested."
        return (columns, *reported_accuracies(self, runs))


def reported_accuracies(table: AccuracyTable, runs: list[PlottedRun]) -> tuple[str, ...]:
    """Return sentences on the rounds that count, and on personalisation if it is left out."""
    rounds = f"Accuracies are from {describe_rounds(runs)}."
    return (rounds, *without_personalisation(table))


def without_personalisation(table: AccuracyTable) -> tuple[str, ...]:
    """Return a sentence if accuracies are those before personalisation; else none."""
    if table.personalized:
        return ()
    return ("Accuracies are those without personalisation before the test.",)


def describe_rounds(runs: list[PlottedRun]) -> str:
    """Say after which rounds accuracies were measured; by partition and method if these differ."""
    # name methods if two of them report different rounds on the same partition
    partitions = {run.partition for run in runs}
    several = len({(run.partition, run.reported) for run in runs}) > len(partitions)

    # the runs of every text, each named once
    names: dict[str, dict[str, None]] = {}
    for run in runs:
        name = run.partition
        if several:
            name = f"{run.title} on {run.partition}"
        names.setdefault(_rounds(run.reported), {})[name] = None

    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{', '.join(shown)}: {text}" for text, shown in names.items())


def _rounds(reported: ReportedRounds) -> str:
    """Say which rounds are reported."""
    names = ", ".join(map(str, reported.rounds))
    text = f"the mean of rounds {names}"
    if len(reported.rounds) == 1:
        text = f"round {names}"

    worst = reported.worst_of
    if worst:
        ends = f"rounds {worst[0]} to {worst[-1]}"
        text += f" (worst: the lowest mean over clients of {len(worst)} evaluations, {ends})"
    return text
