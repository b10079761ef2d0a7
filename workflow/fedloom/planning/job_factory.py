"""The jobs of a study, each made from the settings and a rule's wildcards, or labels of a run."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, product
from typing import Any

from fedloom.config import protocols
from fedloom.config import settings as config
from fedloom.config.protocols import is_trial, job_ends, method_of, reported, study_of
from fedloom.config.settings import VALIDATION, Output, Settings
from fedloom.config.study import Study
from fedloom.hooks.manifest import TEST_SETS, find
from fedloom.planning import job_specs
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import output_seeds


def make_job(settings: Settings, rule: str, wildcards: Any) -> Any:
    """Return the job of a rule; that of `train` without the digest of its sources."""
    w = wildcards
    match rule:
        case "dataset":  # a store does not depend on estimates and notes of a recipe
            dataset = settings.datasets[w.dataset]
            plain = replace(dataset, expected=config.Expected(), domains=None, notes=())
            return job_specs.DatasetJob(plain)

        case "partition":
            partition = settings.partitions[w.partition]  # who is tested elsewhere divides nothing
            keys = {k: v for k, v in partition.settings.items() if k != "transfer_to"}
            return job_specs.PartitionJob(w.dataset, replace(partition, settings=keys), int(w.seed))

        case "partition_chart":
            return job_specs.PartitionChartJob(w.dataset, w.partition, int(w.seed))

        case "cache":
            return job_specs.CacheJob(w.cache, w.dataset, settings.backbones[w.backbone])

        case "prototypes":
            study = study_of(settings, w.partition)
            return job_specs.PrototypesJob(
                dataset=w.dataset,
                partition=w.partition,
                backbone=w.backbone,
                seed=int(w.seed),
                clients_per_round=study.clients_per_round,
                sampling=study.fixed_seeds.sampling,
            )

        case "block_accuracy":
            return job_specs.BlockAccuracyJob(w.dataset, w.backbone)

        case "train":
            study = study_of_run(settings, w)
            rounds = rounds_of(settings, w)
            evaluated, sampled = evaluations(study, rounds)
            return job_specs.TrainJob(
                spec=run_spec(settings, Run.of(w)),
                first=rounds.start,
                last=rounds.stop,
                evaluate=evaluated,
                global_test=study.global_test,
                sources="",
                confusion=study.confusion,
                trial=is_trial(settings, w.partition),
                sampled=sampled,
                evaluate_clients=study.evaluate_clients if sampled else None,
            )

        case "choose":
            tune = settings.study.tune
            labels = (w.dataset, w.partition, w.backbone, w.method)
            assert tune is not None
            last = study_of(settings, w.partition + VALIDATION, w.method).rounds
            return job_specs.ChooseJob(*labels, settings.trials[w.method], tune.seed, last)

        case "evaluate":
            study = study_of_run(settings, w)
            trial = is_trial(settings, w.partition)
            return job_specs.EvaluateJob(Run.of(w), tuple(job_ends(study)), study.confusion, trial)

        case "artefact":
            last = study_of_run(settings, w).rounds
            targets = transferred_to(settings, w) if w.artefact == TEST_SETS else ()
            return job_specs.ArtefactJob(run_spec(settings, Run.of(w)), last, w.artefact, targets)

        case "table":
            return _output_job(settings, settings.tables[w.label])

        case "figure":
            return _output_job(settings, settings.figures[w.label])

    raise ValueError(f"no rule '{rule}'")


def _output_job(settings: Settings, output: Output) -> job_specs.TableJob | job_specs.FigureJob:
    """Return the job that writes a table or draws a figure."""
    shared: dict[str, Any] = {
        "study": settings.study.name,
        "label": output.label,
        "kind": output.kind,
        "module": type(output.keys).__module__,
        "settings": output.settings,
    }

    # a figure of frozen backbones has no runs
    if output.keys.needs().shows == "backbones":
        datasets = dict.fromkeys(scenario.dataset for scenario in output.scenarios)
        pairs = map("/".join, product(datasets, output.backbones))
        return job_specs.FigureJob(**shared, shown=None, backbones=tuple(pairs))

    # runs, and of a table what its text says of them
    shared["shown"] = _shown(settings, output)
    if output.section == "figures":
        return job_specs.FigureJob(**shared, backbones=())
    title = getattr(output.keys, "title", None)
    tuned = _tuned(settings, output)
    return job_specs.TableJob(**shared, title=title, published=output.published, tuned=tuned)


def _tuned(settings: Settings, output: Output) -> job_specs.Tuned | None:
    """Return how the options of a table's methods were chosen, if they were."""
    tune = settings.study.tune
    labels = [method for method in output.methods if method in settings.trials]
    if tune is None or not labels:
        return None
    pairs = product((scenario.partition + VALIDATION for scenario in output.scenarios), labels)
    rounds = {study_of(settings, *pair).rounds for pair in pairs}
    return job_specs.Tuned(
        tuple(labels), tune.trials, tuple(sorted(rounds)), tune.seed, tune.validation
    )


