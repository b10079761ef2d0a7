"""Make the jobs of a study from its settings and a rule's wildcards, or a run's labels."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, product

from fedloom.common.json_types import JsonDict
from fedloom.config import protocols
from fedloom.config import settings as config
from fedloom.config.protocols import is_trial, job_ends, method_of, reported, study_of
from fedloom.config.settings import VALIDATION, Output, Settings
from fedloom.config.study import Study
from fedloom.hooks.manifest import TEST_SETS, find_method
from fedloom.planning import job_specs
from fedloom.planning.run_labels import Run, Wildcards
from fedloom.planning.runs import output_seeds


def make_job(settings: Settings, rule: str, wildcards: Wildcards) -> job_specs.Job:
    """Return the job of a rule; a job of `train` lacks the digest of its sources.

    Raises:
        ValueError: there is no such rule.
    """
    match rule:
        # jobs of images and of backbones, which runs share
        case "dataset":
            return _dataset_job(settings, wildcards)
        case "partition":
            return _partition_job(settings, wildcards)
        case "partition_chart":
            return job_specs.PartitionChartJob(
                wildcards.dataset, wildcards.partition, int(wildcards.seed)
            )
        case "cache":
            return job_specs.CacheJob(
                wildcards.cache, wildcards.dataset, settings.backbones[wildcards.backbone]
            )
        case "prototypes":
            return _prototypes_job(settings, wildcards)
        case "block_accuracy":
            return job_specs.BlockAccuracyJob(wildcards.dataset, wildcards.backbone)

        # jobs of one run, or of the trials before it
        case "train":
            return _train_job(settings, wildcards)
        case "choose":
            return choose_job(settings, wildcards)
        case "evaluate":
            return _evaluate_job(settings, wildcards)
        case "artefact":
            return artefact_job(settings, wildcards)

        # jobs of many runs
        case "table":
            return table_job(settings, wildcards.label)
        case "figure":
            return figure_job(settings, wildcards.label)

    raise ValueError(f"no rule '{rule}'")


def _dataset_job(settings: Settings, wildcards: Wildcards) -> job_specs.DatasetJob:
    """Return the job that writes a store.

    It leaves out the estimates and notes of a recipe, so that a change of these runs no job.
    """
    dataset = settings.datasets[wildcards.dataset]
    plain = replace(dataset, expected=config.Expected(), domains=None, notes=())
    return job_specs.DatasetJob(plain)


def _partition_job(settings: Settings, wildcards: Wildcards) -> job_specs.PartitionJob:
    """Return the job that divides images over clients.

    It leaves out `transfer_to`, which names datasets to test on: these do not change the division.
    """
    partition = settings.partitions[wildcards.partition]
    keys = {key: value for key, value in partition.settings.items() if key != "transfer_to"}
    return job_specs.PartitionJob(
        wildcards.dataset, replace(partition, settings=keys), int(wildcards.seed)
    )


def _prototypes_job(settings: Settings, wildcards: Wildcards) -> job_specs.PrototypesJob:
    """Return the job that computes the warm start, from as many clients as a round samples."""
    study = study_of(settings, wildcards.partition)
    return job_specs.PrototypesJob(
        dataset=wildcards.dataset,
        partition=wildcards.partition,
        backbone=wildcards.backbone,
        seed=int(wildcards.seed),
        clients_per_round=study.clients_per_round,
        sampling=study.fixed_seeds.sampling,
    )


def _train_job(settings: Settings, wildcards: Wildcards) -> job_specs.TrainJob:
    """Return the job that trains the rounds up to the wildcard `end`.

    It lacks the digest of its sources.
    """
    study = study_of_run(settings, wildcards)
    rounds = rounds_of(settings, wildcards)
    evaluated, sampled = rounds_to_evaluate(study, rounds)

    # a job that samples no clients does not depend on how many would be sampled
    evaluate_clients = None
    if sampled:
        evaluate_clients = study.evaluate_clients

    return job_specs.TrainJob(
        spec=run_spec(settings, Run.of(wildcards)),
        first=rounds.start,
        last=rounds.stop,
        evaluate=evaluated,
        global_test=study.global_test,
        sources="",
        confusion=study.confusion,
        trial=is_trial(settings, wildcards.partition),
        sampled=sampled,
        evaluate_clients=evaluate_clients,
    )


def choose_job(settings: Settings, wildcards: Wildcards) -> job_specs.ChooseJob:
    """Return the job that chooses among a method's trials after their last round."""
    tune = settings.study.tune
    assert tune is not None

    # trials may have other rounds than the runs that they choose options for
    protocol = study_of(settings, wildcards.partition + VALIDATION, wildcards.method)
    return job_specs.ChooseJob(
        dataset=wildcards.dataset,
        partition=wildcards.partition,
        backbone=wildcards.backbone,
        method=wildcards.method,
        trials=settings.trials[wildcards.method],
        seed=tune.seed,
        last=protocol.rounds,
    )


