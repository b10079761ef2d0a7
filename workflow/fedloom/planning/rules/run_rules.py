"""Define the rules whose jobs belong to one run, or to the trials before it."""

from pathlib import Path

from fedloom.config.protocols import is_trial, job_ends, study_for
from fedloom.config.settings import VALIDATION, Settings
from fedloom.hooks.manifest import TEST_SETS, find_method
from fedloom.planning import choices, paths
from fedloom.planning.job_specs import ArtefactJob, ChooseJob, EvaluateJob, RunSpec, TrainJob
from fedloom.planning.rules.rule import Code, Rule, code_of_backbone, receipts_of, with_receipt
from fedloom.planning.run_labels import Run, Wildcards
from fedloom.planning.settings_of_run import (
    rounds_of_job,
    rounds_to_evaluate,
    run_spec,
    study_of_run,
    transfer_targets,
)


class TrainRule(Rule[TrainJob]):
    """Trains some rounds of a run."""

    name = "train"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> TrainJob:
        """Return the job that trains the rounds up to the wildcard `end`.

        It lacks the digest of its sources, which the plan adds.
        """
        study = study_of_run(settings, wildcards)
        rounds = rounds_of_job(settings, wildcards)
        evaluated_rounds, sampled_rounds = rounds_to_evaluate(study, rounds)

        # a job that samples no clients does not depend on how many would be sampled
        clients_per_sample = None
        if sampled_rounds:
            clients_per_sample = study.evaluate_clients

        return TrainJob(
            spec=run_spec(settings, Run.from_labels(wildcards)),
            after=rounds.start,
            last=rounds.stop,
            evaluated_rounds=evaluated_rounds,
            global_test=study.global_test,
            sources="",
            confusion=study.confusion,
            trial=is_trial(settings, wildcards.partition),
            sampled_rounds=sampled_rounds,
            clients_per_sample=clients_per_sample,
        )

    def inputs(self, job: TrainJob) -> list[Path]:
        """Return the files of the run, with the state after the job before."""
        # the first job of a run begins without a state
        states = []
        if job.after:
            states.append(job.after)
        return _files_of_run(job.spec, states)

    def outputs(self, job: TrainJob) -> list[Path]:
        """Return the state after the last round with its receipt, and the tables of the rounds."""
        end = paths.four_digits(job.last)
        state = paths.path_for(paths.STATE, job.spec.run, end=end)
        patterns = _table_patterns(paths.JOB_TABLES, job.confusion)
        tables = [paths.path_for(pattern, job.spec.run, end=end) for pattern in patterns]
        return [*with_receipt(state), *tables]

    def named_code(self, job: TrainJob) -> Code:
        """Return the code of the run."""
        return _code_of_run(job.spec)


class ChooseRule(Rule[ChooseJob]):
    """Chooses among a method's trials."""

    name = "choose"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> ChooseJob:
        """Return the job that compares the trials after their last round."""
        tune = settings.study.tune
        assert tune is not None

        # trials may have other rounds than the runs that they choose options for
        protocol = study_for(settings, wildcards.partition + VALIDATION, wildcards.method)
        return ChooseJob(
            dataset=wildcards.dataset,
            partition=wildcards.partition,
            backbone=wildcards.backbone,
            method=wildcards.method,
            trials=settings.trials[wildcards.method],
            seed=tune.seed,
            last=protocol.rounds,
        )

    def inputs(self, job: ChooseJob) -> list[Path]:
        """Return the evaluation of every trial."""
        return [evaluation for _, evaluation in choices.trial_evaluations(job)]

    def outputs(self, job: ChooseJob) -> list[Path]:
        """Return the table of the chosen options, and the table of all trials."""
        choice = paths.path_for(paths.CHOICE, **vars(job))
        trials = paths.path_for(paths.TRIALS, **vars(job))
        return [choice, trials]


class EvaluateRule(Rule[EvaluateJob]):
    """Joins the tables of a run's training jobs."""

    name = "evaluate"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> EvaluateJob:
        """Return the job, which has the last rounds of all training jobs of the run."""
        study = study_of_run(settings, wildcards)
        plugin = find_method(settings.methods[wildcards.method].plugin)
        return EvaluateJob(
            run=Run.from_labels(wildcards),
            ends=tuple(job_ends(study)),
            confusion=study.confusion,
            checks_loss=plugin.trained and not is_trial(settings, wildcards.partition),
        )

    def inputs(self, job: EvaluateJob) -> list[Path]:
        """Return the receipt of the state of every training job, and its tables."""
        ends = [paths.four_digits(end) for end in job.ends]
        patterns = [
            paths.receipt(paths.STATE),
            *_table_patterns(paths.JOB_TABLES, job.confusion),
        ]
        found = list[Path]()
        for pattern in patterns:
            found += [paths.path_for(pattern, job.run, end=end) for end in ends]
        return found

    def outputs(self, job: EvaluateJob) -> list[Path]:
        """Return the tables of the run."""
        patterns = _table_patterns(paths.RUN_TABLES, job.confusion)
        return [paths.path_for(pattern, job.run) for pattern in patterns]


class ArtefactRule(Rule[ArtefactJob]):
    """Computes a table from the last state of a run."""

    name = "artefact"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> ArtefactJob:
        """Return the job; only the artefact TEST_SETS reads other datasets."""
        targets: tuple[str, ...] = ()
        if wildcards.artefact == TEST_SETS:
            targets = transfer_targets(settings, wildcards)

        return ArtefactJob(
            spec=run_spec(settings, Run.from_labels(wildcards)),
            last=study_of_run(settings, wildcards).rounds,
            artefact=wildcards.artefact,
            transfer_to=targets,
        )

    def inputs(self, job: ArtefactJob) -> list[Path]:
        """Return the files of the run with its last state, and those of the other datasets."""
        run = job.spec.run
        found = _files_of_run(job.spec, [job.last])
        for dataset in job.transfer_to:
            others = paths.other_inputs(dataset, run, job.spec.method.needs)
            found += receipts_of(others.values())
        return found

    def outputs(self, job: ArtefactJob) -> list[Path]:
        """Return the table."""
        return [paths.path_for(paths.ARTEFACT, job.spec.run, artefact=job.artefact)]

    def named_code(self, job: ArtefactJob) -> Code:
        """Return the code of the run."""
        return _code_of_run(job.spec)


def _code_of_run(spec: RunSpec) -> Code:
    """Return the code of a run's backbone, and the plugins of its method and wrappers."""
    modules, plugins = code_of_backbone(spec.backbone.library)
    entries = (spec.method, *spec.method.wrappers)
    return modules, (*plugins, *(find_method(entry.plugin) for entry in entries))


def _files_of_run(spec: RunSpec, states: list[int]) -> list[Path]:
    """Return the files that a job of a run reads.

    These are the run's data, its states after the rounds `states`, and its chosen options.
    """
    # large files are represented by their receipts
    large = [*paths.run_inputs(spec.run, spec.method.needs).values()]
    large += [
        paths.path_for(paths.STATE, spec.run, end=paths.four_digits(round_number))
        for round_number in states
    ]
    files = receipts_of(large)

    if spec.tuned:
        files.append(paths.path_for(paths.CHOICE, spec.run))
    return files


def _table_patterns(patterns: dict[str, str], confusion: bool) -> list[str]:
    """Return the patterns of the tables that a run has (see paths.table_names)."""
    return [patterns[name] for name in paths.table_names(confusion)]
