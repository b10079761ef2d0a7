"""The colours and markers of methods."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedloom.cli.run.bundled_studies import OTHERS
from fedloom.hooks import manifest
from fedloom.planning.load_plan import read_plan
from fedloom.report.figures.style import LINE_COLOURS, LINES, MARKERS, assign_styles, with_styles
from fedloom.report.plotted_runs import LineStyle, plotted_runs
from figure_cases import label_of, plan_of

HOUSE_WISH = st.fixed_dictionaries(
    {},
    optional={"colour": st.sampled_from(LINE_COLOURS), "marker": st.sampled_from(MARKERS)},
)
WISH = st.fixed_dictionaries(
    {},
    optional={
        "colour": st.sampled_from([*LINE_COLOURS, *map(str.lower, LINE_COLOURS), "#123456"]),
        "marker": st.sampled_from(MARKERS),
    },
)


@given(st.lists(WISH, max_size=len(LINE_COLOURS) * len(MARKERS)))
def test_no_two_rows_of_a_figure_share_colour_and_marker(wishes):
    looks = assign_styles(wishes)
    pairs = [(look.colour, look.marker) for look in looks]
    assert len(set(pairs)) == len(wishes)
    assert looks == assign_styles([dict(wish) for wish in wishes])
    granted = {}
    for wish, pair in zip(wishes, pairs, strict=True):
        if len(wish) == 2:
            granted.setdefault((wish["colour"].upper(), wish["marker"]), pair)
    assert all(asked == got for asked, got in granted.items()), "the first that asks has its own"


def _grey(colour: str) -> int:
    """Return the level of a colour, from 0 to 255, as a printer of greys has it (ITU-R BT.601)."""
    level = Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0))
    assert isinstance(level, int)
    return level


def _alike_in_grey(looks: list[LineStyle]) -> list[tuple[LineStyle, LineStyle]]:
    """Return the pairs of rows whose lines, or whose bars, grey print shows alike."""
    pairs = []
    for one, other in combinations(looks, 2):
        if abs(_grey(one.colour) - _grey(other.colour)) < 15:
            same_line = (one.marker, one.line) == (other.marker, other.line)
            if same_line or one.hatch == other.hatch:
                pairs.append((one, other))
    return pairs


@given(st.lists(HOUSE_WISH, max_size=12))
def test_grey_print_tells_twelve_rows_apart(wishes):
    assert not _alike_in_grey(assign_styles(wishes))


def test_grey_print_tells_the_twelve_methods_of_the_photographs_apart():
    settings = read_plan([OTHERS / "real/cifar10.yaml"]).settings
    labels = settings.select.methods
    assert len(labels) == 12
    looks = [manifest.find_method(settings.methods[label].plugin).look.plain for label in labels]
    assert not _alike_in_grey(assign_styles(looks))


def test_looks_are_dealt_by_colour_then_marker_then_line():
    every = len(LINE_COLOURS) * len(MARKERS) * len(LINES)
    assert len(set(assign_styles([{}] * every))) == every
    assert len({look.colour for look in assign_styles([{}] * len(LINE_COLOURS))}) == len(
        LINE_COLOURS
    )
    own = {"colour": "#123456", "marker": "s"}
    first, *others = assign_styles([own] * len(MARKERS))
    assert (first.colour, first.line, first.marker) == ("#123456", 0, "s")
    assert {look.colour for look in others} == {"#123456"}, "labels of one plugin share a colour"
    assert len({look.line for look in [first, *others][: len(LINES)]}) == len(LINES)
    assert assign_styles([{}, {"colour": LINE_COLOURS[0]}, own])[2] == first


def test_no_two_plugins_look_alike_and_none_is_yellow_on_white():
    plugins = [p for p in manifest.discover_methods().values() if p.kind == "method"]
    looks = assign_styles([plugin.look.plain for plugin in plugins])
    assert [(p.look.colour, p.look.marker) for p in plugins] == [
        (look.colour, look.marker) for look in looks
    ]
    assert not any(look.colour.lower() == "#f0e442" for look in looks)


def test_a_method_keeps_its_look_whichever_methods_a_study_runs():
    def looks(plan):
        runs = plotted_runs(plan.job("figure", label_of("accuracy")).shown)
        return {run.method: run.style for run in with_styles(runs)}

    every = looks(plan_of(figures=["accuracy"]))
    some = looks(plan_of(figures=["accuracy"], methods=["pep_fedpt"]))
    assert some.items() <= every.items()
    assert len(set(every.values())) == len(every)
