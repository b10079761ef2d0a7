"""List the files that a job reads and writes; they follow from the job alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedloom.common.receipts import receipt_of
from fedloom.config.kinds import KINDS
from fedloom.planning import choices, job_specs, output_runs, paths

# the suffixes of results that may be large; each has a receipt beside it with its digest
LARGE_SUFFIXES = (".arrow", ".safetensors")


def outputs(rule: str, job: job_specs.Job) -> list[Path]:
    """Return the files that a job writes, including the receipts beside large files.

    The log and the receipt of the job are named after the first file.
    """
    match job:
        case job_specs.DatasetJob():
            return _with_receipt(paths.path_for(paths.STORE, dataset=job.dataset.label))

        case job_specs.PartitionJob():
            labels = {"dataset": job.dataset, "partition": job.partition.label, "seed": job.seed}
            return _with_receipt(paths.path_for(paths.PARTITION, **labels))

        case job_specs.PartitionChartJob():
            chart = paths.path_for(paths.PARTITION_CHART, **vars(job))
            return [chart, chart.with_suffix(".pdf")]

        case job_specs.CacheJob():
            labels = {"cache": job.cache, "dataset": job.dataset, "backbone": job.backbone.label}
            return _with_receipt(paths.path_for(paths.CACHE, **labels))

        case job_specs.PrototypesJob():
            return _with_receipt(paths.path_for(paths.PROTOTYPES, **vars(job)))

        case job_specs.BlockAccuracyJob():
            return [paths.path_for(paths.BLOCK_ACCURACY, **vars(job))]

        case job_specs.TrainJob():
            end = paths.four_digits(job.last)
            state = paths.path_for(paths.STATE, job.spec.run, end=end)
            patterns = _run_tables(paths.JOB_TABLES, job.confusion)
            tables = [paths.path_for(pattern, job.spec.run, end=end) for pattern in patterns]
            return [*_with_receipt(state), *tables]

        case job_specs.ChooseJob():
            choice = paths.path_for(paths.CHOICE, **vars(job))
            trials = paths.path_for(paths.TRIALS, **vars(job))
            return [choice, trials]

        case job_specs.EvaluateJob():
            patterns = _run_tables(paths.RUN_TABLES, job.confusion)
            return [paths.path_for(pattern, job.run) for pattern in patterns]

        case job_specs.ArtefactJob():
            return [paths.path_for(paths.ARTEFACT, job.spec.run, artefact=job.artefact)]

        case job_specs.TableJob():
            first = paths.path_for(paths.TABLE, study=job.study, label=job.label)
            return [first.with_suffix(f".{name}") for name in paths.TABLE_FORMATS]

        case job_specs.FigureJob():
            first = paths.path_for(paths.FIGURE, study=job.study, label=job.label)
            return [first, first.with_suffix(".png")]

    raise ValueError(f"no rule '{rule}'")


def job_inputs(rule: str, job: job_specs.Job) -> list[Path]:
    """Return the results that a job reads, with the receipt of each large file in its place."""
    match job:
        case job_specs.DatasetJob():
            return []

        case job_specs.PartitionJob() | job_specs.CacheJob():
            return _receipts(paths.data_inputs(rule, dataset=job.dataset).values())

        case job_specs.PrototypesJob() | job_specs.BlockAccuracyJob():
            return _receipts(paths.data_inputs(rule, **vars(job)).values())

        case job_specs.PartitionChartJob():
            # the store's receipt has the names of the classes
            store = paths.path_for(paths.STORE, dataset=job.dataset)
            return _receipts([*paths.data_inputs(rule, **vars(job)).values(), store])

        case job_specs.TrainJob():
            # the first job of a run begins without a state
            states = []
            if job.first:
                states.append(job.first)
            return _of_run(job.spec, states)

        case job_specs.ArtefactJob():
            run = job.spec.run
            found = _of_run(job.spec, [job.last])
            for dataset in job.transfer_to:
                others = paths.other_inputs(dataset, run, job.spec.method.needs)
                found += _receipts(others.values())
            return found

        case job_specs.ChooseJob():
            return [evaluation for _, evaluation in choices.trial_evaluations(job)]

        case job_specs.EvaluateJob():
            # of every training job: the receipt of its state, and its tables
            ends = [paths.four_digits(number) for number in job.ends]
            patterns = [
                paths.receipt(paths.STATE),
                *_run_tables(paths.JOB_TABLES, job.confusion),
            ]
            found = list[Path]()
            for pattern in patterns:
                found += [paths.path_for(pattern, job.run, end=end) for end in ends]
            return found

        case job_specs.TableJob() | job_specs.FigureJob():
            kind: Any = KINDS[f"{rule}s"][job.kind]
            return [Path(file) for file in output_runs.files(job, kind.spec)]

    raise ValueError(f"no rule '{rule}'")


def _of_run(spec: job_specs.RunSpec, states: list[int]) -> list[Path]:
    """Return the files that a job of a run reads.

    These are the run's data, its states after the rounds `states`, and its chosen options.
    """
    # large files are represented by their receipts
    large = [*paths.run_inputs(spec.run, spec.method.needs).values()]
    large += [
        paths.path_for(paths.STATE, spec.run, end=paths.four_digits(number)) for number in states
    ]
    files = _receipts(large)

    if spec.tuned:
        files.append(paths.path_for(paths.CHOICE, spec.run))
    return files


def _run_tables(patterns: dict[str, str], confusion: bool) -> list[str]:
    """Return the patterns of the tables that a run has; the table `confusion` is optional."""
    return [patterns[name] for name in paths.table_names(confusion)]


def _with_receipt(file: Path) -> list[Path]:
    """Return a large file and the receipt beside it."""
    return [file, receipt_of(file)]


def _receipts(files: Iterable[Path]) -> list[Path]:
    """Return the receipts of large files."""
    return [receipt_of(file) for file in files]
