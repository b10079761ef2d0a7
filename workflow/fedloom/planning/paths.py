"""Define the path of every result, as a pattern with wildcards of Snakemake (see `path_for`)."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from fedloom.common.receipts import receipt_path
from fedloom.planning.run_labels import RUN_NAME, Run

RESULTS = "results"
STORE = "results/datasets/{dataset}/images.arrow"
PARTITION = "results/partitions/{dataset}/{partition}/seed{seed}.parquet"
PARTITION_CHART = "results/partitions/{dataset}/{partition}/seed{seed}.png"
CACHE = "results/{cache}/{dataset}/{backbone}.safetensors"
FEATURES = CACHE.replace("{cache}", "features")
PATCHES = CACHE.replace("{cache}", "patches")
PROTOTYPES = "results/prototypes/{dataset}/{partition}/{backbone}/seed{seed}.safetensors"
BLOCK_ACCURACY = "results/block_accuracy/{dataset}/{backbone}.parquet"
# the digest of a hub's weights
WEIGHTS = "results/weights/{backbone}.json"
# the sizes of backbones that do not ship, as they were counted here
BACKBONE_SIZES = "results/counted_sizes.json"

# a run: its state after the last round of each job, and, beside the states, the checkpoint of the
# job at work
RUN = f"results/runs/{RUN_NAME}"
STATE = RUN + "/rounds/{end}.safetensors"
CHECKPOINT = "checkpoint.safetensors"
EVALUATION = RUN + "/evaluation.parquet"
ROUNDS = RUN + "/rounds.parquet"
# the tables of a run that only studies with `confusion` have
COUNTS_OF_ANSWERS = ("confusion", "calibration")
# the tables of a run by name, and those of its jobs, from which the former are joined
RUN_TABLE_NAMES = ("evaluation", "rounds", "clients", *COUNTS_OF_ANSWERS)
RUN_TABLES = {name: f"{RUN}/{name}.parquet" for name in RUN_TABLE_NAMES}
JOB_TABLES = {name: f"{RUN}/rounds/{{end}}.{name}.parquet" for name in RUN_TABLE_NAMES}
TRIALS = "results/choices/{dataset}/{partition}/{backbone}/{method}/trials.parquet"
CHOICE = "results/choices/{dataset}/{partition}/{backbone}/{method}/chosen.parquet"
ARTEFACT = RUN + "/artefacts/{artefact}.parquet"
TABLE = "results/tables/{study}/{label}.md"
# the endings of a table's files
TABLE_FORMATS = ("md", "csv", "tex", "html", "parquet")
FIGURE = "results/figures/{study}/{label}.pdf"
REPORT = "results/report/{study}.html"
# the record of a study's runs, once it has finished
RECORD = "results/studies/{study}.parquet"
# the keys of a study that was started from Python
GIVEN = "results/studies/{study}.yaml"
# the folder in which a study runs shrunk (`fedloom run --smoke`), with results of its own; the
# scale is "smoke" or "smoke_real"
SHRUNK = "results/{scale}/{study}"
# a folder for a paper's supplement
EXPORT = "results/export/{study}"
# a folder that a tracker writes to
TRACKED = "results/tracked/{tracker}"
LOGS = "results/logs"
# the receipts of jobs: what their results were made from
RECEIPTS = "results/receipts"

# the data files of a run by name, and, for each rule before training, the names of those it reads
DATA_OF_A_RUN = {
    "store": STORE,
    "partition": PARTITION,
    "features": FEATURES,
    "patches": PATCHES,
    "prototypes": PROTOTYPES,
}
INPUTS = {
    "partition": ("store",),
    "partition_chart": ("partition",),
    "cache": ("store",),
    "prototypes": ("store", "partition", "features"),
    "block_accuracy": ("store", "features"),
}

# the folder that holds RESULTS, see `results_below`
_FOLDER = ContextVar("folder", default=Path())


@contextmanager
def results_below(folder: Path) -> Iterator[None]:
    """Within the block, results lie in `folder`/results instead of results.

    A process that is not a job can then run jobs apart from the results of the current folder. All
    other paths, such as those of the user's images, still begin in the current folder.
    """
    before = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(before)


def table_names(confusion: bool) -> list[str]:
    """Return the names of the tables that a run has: all, or all but COUNTS_OF_ANSWERS."""
    return [name for name in RUN_TABLE_NAMES if confusion or name not in COUNTS_OF_ANSWERS]


def path_for(pattern: str, run: Run | None = None, /, **wildcards: object) -> Path:
    """Return the path of a pattern; its wildcards are filled in from a run's labels and by name."""
    labels = dict[str, object]()
    if run is not None:
        labels.update(vars(run))
    labels.update(wildcards)
    return _FOLDER.get() / pattern.format(**labels)


def data_inputs(rule: str, **wildcards: object) -> dict[str, Path]:
    """Return the data files that a job of this rule reads, by name."""
    return {name: path_for(DATA_OF_A_RUN[name], **wildcards) for name in INPUTS[rule]}


def run_inputs(run: Run, needs: Collection[str]) -> dict[str, Path]:
    """Return the data files that a run reads: `store`, `partition` and those it `needs`."""
    read = ("store", "partition", *needs)
    return {name: path_for(DATA_OF_A_RUN[name], run) for name in DATA_OF_A_RUN if name in read}


def other_inputs(dataset: str, run: Run, needs: Collection[str]) -> dict[str, Path]:
    """Return the files of another dataset that a run is tested on: `store` and the caches."""
    names = ["store", *(name for name in needs if name in ("features", "patches"))]
    return {name: path_for(DATA_OF_A_RUN[name], run, dataset=dataset) for name in names}


def four_digits(round_number: int) -> str:
    """Return the wildcard `end` of a job: its last round, in four digits."""
    return f"{round_number:04}"


def receipt(pattern: str) -> str:
    """Return the pattern of the receipt of a file, see fedloom.common.receipts."""
    return str(receipt_path(Path(pattern)))


def log_path(rule: str, pattern: str) -> str:
    """Return the log of the rule that makes `pattern`.

    It is the pattern with `.log` for its suffix, and LOGS/<rule> for its first two folders.
    """
    _, _, name = pattern.split("/", 2)
    return f"{LOGS}/{rule}/{Path(name).with_suffix('.log')}"


def job_receipt(file: Path) -> Path:
    """Return the path of the receipt of the job that makes a result.

    It is the path of the result and ".json", below RECEIPTS.
    """
    relative_path = file.relative_to(RESULTS)
    return Path(RECEIPTS, relative_path.with_name(f"{relative_path.name}.json"))
