"""Grids of options: what one label stands for, what is an error, and the figures made of them."""

from copy import deepcopy
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from default_config import default_config
from fedloom.common.ids import entry_of
from fedloom.config.settings import FAMILIES, GridMember, ReportedRounds
from fedloom.planning.job_specs import from_json, to_json
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import study_runs
from fedloom.report.figures import grid_plots as drawn
from fedloom.report.plotted_runs import LineStyle, plotted_runs
from refusals import refused
from shown_runs import draw, shown

DEFAULT = default_config()
BLOCKS = {
    "plugin": "pep_fedpt",
    "title": "PEP",
    "options": {"blocks": [5, 6, 7]},
    "grid": {"blocks.2": [7, 9], "tau": [0.5, 1.0], "blocks.0": [1, 2]},
}
LENGTHS = [4, 8, 12, 16, 20, 24, 28, 32]


def _resolved(methods, run=(), figures=(), **sections):
    changed = deepcopy(DEFAULT)
    changed["methods"] |= methods
    changed["figures"] |= dict(figures)
    changed["select"] |= {"tables": ["main"], "figures": [], **dict(run)}
    for name, content in sections.items():
        changed[name] |= content
    return resolve(changed)


def test_a_label_stands_for_every_combination_the_last_axis_fastest():
    methods = _resolved({"g": BLOCKS}).methods
    members = {label: method for label, method in methods.items() if method.member}
    assert list(members) == [
        *("g.7-0.5-1", "g.7-0.5-2", "g.7-1-1", "g.7-1-2"),
        *("g.9-0.5-1", "g.9-0.5-2", "g.9-1-1", "g.9-1-2"),
    ]
    assert "g" not in methods
    chosen = members["g.9-0.5-2"]
    assert chosen.options["blocks"] == [2, 6, 9] and chosen.options["tau"] == 0.5
    assert chosen.title == "PEP, blocks 2-6-9, tau 0.5"
    assert chosen.options.keys() == methods["pep_fedpt"].options.keys()


def test_members_have_no_trace_in_what_a_run_is():
    study = Plan(_resolved({"g": BLOCKS}, {"methods": ["g", "fedvpt"]}))
    lone = BLOCKS | {"options": {"blocks": [1, 6, 9], "tau": 1.0}}
    lone.pop("grid")
    plain = Plan(_resolved({"lone": lone}, {"methods": ["lone"]}))
    specs = [
        plan.run_spec(Run("digits", "iid", "micro_vit", label, 0)).method
        for plan, label in ((study, "g.9-1-1"), (plain, "lone"))
    ]
    assert specs[0] == specs[1]


def test_a_grids_name_means_its_members_wherever_methods_are_named():
    figures = {
        "all": {"kind": "convergence"},
        "some": {"kind": "convergence", "methods": ["g.9-1-2", "g"]},
        "map": {"kind": "grid"},
    }
    run = {"methods": ["fedvpt", "g.7-1-2", "g"], "figures": list(figures)}
    study = _resolved({"g": BLOCKS}, run, figures)
    members = [label for label in study.methods if label.startswith("g.")]
    running = ["fedvpt", "g.7-1-2", *(m for m in members if m != "g.7-1-2")]
    assert list(study.select.methods) == running
    assert list(study.figures["all"].methods) == running
    assert study.figures["some"].methods[0] == "g.9-1-2"
    assert set(study.figures["some"].methods) == set(members)
    assert list(study.figures["map"].methods) == running[1:], "of fedvpt there is no grid"
    items = plotted_runs(Plan(study).job("figure", SimpleNamespace(label="all")).shown)
    assert [item.evaluation.parts[5] for item in items[::2]] == running
    assert [item.method for item in items[::2]] == running
    for item in items:
        method = study.methods[item.method]
        assert (item.title, item.member) == (method.title, method.member)
    at = {item.method: item.member.at for item in items[2:]}
    assert at["g.9-0.5-2"] == {"blocks.2": 9, "tau": 0.5, "blocks.0": 2}
    assert list(at["g.7-1-1"]) == ["blocks.2", "tau", "blocks.0"]


