"""Find the settings that hold for one run, or for one of its jobs, from its labels."""

from dataclasses import replace

from fedloom.common.json_types import JsonDict
from fedloom.config import protocols
from fedloom.config import settings as config
from fedloom.config.protocols import is_trial, method_for, study_for
from fedloom.config.settings import Settings
from fedloom.config.study import Study
from fedloom.hooks.manifest import find_method
from fedloom.planning.job_specs import MethodSpec, RunSpec
from fedloom.planning.run_labels import Run, Wildcards


def run_spec(settings: Settings, run: Run) -> RunSpec:
    """Return everything that a run's numbers depend on, except the options of `choose`."""
    study = study_of_run(settings, run)
    method = method_for(settings, run.partition, run.method)
    trials = trials_of_run(settings, run)

    # The number of rounds counts only if the schedule or the method reads it, so that all other
    # studies can be extended. A method without training has no schedule.
    tried = [trial.options.get("training.schedule") for trial in trials]
    is_cosine = "cosine" in (method.training.get("schedule"), *tried)
    schedule_rounds = None
    if is_cosine or find_method(method.plugin).uses_rounds:
        schedule_rounds = study.rounds

    return RunSpec(
        run=run,
        backbone=backbone_of_run(settings, run),
        method=MethodSpec(
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


def transfer_targets(settings: Settings, labels: Run | Wildcards) -> tuple[str, ...]:
    """Return the labels of the other datasets on which a run's clients are tested in the end."""
    targets = settings.partitions[labels.partition].settings.get("transfer_to", ())
    return tuple(label for label in targets if label != labels.dataset)


def study_of_run(settings: Settings, labels: Run | Wildcards) -> Study:
    """Return the study with the values that the run of these labels has (config.protocols)."""
    return study_for(settings, labels.partition, labels.method)


def trials_of_run(settings: Settings, labels: Run | Wildcards) -> tuple[config.Trial, ...]:
    """Return the trials from which a run's options are chosen; none if the config sets them."""
    if is_trial(settings, labels.partition):
        return ()
    return settings.trials.get(labels.method, ())


def backbone_of_run(settings: Settings, labels: Run | Wildcards) -> config.BackboneSettings:
    """Return a run's backbone, with the settings that its study adds."""
    study = settings.study
    backbone = settings.backbones[labels.backbone]

    # defaults are not added: the settings then stay as they are in the config
    added = JsonDict()
    if study.precision != "float32":
        added["precision"] = study.precision
    if study.gradient_checkpointing:
        added["gradient_checkpointing"] = True
    if study.compile != "auto":
        added["compile"] = study.compile
    return replace(backbone, settings=backbone.settings | added)


def rounds_of_job(settings: Settings, wildcards: Wildcards) -> range:
    """Return the rounds of a training job, counted from 0; the job is named by its last round."""
    size = settings.study.rounds_per_job
    last = int(wildcards.end)
    return range((last - 1) // size * size, last)


def rounds_to_evaluate(study: Study, rounds: range) -> list[tuple[int, ...]]:
    """Return two lists of a job's rounds: those after which clients are evaluated, and sampled.

    After a round of the second list, only a sample of the clients is evaluated.
    """
    found = []
    for numbers in (protocols.evaluated_rounds(study), protocols.sampled_rounds(study)):
        # evaluations count rounds from 1, jobs from 0
        found.append(tuple(number for number in numbers if number - 1 in rounds))
    return found
