"""Define the columns of the tables that jobs write, and that later jobs and reports read.

A table may have more columns: numbers that methods and wrappers add, and a run's labels. This
module imports no torch, since reports do not need it.
"""

import pyarrow as pa


def _columns(names: str, arrow_type: pa.DataType) -> list[pa.Field]:
    """Return columns of one type; the words of `names` are their names."""
    return [pa.field(name, arrow_type) for name in names.split()]


EVALUATION_SCHEMA = pa.schema(
    [
        *_columns("round client_id", pa.int32()),
        *_columns("domain", pa.string()),
        *_columns("participating personalized", pa.bool_()),
        *_columns("num_test num_correct", pa.int32()),
        *_columns("loss", pa.float64()),
    ]
)
# the artefact `test_sets`: evaluations on several sets of test images
TEST_SETS_SCHEMA = EVALUATION_SCHEMA.append(pa.field("test_set", pa.string()))
# the artefact `answers`: what clients answer on a few test images; `picture` is a PNG file
ANSWERS_SCHEMA = pa.schema(
    [
        *_columns("client_id", pa.int32()),
        *_columns("image", pa.int64()),
        *_columns("label predicted", pa.int32()),
        *_columns("probability", pa.float64()),
        *_columns("picture", pa.binary()),
    ]
)
ROUNDS_SCHEMA = pa.schema(
    [
        *_columns("round", pa.int32()),
        *_columns("seconds processor_seconds", pa.float64()),
        *_columns("threads cores", pa.int32()),
        *_columns("bytes_up bytes_up_used bytes_down", pa.int64()),
        *_columns("train_loss guessing_loss", pa.float64()),
        *_columns("clients", pa.int32()),
    ]
)
CLIENTS_SCHEMA = pa.schema(
    [
        *_columns("round client_id", pa.int32()),
        *_columns("num_examples", pa.int64()),
        *_columns("work", pa.float64()),
        *_columns("received", pa.bool_()),
        *_columns("bytes_up bytes_down", pa.int64()),
    ]
)
CONFUSION_SCHEMA = pa.schema(_columns("round client_id label predicted count", pa.int32()))
# the bins of confidence have one width, and are numbered from 0
CALIBRATION_BINS = 15
CALIBRATION_SCHEMA = pa.schema(
    [
        *_columns("round client_id bin count correct", pa.int32()),
        # the sum of the confidences of the bin's images
        *_columns("confidence", pa.float64()),
    ]
)
RUN_SCHEMAS = {
    "evaluation": EVALUATION_SCHEMA,
    "rounds": ROUNDS_SCHEMA,
    "clients": CLIENTS_SCHEMA,
    "confusion": CONFUSION_SCHEMA,
    "calibration": CALIBRATION_SCHEMA,
    "test_sets": TEST_SETS_SCHEMA,
    "answers": ANSWERS_SCHEMA,
}
PARTITION_SCHEMA = pa.schema(
    [
        *_columns("index", pa.int64()),
        *_columns("client_id label", pa.int32()),
        *_columns("test participating", pa.bool_()),
        *_columns("domain", pa.string()),
    ]
)
BLOCK_ACCURACY_SCHEMA = pa.schema(
    [*_columns("block", pa.int64()), *_columns("top1 top5", pa.float64())],
)
CHOICE_SCHEMA = pa.schema(_columns("trial options", pa.string()))
TRIALS_SCHEMA = pa.schema(
    [*CHOICE_SCHEMA, *_columns("accuracy", pa.float64()), *_columns("chosen", pa.bool_())],
)
# the labels of a run
RUN_LABELS_SCHEMA = pa.schema(
    [*_columns("dataset partition backbone method", pa.string()), *_columns("seed", pa.int64())],
)
# the record of a study (planning/records.py)
RECORD_SCHEMA = pa.schema(
    [
        *RUN_LABELS_SCHEMA,
        *_columns("title options split sha256", pa.string()),
        *_columns("rounds", pa.int64()),
        *_columns("test_sets", pa.bool_()),
    ]
)