def test_a_grid_of_512_by_three_seeds_and_two_settings_fits_a_command_line(monkeypatch):
    options = {"lengths": [16, 16, 16]}
    axes = {f"lengths.{k}": LENGTHS for k in range(3)}
    methods = {"fedpha_lengths": {"plugin": "fedpha", "options": options, "grid": axes}}
    run = {"methods": ["fedpha_lengths"], "partitions": ["iid", "dirichlet"]}
    monkeypatch.setitem(FAMILIES, "timm", "clip")  # a study of CLIP methods
    run["figures"] = ["lengths"]
    figures = {"lengths": {"kind": "grid"}}
    study = _resolved(methods, run, figures, study={"seeds": [0, 1, 2]})
    plan = Plan(study)
    for job in (
        plan.job("table", SimpleNamespace(label="main")),
        plan.job("figure", SimpleNamespace(label="lengths")),
    ):
        assert len(to_json(job)) < 10_000 < 128 * 1024
        items = plotted_runs(job.shown)
        assert len(items) == 512 * 3 * 2 == len({item.evaluation for item in items})
        assert items == plotted_runs(from_json(to_json(job), type(job)).shown), (
            "as the job reads it"
        )
        assert [run.path for run in study_runs(study)] == [
            str(item.evaluation.parent.relative_to("results/runs")) for item in items
        ]


RATES = {
    "plugin": "pep_fedpt",
    "title": "PEP",
    "training": {"lr": 7.0, "momentum": 0.25},
    "grid": {
        "training.lr": [0.1, 0.001],
        "tau": [0.5, 1.0],
        "training.clip": [None, 10],
        "training.betas.1": [0.9],
    },
}


def test_a_grid_may_sweep_training_options():
    study = _resolved({"g": RATES}, {"methods": ["g"]}, study={"training": {"epochs": 3, "lr": 9}})
    assert list(study.select.methods) == [
        *("g.0.1-0.5-null-0.9", "g.0.1-0.5-10-0.9", "g.0.1-1-null-0.9", "g.0.1-1-10-0.9"),
        *("g.0.001-0.5-null-0.9", "g.0.001-0.5-10-0.9", "g.0.001-1-null-0.9", "g.0.001-1-10-0.9"),
    ]
    chosen = study.methods["g.0.001-1-10-0.9"]
    assert chosen.title == "PEP, lr 0.001, tau 1, clip 10, betas 0.9-0.9"
    expected = {"lr": 0.001, "clip": 10, "betas": [0.9, 0.9], "momentum": 0.25, "epochs": 3}
    assert expected.items() <= chosen.training.items()
    assert chosen.options["tau"] == 1.0
    assert not any("." in name for name in (*chosen.training, *chosen.options))
    assert study.methods["g.0.1-0.5-null-0.9"].training["clip"] is None
    spec = Plan(study).run_spec(Run("digits", "iid", "micro_vit", chosen.label, 0))
    assert spec.method.training["lr"] == 0.001


@pytest.mark.parametrize(
    ("axes", "line"),
    [
        ({"training.lrr": [1]}, "grid.training.lrr: no option 'training.lrr'; did you mean"),
        ({"training.lr": [0.1, 0]}, "grid.training.lr: must be greater than 0"),
        ({"training.lr.0": [1]}, "grid.training.lr.0: option 'training.lr' must be a list"),
        ({"training": [1]}, "grid.training: no option 'training'"),
        ({"block.0": [1]}, "grid.block.0: no option 'block'; did you mean"),
        ({"blocks.3": [1]}, "grid.blocks.3: options.blocks has no position '3'"),
        ({"blocks.-1": [1]}, "no position '-1'"),
        ({"blocks.first": [1]}, "no position 'first'"),
        ({"tau.0": [1]}, "grid.tau.0: option 'tau' must be a list"),
        ({"blocks": [[1]], "blocks.0": [1]}, "grid.blocks.0: 'blocks' as a whole is an axis too"),
        ({"blocks.0": [1, "two"]}, "grid.blocks.0[1]: must be"),
        ({"tau": [0.5, 0]}, "grid.tau[1]: must be"),
        ({"tau": 1}, "methods.g.grid.tau: must be a list"),
        ({"tau": []}, "methods.g.grid.tau: must have at least 1"),
        ({}, "methods.g.grid: must have at least 1"),
        ({"tau": [1, 1.0]}, "methods.g.grid: 'g.1' is another label too"),
        ({"tau": [1, 2]}, "methods.g.grid: 'g.2' is another label too"),
    ],
)
def test_what_is_no_grid_is_one_line(axes, line):
    with refused(line):
        _resolved({"g": BLOCKS | {"grid": axes}, "g.2": {"plugin": "fedvpt"}})


