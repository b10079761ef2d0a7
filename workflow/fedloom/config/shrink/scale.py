"""State the numbers to which `--smoke` shrinks a study."""

from typing import NamedTuple

from fedloom.common.json_types import JsonDict


class Scale(NamedTuple):
    """The numbers to which a study is shrunk."""

    rounds: int
    seeds: int
    # training options: the most that a study, a partition or a method may have
    training: dict[str, int]
    # about the number of training images of each data set
    images: int
    # backbones keep their size and precision, with random weights; images keep their size
    real: bool

    @property
    def remark(self) -> str:
        """The sentence that begins all captions."""
        if self.real:
            return (
                "Smoke run: made-up images, random weights and one step a client, so that the "
                "numbers mean nothing."
            )

        # a stream has more rounds than other partitions of the study
        return (
            "Smoke run: made-up images, small backbones and few rounds, so that the numbers mean "
            "nothing."
        )


# all of a study in minutes on two cores
MICRO = Scale(
    rounds=2,
    seeds=2,
    training={"epochs": 1, "batch_size": 8, "local_steps": 2},
    images=120,
    real=False,
)
# a step of each method at its real size
REAL = Scale(
    rounds=1,
    seeds=1,
    training={"local_steps": 1},
    images=640,
    real=True,
)


def limit_training(training: JsonDict, scale: Scale) -> JsonDict:
    """Return training options of a partition or a method, none above its limit."""
    limited = dict(training)
    for key, most in scale.training.items():
        if limited.get(key) is not None:
            limited[key] = min(limited[key], most)
    return limited


def limit_report(report: JsonDict, scale: Scale) -> JsonDict:
    """Return the keys of `report` with at most as many evaluations as there are rounds."""
    return {key: min(count, scale.rounds) for key, count in report.items()}