def _evaluate_job(settings: Settings, wildcards: Wildcards) -> job_specs.EvaluateJob:
    """Return the job that joins the rows of all training jobs of a run."""
    study = study_of_run(settings, wildcards)
    return job_specs.EvaluateJob(
        run=Run.of(wildcards),
        ends=tuple(job_ends(study)),
        confusion=study.confusion,
        trial=is_trial(settings, wildcards.partition),
    )


def artefact_job(settings: Settings, wildcards: Wildcards) -> job_specs.ArtefactJob:
    """Return the job that computes a table from the state after a run's last round."""
    # only the artefact TEST_SETS reads other datasets
    targets: tuple[str, ...] = ()
    if wildcards.artefact == TEST_SETS:
        targets = transferred_to(settings, wildcards)

    return job_specs.ArtefactJob(
        spec=run_spec(settings, Run.of(wildcards)),
        last=study_of_run(settings, wildcards).rounds,
        artefact=wildcards.artefact,
        transfer_to=targets,
    )


def table_job(settings: Settings, label: str) -> job_specs.TableJob:
    """Return the job that writes a table."""
    output = settings.tables[label]
    return job_specs.TableJob(
        study=settings.study.name,
        label=label,
        kind=output.kind,
        module=type(output.entry).__module__,
        title=getattr(output.entry, "title", None),
        settings=output.settings,
        published=output.published,
        shown=_shown(settings, output),
        tuned=_tuned(settings, output),
    )


def figure_job(settings: Settings, label: str) -> job_specs.FigureJob:
    """Return the job that draws a figure."""
    output = settings.figures[label]
    if output.entry.needs().shows == "backbones":
        # a figure of frozen backbones has no runs
        shown = None
        datasets = dict.fromkeys(scenario.dataset for scenario in output.scenarios)
        backbones = tuple(map("/".join, product(datasets, output.backbones)))
    else:
        shown = _shown(settings, output)
        backbones = ()

    return job_specs.FigureJob(
        study=settings.study.name,
        label=label,
        kind=output.kind,
        module=type(output.entry).__module__,
        settings=output.settings,
        shown=shown,
        backbones=backbones,
    )


def _tuned(settings: Settings, output: Output) -> job_specs.Tuned | None:
    """Return how the options of a table's methods were chosen; None if the config sets them."""
    tune = settings.study.tune
    labels = [method for method in output.methods if method in settings.trials]
    if tune is None or not labels:
        return None

    # the numbers of rounds of the trials, which partitions and methods may set
    partitions = [scenario.partition + VALIDATION for scenario in output.scenarios]
    pairs = product(partitions, labels)
    rounds = {study_of(settings, *pair).rounds for pair in pairs}

    return job_specs.Tuned(
        methods=tuple(labels),
        trials=tune.trials,
        rounds=tuple(sorted(rounds)),
        seed=tune.seed,
        share=tune.validation,
    )


def _shown(settings: Settings, output: Output) -> job_specs.PlotInputs:
    """Return the runs that a table or figure shows, in the order of the study's methods."""
    crossed = product(output.scenarios, output.backbones)
    return job_specs.PlotInputs(
        scenarios=tuple(f"{scenario}/{backbone}" for scenario, backbone in crossed),
        methods=tuple(_plotted_methods(settings, output)),
        seeds=output_seeds(settings, output),
        artefact=output.entry.needs().artefact,
        reported=_reported(settings, output),
    )


def _reported(settings: Settings, output: Output) -> dict[str, config.Reported]:
    """Return the rounds of an output's runs that tables report, by the keys of PlotInputs."""
    result = dict[str, config.Reported]()
    partitions = {scenario.partition for scenario in output.scenarios}
    for partition in partitions:
        result[partition] = reported(study_of(settings, partition))

    # methods with rounds of their own
    own = [method for method in output.methods if settings.methods[method].rounds is not None]
    for partition, method in product(partitions, own):
        result[f"{partition}/{method}"] = reported(study_of(settings, partition, method))
    return result