def test_an_unknown_member_is_one_short_line():
    with refused("no label 'g.7-1-3'; did you mean 'g.7-1-2'?"):
        _resolved({"g": BLOCKS}, {"methods": ["g.7-1-3"]})


OTHER = {"plugin": "fedvpt", "grid": {"prompts": [1, 2]}}
SHOTS = {f"shots_{n}": {"scheme": "iid", "clients": 20, "shots": n} for n in (1, 4)}


@pytest.mark.parametrize(
    ("kind", "methods", "partitions", "line"),
    [
        ("grid", ["fedvpt"], ["iid"], "none of its methods that is of a grid"),
        ("grid", ["g", "h"], ["iid"], "are of the grids g, h; name one"),
        ("grid", ["h"], ["iid"], "the grid h has 1"),
        ("boxes", ["h"], ["iid"], "got the grid h with prompts"),
        ("shots", ["fedvpt"], ["shots_1", "iid"], "got partitions.shots_1 1, partitions.iid None"),
        ("shots", ["fedvpt"], ["shots_4", "again"], "got partitions.shots_4 4, partitions.again 4"),
    ],
)
def test_a_figure_of_the_wrong_runs_is_one_line(kind, methods, partitions, line):
    run = {"methods": methods, "partitions": partitions, "figures": ["f"]}
    again = {"scheme": "dirichlet", "kind": "client", "clients": 20, "alpha": 1, "shots": 4}
    with refused("figures.f", line):
        _resolved(
            {"g": BLOCKS, "h": OTHER}, run, {"f": {"kind": kind}},
            partitions=SHOTS | {"again": again},
        )  # fmt: skip


# figures, of files made by hand


def _at(items, *rounds):
    """Return the runs, with these rounds reported."""
    return [replace(item, reported=ReportedRounds(rounds)) for item in items]