def _shown(settings: Settings, output: Output) -> job_specs.PlotInputs:
    """Return the runs that a table or figure shows, in the order of the study's methods."""
    crossed = product(output.scenarios, output.backbones)
    return job_specs.PlotInputs(
        scenarios=tuple(f"{scenario}/{backbone}" for scenario, backbone in crossed),
        methods=tuple(_plotted_methods(settings, output)),
        seeds=output_seeds(settings, output),
        artefact=output.keys.needs().artefact,
        reported=_reported(settings, output),
    )


def _reported(settings: Settings, output: Output) -> dict[str, Any]:
    """Return the reported rounds of an output's runs, see jobs.PlotInputs."""
    partitions = {scenario.partition for scenario in output.scenarios}
    result = {partition: reported(study_of(settings, partition)) for partition in partitions}
    own = [method for method in output.methods if settings.methods[method].rounds is not None]
    pairs = product(partitions, own)
    return result | {"/".join(pair): reported(study_of(settings, *pair)) for pair in pairs}


def _plotted_methods(settings: Settings, output: Output) -> Iterator[job_specs.PlottedMethod]:
    """Yield methods as a table or figure shows them, members of a grid together."""
    methods = [settings.methods[m] for m in settings.select.methods if m in output.methods]
    for label, group in groupby(methods, lambda m: m.member.grid if m.member else m.label):
        members = list(group)
        plugin = find(members[0].plugin)
        grid = settings.grids.get(label)
        parts = {plugin.trained_part(method.options) for method in members}
        yield job_specs.PlottedMethod(
            label=label,
            title=(grid or members[0]).title,
            look=members[0].look,
            trains=parts.pop() if len(parts) == 1 else "",
            sees_held_out=plugin.server_sees_held_out,
            grid=grid,
            positions=tuple(each.member.position for each in members if each.member),
        )


def run_spec(settings: Settings, run: Run) -> job_specs.RunSpec:
    """Return everything that a run's numbers depend on, except the options of `choose`."""
    study = study_of_run(settings, run)
    method = method_of(settings, run.partition, run.method)
    trials = trials_of(settings, run)
    tried = [trial.options.get("training.schedule") for trial in trials]

    # methods without training have no schedule
    cosine = "cosine" in (method.training.get("schedule"), *tried)

    return job_specs.RunSpec(
        run=run,
        backbone=backbone_of(settings, run),
        method=job_specs.MethodSpec(
            method.plugin, method.options, method.training, method.wrappers, method.needs
        ),
        clients_per_round=study.clients_per_round,
        rounds_per_job=study.rounds_per_job,
        schedule_rounds=study.rounds if cosine or find(method.plugin).uses_rounds else None,
        stacked=study.stacked,
        tuned=bool(trials),
        fixed=config.ResolvedSeeds(study.fixed_seeds.sampling, study.fixed_seeds.initialisation),
    )


def transferred_to(settings: Settings, labels: Any) -> tuple[str, ...]:
    """Return the datasets, others than the run's, that its clients are tested on after training."""
    targets = settings.partitions[labels.partition].settings.get("transfer_to", ())
    return tuple(label for label in targets if label != labels.dataset)


def study_of_run(settings: Settings, labels: Any) -> Study:
    """Return the study as the run of these labels has it, see fedloom.config.protocols."""
    return study_of(settings, labels.partition, labels.method)


def trials_of(settings: Settings, labels: Any) -> tuple[config.Trial, ...]:
    """Return the trials that a run's options are chosen from; none if they are the config's."""
    if is_trial(settings, labels.partition):
        return ()
    return settings.trials.get(labels.method, ())


def backbone_of(settings: Settings, labels: Any) -> config.Backbone:
    """Return a run's backbone, with the settings that its study adds."""
    study = settings.study
    backbone = settings.backbones[labels.backbone]
    added = {"precision": study.precision, "gradient_checkpointing": study.gradient_checkpointing}
    added = {key: value for key, value in added.items() if value not in ("float32", False)}
    return replace(backbone, settings=backbone.settings | added)


def rounds_of(settings: Settings, wildcards: Any) -> range:
    """Return the rounds of a training job, counted from 0."""
    size = settings.study.rounds_per_job
    last = int(wildcards.end)
    return range((last - 1) // size * size, last)


def evaluations(study: Study, rounds: range) -> list[tuple[int, ...]]:
    """Return those of a job's rounds after which clients are evaluated: all, sampled."""
    every = protocols.evaluated_rounds(study), protocols.sampled_rounds(study)
    return [tuple(n for n in numbers if n - 1 in rounds) for numbers in every]
