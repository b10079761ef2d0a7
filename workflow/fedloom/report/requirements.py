"""State what a table or figure may require of its study; its class names the checks in `requires`.

Each check takes the settings of the whole config, the output and the start of an error, and raises
a FedLoomError that says what to change.
"""

from collections.abc import Callable

from fedloom.common.errors import FedLoomError, check_known
from fedloom.config import grids
from fedloom.config.settings import Output, Settings


def held_out(settings: Settings, output: Output, where: str) -> None:
    """Require that some partition that the output shows holds clients out."""
    if not any(settings.partitions[s.partition].holds_out for s in output.scenarios):
        raise FedLoomError(f"{where}: no partition of the study holds clients out (held_out)")


def global_test(settings: Settings, output: Output, where: str) -> None:
    """Require that the study tests globally, if the output shows the global metric."""
    keys = ("metric", "x", "y")
    shown = [output.settings.get(key) for key in keys] + output.settings.get("metrics", [])
    if "global" in shown and not settings.study.global_test:
        raise FedLoomError(f"{where}: metric global needs study.global_test: true")


def _axes(*numbers: int) -> Callable[[Settings, Output, str], None]:
    """Return the check that the grid has one of these numbers of axes."""

    def check(settings: Settings, output: Output, where: str) -> None:
        label, axes = _grid_axes(settings, output)
        if len(axes) not in numbers:
            words = " or ".join(map(str, numbers))
            raise FedLoomError(f"{where}: must have {words} axes; the grid {label} has {len(axes)}")

    return check


two_axes, three_axes, two_or_three_axes = _axes(2), _axes(3), _axes(2, 3)


def the_option(settings: Settings, output: Output, where: str) -> None:
    """Require that every grid that is shown has the axis `option`, if the output names one."""
    option = output.settings.get("option")
    for label in output.methods:
        member = settings.methods[label].member
        if option is not None and member is not None:
            check_known(option, member.at, f"{where}.option: the grid {member.grid} has no axis")


def one_list(settings: Settings, output: Output, where: str) -> None:
    """Require that the grid varies the entries of one list."""
    label, axes = _grid_axes(settings, output)
    lists = {option for option, entry in map(grids.split, axes) if entry is not None}
    if len(lists) != 1:
        raise FedLoomError(
            f"{where}: boxes take a grid over the entries of one list (axes option.position); the "
            f"grid {label} has {', '.join(axes)}"
        )


def _grid_axes(settings: Settings, output: Output) -> tuple[str, list[str]]:
    """Return the label and the axes of the grid that the output shows."""
    member = settings.methods[output.methods[0]].member
    assert member is not None, "a kind that shows a grid was given its members"
    return member.grid, [axis for axis, _ in settings.grids[member.grid].axes]


def different_shots(settings: Settings, output: Output, where: str) -> None:
    """Require that every partition that the output shows has its own number of shots."""
    labels: dict[int, str] = {}
    for label in dict.fromkeys(scenario.partition for scenario in output.scenarios):
        shots = settings.partitions[label].settings.get("shots")
        if shots is None:
            raise FedLoomError(
                f"{where}: partitions.{label} has no shots; set them, or leave the figure out"
            )
        if shots in labels:
            raise FedLoomError(
                f"{where}: partitions.{labels[shots]} and partitions.{label} both have {shots} "
                "shots; run one of them"
            )
        labels[shots] = label