def _evaluation(path, correct, clients=4, held_out=()):
    """Write an evaluation of rounds 1 to 3, with correct(round, client) right answers of 100."""
    rows = [(r, k) for r in (1, 2, 3) for k in range(clients)]
    columns = {
        "round": [r for r, _ in rows],
        "client_id": [k for _, k in rows],
        "domain": ["ab"[2 * k // clients] for _, k in rows],
        "participating": [k not in held_out for _, k in rows],
        "personalized": False,
        "num_test": 100,
        "num_correct": [correct(r, k) for r, k in rows],
    }
    pd.DataFrame(columns).to_parquet(path)
    return path


@pytest.fixture
def three_axes(tmp_path):
    """Return runs of lists [a, b, c] with accuracy 50 + 10a + 3b + c + seed from round 2 on."""
    items = []
    for a, b, c, seed in product((1, 2), (1, 2, 3), (1, 2), (0, 2)):
        value = 50 + 10 * a + 3 * b + c + seed
        # clients 0 and 1 are above and below the mean; client 2 is held out and must not count
        file = _evaluation(
            tmp_path / f"{a}{b}{c}{seed}.parquet",
            lambda r, k, v=value: 0 if k == 2 or r == 1 else v + (1, -1, 0, 0)[k],
            held_out=[2],
        )
        at = {"list.0": a, "list.1": b, "list.2": c}
        member = GridMember("g", 0, at, {"list": [a, b, c]}, "G")
        items.append(shown(method=f"g.{a}-{b}-{c}", evaluation=file, member=member))
    return items


def test_heat_maps_show_every_members_mean_and_frame_first_entries_like_others(three_axes):
    """FedPHA's Fig. 4 and 8 have such frames, where domain 1 has the length of domain 2 or 3."""
    figure = draw("grid", _at(three_axes, 2, 3))
    panels = figure.axes[:2]
    bar = figure.axes[2:]
    assert len(bar) == 2
    assert [axis.get_title() for axis in panels] == ["list.0 = 1", "list.0 = 2"]
    for a, axis in zip((1, 2), panels, strict=True):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("list.1", "list.2")
        (image,) = axis.get_images()
        # rows are list.2, columns list.1; the mean over seeds 0 and 2 adds 1
        expected = [[51 + 10 * a + 3 * b + c for b in (1, 2, 3)] for c in (1, 2)]
        np.testing.assert_allclose(image.get_array(), expected)
        assert image.get_clim() == (51 + 10 + 3 + 1, 51 + 20 + 9 + 2), "one scale"
        framed = {(box.get_x() + 1.5, box.get_y() + 1.5) for box in axis.patches}
        assert framed == {(b, c) for b in (1, 2, 3) for c in (1, 2) if a in (b, c)}
        assert [t.get_text() for t in axis.get_xticklabels()] == ["1", "2", "3"]
        assert axis.texts[0].get_text() == f"{expected[0][0]:.1f}"


def test_a_grid_of_two_options_is_one_map_per_scenario(three_axes):
    series = []
    for dataset in "de":
        for run in three_axes:
            a, b, c = run.member.options["list"]
            if a == 1 and (b, c) != (3, 2):
                at = {"rho": b / 2, "alpha": c}
                series.append(replace(run, dataset=dataset, member=GridMember("g", 0, at, at, "G")))
    figure = draw("grid", _at(series, 3))
    panels = [axis for axis in figure.axes if axis.get_xlabel() == "rho"]
    assert [axis.get_title() for axis in panels] == ["d", "e"]
    assert len(figure.axes) == 4, "each with its own scale"
    cells = panels[0].get_images()[0].get_array()
    assert np.ma.getmaskarray(np.ma.masked_invalid(cells)).tolist() == [
        [False, False, False],
        [False, False, True],
    ], "cells without a run stay white"
    assert not panels[0].patches
    assert [t.get_text() for t in panels[0].get_xticklabels()] == ["0.5", "1", "1.5"]


def test_axes_have_their_titles_in_every_figure_of_a_grid(three_axes):
    """FedPHA's figures call the entries of a list after their domains."""
    titles = {"list.0": "Domain 1 (ink)", "list.2": "Domain 3 (wax)"}
    series = []
    for run in _at(three_axes, 2, 3):
        series.append(replace(run, member=replace(run.member, axis_titles=titles)))

    maps = draw("grid", series).axes[:2]
    assert [axis.get_title() for axis in maps] == ["Domain 1 (ink) = 1", "Domain 1 (ink) = 2"]
    assert {(axis.get_xlabel(), axis.get_ylabel()) for axis in maps} == {
        ("list.1", "Domain 3 (wax)")
    }
    (space, *_) = draw("scatter3d", series).axes
    labels = (space.get_xlabel(), space.get_ylabel(), space.get_zlabel())
    assert labels == ("Domain 1 (ink)", "list.1", "Domain 3 (wax)")
    boxes = [axis.get_xlabel() for axis in draw("boxes", series).axes]
    assert boxes[0] == "Domain 1 (ink)"
    (line, *_) = draw("option_line", series, metrics=["participating_mean"]).axes
    assert line.get_xlabel() == "Domain 1 (ink)"
    legend = [text.get_text() for text in line.figure.legends[0].get_texts()]
    assert "list.1 = 1, Domain 3 (wax) = 1" in legend


def test_titles_of_axes_come_from_the_grids_entry():
    entry = BLOCKS | {"grid": {"blocks.0": [1, 2]}, "axis_titles": {"blocks.0": "First block"}}
    study = _resolved({"g": entry}, {"methods": ["g"]})
    first, *_ = plotted_runs(Plan(study).job("table", SimpleNamespace(label="main")).shown)
    assert first.member.axis_titles == {"blocks.0": "First block"}
    for changed in ({"grid": {"blocks.1": [1]}}, {"grid": None}):
        with refused("methods.g.axis_titles", "'blocks.0'", "the grid has no axis"):
            _resolved({"g": entry | changed}, {"methods": ["g"]})


def test_boxes_are_by_the_clients_own_entry(tmp_path):
    """Of a list of two, clients 0 and 1 have the first entry, and clients 2 and 3 the second."""
    items = []
    for a in (4, 8):
        for b in (4, 8, 16):
            own = (a, a, b, b)
            file = _evaluation(
                tmp_path / f"{a}{b}.parquet", lambda r, k, o=own, b=b: o[k] + b // 4 + 10 * (r > 1)
            )
            member = GridMember("g", 0, {"list.0": a, "list.1": b}, {"list": [a, b]}, "G")
            items.append(shown(method=f"g.{a}-{b}", evaluation=file, member=member))
    items = _at(items, 2, 3)
    found = drawn.by_client(items)
    assert len(found) == 4 * 6
    one = found[found["client_id"] == 1]
    assert sorted(one[one["value"] == 8]["accuracy"]) == [19, 20, 22]
    three = found[found["client_id"] == 3]
    assert three[three["value"] == 16]["accuracy"].tolist() == [30, 30]
    figure = draw("boxes", items)
    assert [axis.get_title() for axis in figure.axes] == [
        "client 0, a", "client 1, a", "client 2, b", "client 3, b",
    ]  # fmt: skip
    assert [axis.get_xlabel() for axis in figure.axes] == ["list.0"] * 2 + ["list.1"] * 2
    first = figure.axes[0]
    last = figure.axes[3]
    assert [t.get_text() for t in first.get_xticklabels()] == ["4", "8"]
    assert [t.get_text() for t in last.get_xticklabels()] == ["4", "8", "16"]
    medians = [
        line.get_ydata()[0]
        for line in first.lines
        if line.get_linewidth() == 1.6  # the width of medianprops
    ]
    assert medians == [16, 20]
    assert [entry_of(k, 6, 3) for k in range(6)] == [0, 0, 1, 1, 2, 2]


def test_shots_are_means_over_seeds_with_their_deviation(tmp_path):
    items = []
    for dataset in "de":
        for n, percent in ((1, 60), (2, 70), (16, 80)):
            for seed in (0, 2):
                path = tmp_path / f"{dataset}{n}{seed}.parquet"
                file = _evaluation(path, lambda r, k, v=percent + seed: v * (r > 2))
                items += [
                    shown(
                        dataset=dataset,
                        partition=f"p{n}",
                        method=m,
                        title=m.upper(),
                        style=LineStyle(colour, 0, "o"),
                        evaluation=file,
                    )
                    for m, colour in (("m", "#000000"), ("n", "#0072B2"))
                ]
    figure = draw("shots", _at(items, 3), shots={"p1": 1, "p16": 16, "p2": 2})
    assert [axis.get_title() for axis in figure.axes] == ["d", "e"]
    axis = figure.axes[0]
    assert [bars.get_label() for bars in axis.containers] == ["M", "N"]
    line, _, (bars,) = axis.containers[1]
    assert line.get_xydata().tolist() == [[1, 61], [2, 71], [16, 81]]
    assert line.get_color() == "#0072B2"
    low, high = bars.get_segments()[2][:, 1]
    assert (low, high) == (pytest.approx(81 - 2**0.5), pytest.approx(81 + 2**0.5))
    assert [t.get_text() for t in axis.get_xticklabels()] == ["1", "2", "16"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["M", "N"]
