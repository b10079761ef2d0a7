"""Draw the jobs of the default study, from its plan, as README shows them.

    PYTHONPATH=workflow .venv/bin/python docs/pages/workflow_picture.py

A box is a rule, with the number of its jobs; the trials of `study.tune` have boxes of their own. An
arrow says that jobs of one rule read what jobs of the other made. It is left out where every such
job also waits for the other by way of jobs between them.
"""

from collections import Counter
from html import escape
from pathlib import Path

from fedloom.config.settings import VALIDATION
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.study_jobs import jobs_of_study

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/assets/workflow.svg"

# lengths in pixels
COLUMN = 106
ROW = 58
WIDTH = 90  # of a box
HEIGHT = 40
MARGIN = 14
HEAD = 34  # above the first row
LANE_HEIGHT = 114  # of the trials

INK = "#1f2937"
FAINT = "#5b6472"
LINE = "#94a3b8"
LANE = "#f4f6fa"
# fills of boxes: what is written by hand, data, features, training, results
PLAN_FILL = "#fff4d6"
DATA = "#e2efe4"
FEATURES = "#e2ecf7"
TRAINING = "#fde4d3"
RESULTS = "#ece4f4"

# a box is named after its rule, with this behind it for the jobs of trials
TRIALS = "*"
# for each box: its column, its row, its fill
PLACES = {
    "config.yaml": (0, 1.8, PLAN_FILL),
    "dataset": (1, 1.8, DATA),
    "partition*": (2, 0, DATA),
    "cache": (2, 1.8, FEATURES),
    "partition": (2, 3.1, DATA),
    "prototypes*": (3, 0.65, FEATURES),
    "prototypes": (3, 2.45, FEATURES),
    "train*": (4, 0, TRAINING),
    "evaluate*": (5, 0, RESULTS),
    "choose": (6, 0, TRAINING),
    "train": (7, 1.2, TRAINING),
    "evaluate": (8, 0.6, RESULTS),
    "artefact": (8, 1.55, RESULTS),
    "block_accuracy": (8, 2.5, FEATURES),
    "partition_chart": (9, 3.1, DATA),
    "table": (9, 0.6, RESULTS),
    "figure": (9, 1.8, RESULTS),
    "report": (10, 1.5, RESULTS),
}
# a box that stands for no rule has these words below its name, in place of a number of jobs
BELOW = {"config.yaml": "you write it", "report": "one page"}
# arrows that no job's files show: planning reads the config, and `fedloom report` makes the report
BY_HAND = {
    ("config.yaml", "dataset"),
    ("table", "report"),
    ("figure", "report"),
    ("partition_chart", "report"),
}


def boxes_and_arrows(plan: Plan) -> tuple[Counter[str], set[tuple[str, str]]]:
    """Return the number of jobs in each box, and the pairs of boxes between which is an arrow."""
    # every job, named by its first file: its box, its inputs, and the files that it makes
    box_of = dict[str, str]()
    maker = dict[str, str]()
    inputs = dict[str, set[str]]()
    for rule, found in jobs_of_study(plan).items():
        for first, wildcards in found.items():
            job = plan.job(rule, wildcards)
            name = str(first)
            box_of[name] = rule
            if VALIDATION in name:
                box_of[name] += TRIALS
            inputs[name] = set(map(str, RULES[rule].inputs(job)))
            for output in RULES[rule].outputs(job):
                maker[str(output)] = name

    # for each job, the jobs that made its inputs; some inputs are made by none
    before = dict[str, set[str]]()
    for job, files in inputs.items():
        before[job] = {maker[file] for file in files if file in maker}

    # for each job, all jobs that must have ended before it
    ancestors = dict[str, set[str]]()

    def collect(job: str) -> set[str]:
        """Return all jobs before a job."""
        if job not in ancestors:
            ancestors[job] = before[job].union(*map(collect, before[job]))
        return ancestors[job]

    arrows = set[tuple[str, str]]()
    for job, makers in before.items():
        by_way_of_others = set[str]().union(*map(collect, makers))
        arrows |= {(box_of[other], box_of[job]) for other in makers - by_way_of_others}
    return Counter(box_of.values()), arrows


def drawing(counts: Counter[str], arrows: set[tuple[str, str]]) -> str:
    """Return the picture as SVG."""
    columns = max(column for column, _, _ in PLACES.values()) + 1
    rows = max(row for _, row, _ in PLACES.values()) + 1
    width = round(2 * MARGIN + COLUMN * columns - (COLUMN - WIDTH))
    height = round(HEAD + ROW * rows + MARGIN)

    # the lane of the trials lies below all
    left = _left("partition*") - 8
    lane = _left("choose") + WIDTH + 8 - left
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif">',
        "<title>The jobs of the default study, from its config to its report</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{LINE}"/></marker>',
        "</defs>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<rect x="{left}" y="{HEAD - 24}" width="{lane}" height="{LANE_HEIGHT}" rx="6" '
        f'fill="{LANE}"/>',
        f'<text x="{left + 8}" y="{HEAD - 8}" font-size="11" fill="{FAINT}">trials of '
        "study.tune, on images that clients hold back</text>",
    ]
    parts += [_arrow(first, second) for first, second in sorted(arrows | BY_HAND)]
    parts += [_box(box, counts[box]) for box in PLACES]
    return "\n".join([*parts, "</svg>", ""])


def _left(box: str) -> float:
    """Return the left edge of a box."""
    return MARGIN + COLUMN * PLACES[box][0]


def _middle(box: str) -> float:
    """Return the height of the middle of a box."""
    return HEAD + ROW * PLACES[box][1] + HEIGHT / 2


def _box(box: str, count: int) -> str:
    """Return a box with its name and the number of its jobs."""
    fill = PLACES[box][2]
    x = _left(box)
    y = _middle(box)
    rule = box.removesuffix(TRIALS)
    parts = [
        f'<rect x="{x}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
        f'fill="{fill}" stroke="{LINE}"/>',
        f'<text x="{x + WIDTH / 2:g}" y="{y - 2:g}" font-size="11" text-anchor="middle" '
        f'fill="{INK}">{escape(rule)}</text>',
    ]
    jobs = f"{count} jobs"
    if count == 1:
        jobs = "1 job"
    below = BELOW.get(box, jobs)
    parts.append(
        f'<text x="{x + WIDTH / 2:g}" y="{y + 13:g}" font-size="11" text-anchor="middle" '
        f'fill="{FAINT}">{below}</text>'
    )
    return "\n".join(parts)


def _arrow(first: str, second: str) -> str:
    """Return an arrow from the right edge of a box to the left edge of a later one."""
    x1 = _left(first) + WIDTH
    x2 = _left(second) - 2
    y1 = _middle(first)
    y2 = _middle(second)
    if PLACES[second][0] <= PLACES[first][0]:
        raise ValueError(
            f"{second} must lie to the right of {first}, got columns {PLACES[second][0]} and "
            f"{PLACES[first][0]}; move it in PLACES"
        )
    bend = max(24, (x2 - x1) / 2)
    path = f"M{x1:g} {y1:g} C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="{LINE}" marker-end="url(#head)"/>'


if __name__ == "__main__":
    PICTURE.write_text(drawing(*boxes_and_arrows(load_plan())), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
