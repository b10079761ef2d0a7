"""Check what a table or figure requires of its study; its class lists the checks in `requires`.

A check takes the settings of the whole config, the output, and the key path of the output's entry.
It raises a FedLoomError if the requirement is not met.
"""

from functools import partial

from fedloom.common.key_path import KeyPath
from fedloom.config import grids
from fedloom.config.settings import GridMember, OutputEntry, Settings

# the panels that a reader can compare, three in a row
MOST_PANELS = 9


def held_out(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Require that at least one partition that the output shows holds clients out."""
    if not any(settings.partitions[s.partition].holds_out for s in output.scenarios):
        raise where.error(
            "at least one partition of the study must hold clients out; set its key held_out, or "
            f"remove the {output.section.removesuffix('s')}"
        )


def global_test(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Require that the study tests globally, if the output shows the global metric."""
    if "global" in _metrics(output) and not settings.study.global_test:
        raise where.error("metric global needs study.global_test: true")


def held_out_metrics(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Require that every partition of the output holds clients out, if it shows their accuracy."""
    theirs = [metric for metric in _metrics(output) if metric.startswith("held_out")]
    if not theirs:
        return
    for scenario in output.scenarios:
        if not settings.partitions[scenario.partition].holds_out:
            raise where.error(
                f"metric {theirs[0]} needs held-out clients, and partitions.{scenario.partition} "
                "holds none out; hold some out there, or show another metric"
            )


def _metrics(output: OutputEntry) -> list[str]:
    """Return the metrics that an output names in any of its keys."""
    keys = ("metric", "x", "y")
    named = [output.settings[key] for key in keys if key in output.settings]
    return named + output.settings.get("metrics", [])


def counted_answers(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Require that the study counts the answers of its runs by class and by confidence."""
    if not settings.study.confusion:
        raise where.error(f"kind {output.kind} needs study.confusion: true")


def nine_panels(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Require that a figure with a panel per scenario, backbone and method has at most nine."""
    panels = len(output.scenarios) * len(output.backbones) * len(output.methods)
    if panels > MOST_PANELS:
        raise where.error(
            f"must show at most {MOST_PANELS} combinations of scenario, backbone and method, got "
            f"{panels}; name some of them in methods, scenarios or backbones"
        )


def _axes(
    numbers: tuple[int, ...], settings: Settings, output: OutputEntry, where: KeyPath
) -> None:
    """Require that the grid has one of these numbers of axes."""
    member = _member(settings, output)
    if len(member.at) not in numbers:
        wanted = " or ".join(map(str, numbers))
        raise where.error(f"must have {wanted} axes; the grid {member.grid} has {len(member.at)}")


two_axes = partial(_axes, (2,))
three_axes = partial(_axes, (3,))
two_or_three_axes = partial(_axes, (2, 3))


def the_option(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Require that every grid that is shown has the axis `option`, if the output names one."""
    option = output.settings.get("option")
    for label in output.methods:
        member = settings.methods[label].member
        if option is not None and member is not None:
            words = f"the grid {member.grid} has no axis"
            (where / "option").check_known(option, member.at, words)


def one_list(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Require that the grid varies the entries of one list."""
    member = _member(settings, output)
    if len(grids.varied_lists(member)) != 1:
        raise where.error(
            "must show a grid over the entries of one list (axes option.position), got the grid "
            f"{member.grid} with {', '.join(member.at)}"
        )


def _member(settings: Settings, output: OutputEntry) -> GridMember:
    """Return a member of the grid that the output shows."""
    member = settings.methods[output.methods[0]].member
    assert member is not None, "a kind that shows a grid was given its members"
    return member