def _plotted_methods(settings: Settings, output: Output) -> Iterator[job_specs.PlottedMethod]:
    """Yield the methods of a table or figure; the members of a grid together are one of them."""
    methods = [settings.methods[m] for m in settings.select.methods if m in output.methods]
    for label, group in groupby(methods, _label_of_group):
        members = list(group)
        plugin = find_method(members[0].plugin)
        grid = settings.grids.get(label)

        # if the members of a grid train different parts, no part is stated
        parts = {plugin.trained_part(method.options) for method in members}
        trains = ""
        if len(parts) == 1:
            trains = parts.pop()

        yield job_specs.PlottedMethod(
            label=label,
            title=(grid or members[0]).title,
            look=members[0].look,
            trains=trains,
            sees_held_out=plugin.server_sees_held_out,
            grid=grid,
            positions=tuple(each.member.position for each in members if each.member),
        )


def _label_of_group(method: config.Method) -> str:
    """Return the label under which a method is shown: its grid's label, or its own."""
    if method.member is not None:
        return method.member.grid
    return method.label


def run_spec(settings: Settings, run: Run) -> job_specs.RunSpec:
    """Return everything that a run's numbers depend on, except the options of `choose`."""
    study = study_of_run(settings, run)
    method = method_of(settings, run.partition, run.method)
    trials = trials_of(settings, run)

    # The number of rounds counts only if the schedule or the method reads it, so that all other
    # studies can be extended. A method without training has no schedule.
    tried = [trial.options.get("training.schedule") for trial in trials]
    is_cosine = "cosine" in (method.training.get("schedule"), *tried)
    schedule_rounds = None
    if is_cosine or find_method(method.plugin).uses_rounds:
        schedule_rounds = study.rounds

    return job_specs.RunSpec(
        run=run,
        backbone=backbone_of(settings, run),
        method=job_specs.MethodSpec(
            plugin=method.plugin,
            options=method.options,
            training=method.training,
            wrappers=method.wrappers,
            needs=method.needs,
        ),
        clients_per_round=study.clients_per_round,
        rounds_per_job=study.rounds_per_job,
        schedule_rounds=schedule_rounds,
        stacked=study.stacked,
        tuned=bool(trials),
        fixed_seeds=config.ResolvedSeeds(
            study.fixed_seeds.sampling, study.fixed_seeds.initialisation
        ),
    )


def transferred_to(settings: Settings, labels: Run | Wildcards) -> tuple[str, ...]:
    """Return the labels of the other datasets on which a run's clients are tested in the end."""
    targets = settings.partitions[labels.partition].settings.get("transfer_to", ())
    return tuple(label for label in targets if label != labels.dataset)


def study_of_run(settings: Settings, labels: Run | Wildcards) -> Study:
    """Return the study with the values that the run of these labels has (config.protocols)."""
    return study_of(settings, labels.partition, labels.method)


def trials_of(settings: Settings, labels: Run | Wildcards) -> tuple[config.Trial, ...]:
    """Return the trials from which a run's options are chosen; none if the config sets them."""
    if is_trial(settings, labels.partition):
        return ()
    return settings.trials.get(labels.method, ())


def backbone_of(settings: Settings, labels: Run | Wildcards) -> config.BackboneSettings:
    """Return a run's backbone, with the settings that its study adds."""
    study = settings.study
    backbone = settings.backbones[labels.backbone]

    # defaults are not added: the settings then stay as they are in the config
    added = JsonDict()
    if study.precision != "float32":
        added["precision"] = study.precision
    if study.gradient_checkpointing:
        added["gradient_checkpointing"] = True
    return replace(backbone, settings=backbone.settings | added)


def rounds_of(settings: Settings, wildcards: Wildcards) -> range:
    """Return the rounds of a training job, counted from 0; the job is named by its last round."""
    size = settings.study.rounds_per_job
    last = int(wildcards.end)
    return range((last - 1) // size * size, last)


def rounds_to_evaluate(study: Study, rounds: range) -> list[tuple[int, ...]]:
    """Return two lists of a job's rounds: those after which clients are evaluated, and sampled.

    After a round of the second list, only a sample of the clients is evaluated.
    """
    of_job = []
    for numbers in (protocols.evaluated_rounds(study), protocols.sampled_rounds(study)):
        # evaluations count rounds from 1, jobs from 0
        own = tuple(number for number in numbers if number - 1 in rounds)
        of_job.append(own)
    return of_job
