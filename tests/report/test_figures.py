"""Figures: what they show, by hand, and that each kind draws the same file every time."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.receipts import write_receipt
from fedloom.config.kinds import KINDS
from fedloom.config.settings import GridMember, Reported
from fedloom.data import store
from fedloom.hooks import manifest
from fedloom.planning.load_plan import resolve
from fedloom.planning.output_runs import PlottedBackbone, plotted_runs
from fedloom.planning.plan import Plan
from fedloom.report import block_accuracy, figures, metrics
from fedloom.report.figures import convergence, maps, style
from fedloom.report.figures.style import COLOURS, LINES, MARKERS, deal, with_styles
from shown_runs import draw, figure_job, filled, shown

ENTRIES = {
    "convergence": {},
    "block_accuracy": {},
    "soft_weights": {"classes": [0, 2]},
    "prompt_tsne": {},
    "token_tsne": {"blocks": [1, 3]},
    "group_counts": {},
    "prompt_path": {},
    "grid": {},
    "boxes": {},
    "two_metrics": {"x": "participating_mean"},
    "accuracy_bars": {},
    "option_line": {"metrics": ["participating_mean", "participating_worst"]},
    "congruence": {"option": "lengths.0"},
    "scatter3d": {},
    "client_groups": {},
    "backbone_tsne": {"blocks": [1, 4]},
    "shots": {"shots": {"p": 4}},
    "lines": {"artefact": "pool_size", "x": "round", "y": "size"},
    "scatter": {"artefact": "pool_size", "x": "round", "y": "size", "log": True, "colour": "size"},
    "bars": {"artefact": "pool_size", "x": "round", "y": "size"},
}
CLASSES = list("vwxyz")
REPORTED = {"p": Reported((1,))}
MEMBER = GridMember("g", 0, {"lengths.0": 4, "lengths.1": 8}, {"lengths": [4, 8]}, "G")


def _table(path, columns):
    pd.DataFrame(columns).to_parquet(path)
    return path


@pytest.fixture
def series(tmp_path):
    """One run's files of every kind: 5 classes, 2 blocks and the output, 20 images."""
    draw = np.random.default_rng(0)

    def vectors(count):
        return list(draw.normal(size=(count, 6)).astype(np.float32))

    files = {
        "evaluation": {
            "round": [1, 2],
            "client_id": 0,
            "domain": "x",
            "participating": True,
            "personalized": False,
            "num_test": 10,
            "num_correct": [2, 5],
            "loss": 0.0,
        },
        "rounds": filled({"round": [1, 2], "train_loss": [2.0, 1.0]}, "rounds"),
        "accuracy": {"block": [1, 2, 3], "top1": [10.0, 20, 30], "top5": [50.0, 60, 70]},
        "soft_weights": {
            "block": np.repeat([1, 2], 25),
            "label": np.tile(np.repeat(range(5), 5), 2),
            "class": np.tile(range(5), 10),
            "weight": 0.2,
        },
        "prompt_tsne": {"class": range(5), "vector": vectors(5)},
        "token_tsne": {
            "block": np.repeat([1, 2, 3], 20),
            "label": np.tile(range(5), 12),
            "domain": ["x", "y"] * 30,
            "vector": vectors(60),
        },
        "group_counts": {
            "client": [0, 0, 3, 3, 3, 3],
            "round": [1, 1, 1, 1, 2, 2],
            "group": [0, 1] * 3,
            "count": [8, 0, 2, 2, 1, 3],
        },
        "congruence": {
            "class": ["a", "b"] * 4,
            "test": [False] * 6 + [True] * 2,
            "group": [0, 1] * 4,
            "cluster": [1, 0] * 4,
        },
        "pool_size": {"round": [0, 1, 2], "size": [3, 5, 4]},
        "prompt_path": {"round": np.repeat([0, 1, 2], [3, 5, 4]), "vector": vectors(12)},
    }
    paths = {name: _table(tmp_path / f"{name}.parquet", columns) for name, columns in files.items()}
    images = tmp_path / "images.arrow"
    examples = [store.Example(np.zeros((1, 1, 1), np.uint8), n % 5, n > 4, "x") for n in range(15)]
    store.write_images(images, examples, (1, 1, 1), CLASSES, "made by a test")
    runs = shown(
        member=MEMBER,
        reported=Reported((2,)),
        evaluation=paths["evaluation"],
        rounds=paths["rounds"],
        store=images,
    )
    items = {
        kind: [replace(runs, artefact=paths.get(entry.get("artefact", kind)))]
        for kind, entry in ENTRIES.items()
    }
    (counted,) = items["group_counts"]
    items["client_groups"] = [counted]
    at = {"lengths.0": 4, "lengths.1": 8, "lengths.2": 4}
    third = replace(MEMBER, at=at, options={"lengths": [4, 8, 4]})
    items["scatter3d"] = [replace(run, member=third) for run in items["scatter3d"]]
    tokens = torch.from_numpy(draw.normal(size=(15, 4, 6)).astype(np.float32))
    features = tmp_path / "features.safetensors"
    parts = {"inputs": tokens[:, :3].contiguous(), "final": tokens[:, 3].contiguous()}
    safetensors.torch.save_file(parts, features)
    backbone = PlottedBackbone("d", "b", paths["accuracy"], features, images)
    return items | {"block_accuracy": [backbone], "backbone_tsne": [backbone]}


@pytest.mark.parametrize("kind", ENTRIES)
def test_every_kind_draws_the_same_bytes_twice(kind, series, tmp_path):
    job = figure_job(kind, **ENTRIES[kind])
    forms = ("pdf", "png") if kind == "convergence" else ("pdf",)
    once, again = ({form: tmp_path / f"{name}.{form}" for form in forms} for name in "ab")
    for paths in (once, again):
        figures.write(job, series[kind], paths)
    assert all(once[form].read_bytes() == again[form].read_bytes() for form in forms)
    assert once["pdf"].read_bytes().startswith(b"%PDF")
    assert not list(tmp_path.glob("*.fedloom-tmp"))


# what a class, a domain, a column or a title may be called, and matplotlib takes as something else
NASTY = r"$x_{$ \frac{ 50% #1 & ~^ \ {"
HIDDEN = "_hidden $$"  # matplotlib leaves such a label out of a legend
NAMED = ("convergence", "shots", "lines", "bars", "accuracy_bars")  # legends of methods' titles


@pytest.mark.parametrize(
    ("kind", "text"),
    [*((kind, NASTY) for kind in ENTRIES), *((k, HIDDEN) for k in (*NAMED, "token_tsne"))],
)
def test_any_text_is_drawn_as_it_is(kind, text, series):
    """As title, label of a dataset, class, domain, and name of a column."""
    (run,), settings = series[kind], dict(ENTRIES[kind])
    if kind in ("soft_weights", "token_tsne"):
        write_receipt(run.store, classes=[f"{text}{name}" for name in CLASSES])
    if isinstance(run, PlottedBackbone):
        runs = [run, replace(run, dataset=text)]
    else:
        for path in filter(None, (run.artefact, run.evaluation)):
            frame = pd.read_parquet(path)
            for column in {"domain", "class"} & set(frame):
                if kind != "soft_weights":  # its classes are numbers
                    frame[column] = [f"{text}{value}" for value in frame[column]]
            frame.rename(columns={"size": text}).to_parquet(path)
        run = replace(run, title=text)
        runs = [run, replace(run, dataset=text, method="n", title=f"{text} n")]
    settings = {key: text if value == "size" else value for key, value in settings.items()}
    with style.applied():
        figure = figures.draw(figure_job(kind, **settings), runs)
        figure.draw_without_rendering()
        shown = [part.get_text() for part in figure.findobj(Text) if part.get_visible()]
    assert any(text in part for part in shown)
    if kind in ("soft_weights", "token_tsne"):
        assert {f"{text}{name}" for name in CLASSES} <= {part.strip() for part in shown}
    if kind in NAMED:
        assert f"{text} n" in [part.strip() for part in shown], "in the legend"


def test_every_kind_draws():
    assert set(ENTRIES) == set(KINDS["figures"])


def test_bands_are_mean_and_deviation_over_seeds(tmp_path):
    runs = []
    for seed, correct in enumerate([(2, 5), (4, 5)]):
        columns = {"round": [1, 2, 1, 2], "participating": [True, True, False, False]}
        columns |= {"client_id": [3, 3, 4, SERVER_MODEL], "num_test": 10, "personalized": False}
        path = _table(tmp_path / f"{seed}.parquet", columns | {"num_correct": [*correct, 0, 9]})
        runs.append(shown(evaluation=path))
    accuracy, overall = (convergence.Convergence(metric=m) for m in ("accuracy", "global"))
    band = metrics.over_seeds(runs, accuracy.curve)
    assert band["mean"].tolist() == [30, 50]
    assert band["std"].tolist() == pytest.approx([200**0.5, 0])
    assert metrics.over_seeds(runs[:1], accuracy.curve)["std"].isna().all()
    assert overall.curve(runs[0]).to_dict() == {2: 90}


def test_an_artefacts_lines_are_bands_over_seeds_too(tmp_path):
    """The mean of 6 and 10 lies at 8, the band's edges a deviation of 8^0.5 away."""
    runs = []
    for seed, sizes in enumerate([(4, 6), (4, 10)]):
        path = _table(tmp_path / f"{seed}.parquet", {"round": [0, 1], "size": sizes})
        runs.append(shown(artefact=path))
    (axis,) = draw("lines", runs, **ENTRIES["lines"], log=True).axes
    assert axis.lines[0].get_ydata().tolist() == [4, 8] and axis.get_yscale() == "log"
    edges = axis.collections[0].get_paths()[0].vertices
    assert sorted(set(edges[edges[:, 0] == 1, 1])) == pytest.approx([8 - 8**0.5, 8 + 8**0.5])


def test_all_rounds_lie_in_one_map(series):
    """Three equal prompts of every round stay together, so their centroids do not jump."""
    drawn = np.random.default_rng(1).normal(size=(3, 6))
    rounds, vectors = np.repeat(range(4), 3), list(np.tile(drawn, (4, 1)))
    (run,) = series["prompt_path"]
    _table(run.artefact, {"round": rounds, "vector": vectors})
    found = maps.mapped(run)
    assert found["round"].tolist() == rounds.tolist()
    places = found[["x", "y"]].to_numpy().reshape(4, 3, 2)
    within = np.ptp(places, axis=0).max()
    between = min(np.linalg.norm(places[0, a] - places[0, b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert within < between


def test_loss_is_that_of_training(tmp_path):
    path = _table(tmp_path / "r.parquet", {"round": [1, 2], "train_loss": [2.0, 1.0]})
    loss = convergence.Convergence(metric="loss")
    assert loss.curve(shown(rounds=path)).to_dict() == {1: 2.0, 2: 1.0}


def test_shares_of_groups_are_over_a_clients_rounds_and_a_rounds_clients(series):
    images = [axis.images[0] for axis in draw("group_counts", series["group_counts"]).axes[:2]]
    by_client, by_round = (np.asarray(image.get_array()).tolist() for image in images)
    assert by_client == [[1, 0], [3 / 8, 5 / 8]]
    assert by_round == [[10 / 12, 2 / 12], [0.25, 0.75]]


WISH = st.fixed_dictionaries(
    {},
    optional={
        "colour": st.sampled_from([*COLOURS, *map(str.lower, COLOURS), "#123456"]),
        "marker": st.sampled_from(MARKERS),
    },
)


@given(st.lists(WISH, max_size=len(COLOURS) * len(MARKERS)))
def test_no_two_rows_of_a_figure_share_colour_and_marker(wishes):
    looks = deal(wishes)
    pairs = [(look.colour, look.marker) for look in looks]
    assert len(set(pairs)) == len(wishes)
    assert looks == deal([dict(wish) for wish in wishes])
    granted = {}
    for wish, pair in zip(wishes, pairs, strict=True):
        if len(wish) == 2:
            granted.setdefault((wish["colour"].upper(), wish["marker"]), pair)
    assert all(asked == got for asked, got in granted.items()), "the first that asks has its own"


def test_looks_are_dealt_by_colour_then_marker_then_line():
    every = len(COLOURS) * len(MARKERS) * len(LINES)
    assert len(set(deal([{}] * every))) == every
    assert len({look.colour for look in deal([{}] * len(COLOURS))}) == len(COLOURS)
    own = {"colour": "#123456", "marker": "s"}
    first, *others = deal([own] * len(MARKERS))
    assert (first.colour, first.line, first.marker) == ("#123456", 0, "s")
    assert {look.colour for look in others} == {"#123456"}, "labels of one plugin share a colour"
    assert len({look.line for look in [first, *others][: len(LINES)]}) == len(LINES)
    assert deal([{}, {"colour": COLOURS[0]}, own])[2] == first


def test_no_two_plugins_look_alike_and_none_is_yellow_on_white():
    plugins = [p for p in manifest.discover_methods().values() if p.kind == "method"]
    looks = deal([plugin.look.plain for plugin in plugins])
    assert [(p.look.colour, p.look.marker) for p in plugins] == [
        (look.colour, look.marker) for look in looks
    ]
    assert not any(look.colour.lower() == "#f0e442" for look in looks)


def _plan(**select):
    changed = deepcopy(default_config())
    return _resolved(changed, select)


def _resolved(config, select):
    config["study"]["seeds"] = [0, 1]
    config["select"] |= {"datasets": ["digits"], "partitions": ["pathological"], **select}
    return Plan(resolve(config))


def _label(name):
    return SimpleNamespace(label=name)


def test_a_method_keeps_its_look_whichever_methods_a_study_runs():
    def looks(plan):
        runs = plotted_runs(plan.job("figure", _label("accuracy")).shown)
        return {run.method: run.style for run in with_styles(runs)}

    every = looks(_plan(figures=["accuracy"]))
    some = looks(_plan(figures=["accuracy"], methods=["pep_fedpt"]))
    assert some.items() <= every.items()
    assert len(set(every.values())) == len(every)


def test_what_a_table_and_a_figure_are_made_of():
    plan = _plan(methods=["fedvpt", "pep_fedpt"], figures=["accuracy", "blocks", "prompts"])
    folder = "results/runs/digits/pathological/micro_vit"
    both = [
        f"{folder}/{method}/seed{k}/{name}.parquet"
        for method in ("fedvpt", "pep_fedpt")
        for k in (0, 1)
        for name in ("evaluation", "rounds")
    ]
    assert plan.shown_files("table", _label("main")) == both
    assert plan.shown_files("figure", _label("accuracy")) == both
    blocks_file = "results/block_accuracy/digits/micro_vit.parquet"
    assert plan.shown_files("figure", _label("blocks")) == [blocks_file]
    first = f"{folder}/pep_fedpt/seed0"
    assert plan.shown_files("figure", _label("prompts")) == [
        f"{first}/evaluation.parquet",
        f"{first}/rounds.parquet",
        f"{first}/artefacts/class_prompts.parquet",
    ], "the first seed alone"


def test_a_figure_of_shots_is_given_those_of_its_partitions():
    changed = deepcopy(default_config())
    for n in (2, 8):
        changed["partitions"][f"of_{n}"] = {"scheme": "iid", "clients": 10, "shots": n}
    changed["figures"]["own"] = {"kind": "shots", "scenarios": ["digits/of_2", "digits/of_8"]}
    plan = _resolved(changed, {"partitions": ["of_2", "iid", "of_8"], "figures": ["own"]})
    assert plan.job("figure", _label("own")).settings["shots"] == {"of_2": 2, "of_8": 8}


def test_artefacts_of_all_seeds_where_the_kind_says_so():
    changed = deepcopy(default_config())
    changed["figures"]["own"] = {
        "kind": "lines",
        "artefact": "pool_sizes",
        "x": "round",
        "y": "size",
    }
    plan = _resolved(changed, {"methods": ["pfpt"], "figures": ["own"]})
    folder = "results/runs/digits/pathological/micro_vit/pfpt"
    every = {f"{folder}/seed{k}/artefacts/pool_sizes.parquet" for k in (0, 1)}
    assert every < set(plan.shown_files("figure", _label("own")))


def test_lines_average_the_rows_of_one_x_and_bars_go_by_method(tmp_path):
    runs = []
    for method, seed, sizes in (("m", 0, [1, 3, 8]), ("m", 1, [2, 2, 4]), ("n", 0, [9, 9, 9])):
        path = _table(tmp_path / f"{method}{seed}.parquet", {"round": [0, 0, 1], "size": sizes})
        runs.append(shown(method=method, seed=seed, artefact=path))
    columns = {"artefact": "x", "x": "round", "y": "size"}
    (axis,) = draw("bars", runs, **columns).axes
    assert [bar.get_height() for bar in axis.patches] == [2, 6, 9, 9]
    bottom, top = axis.collections[0].get_segments()[1]
    assert [bottom[1], top[1]] == pytest.approx([6 - 8**0.5, 6 + 8**0.5])
    (axis,) = draw("lines", runs[:2], **columns).axes
    assert axis.lines[0].get_xydata().tolist() == [[0, 2], [1, 6]]


@pytest.mark.parametrize(
    ("column", "line"),
    [("sise", "no column 'sise'; did you mean 'size'"), ("vector", "'vector' must hold numbers")],
)
def test_a_column_that_cannot_be_drawn_is_one_line(tmp_path, column, line):
    path = _table(tmp_path / "a.parquet", {"size": [1], "vector": [[1, 2]]})
    with pytest.raises(FedLoomError, match=line):
        draw("scatter", [shown(artefact=path)], x="size", y=column)


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_what_is_averaged_must_be_numbers(tmp_path, kind):
    path = _table(tmp_path / "a.parquet", {"round": [0, 1], "name": ["a", "b"]})
    with pytest.raises(FedLoomError, match="column 'name' must hold numbers"):
        draw(kind, [shown(artefact=path)], x="round", y="name")


def test_a_colour_means_the_same_number_in_every_panel(tmp_path):
    runs = []
    for seed, top in ((0, 4), (1, 400)):
        columns = {"round": [0, 1], "size": [1, 2], "count": [0, top]}
        path = _table(tmp_path / f"{seed}.parquet", columns)
        runs.append(shown(seed=seed, artefact=path))
    figure = draw("scatter", runs, x="round", y="size", colour="count")
    panels = [axis.collections[0] for axis in figure.axes[:2]]
    assert [panel.get_clim() for panel in panels] == [(0, 400), (0, 400)]
    figure.draw_without_rendering()
    assert not np.allclose(panels[0].get_facecolor()[1], panels[1].get_facecolor()[1])


def test_ticks_are_whole_numbers_where_x_is(tmp_path):
    ticks = []
    for xs in ([0, 1], [0.0, 0.25]):
        path = _table(tmp_path / f"{xs[1]}.parquet", {"x": xs, "size": [1, 2]})
        (axis,) = draw("lines", [shown(artefact=path)], x="x", y="size").axes
        ticks.append([tick % 1 == 0 for tick in axis.get_xticks()])
    assert all(ticks[0]) and not all(ticks[1])


@pytest.mark.parametrize("low", [0.13, 470])
@pytest.mark.parametrize("fold", [1.2, 4.9, 5.1, 95, 110, 1e6])
def test_labels_of_a_logarithmic_axis_do_not_touch(low, fold):
    with style.applied():
        figure, (axis,) = style.panels(1)
        for row in range(6):
            axis.plot([0, 1], [low, low * fold], label=f"A method with a long name, {row}")
        style.log_scale(axis)
        style.legend(figure, [axis])
        figure.draw_without_rendering()
        labels = [text for text in axis.get_yticklabels(which="both") if text.get_text()]
        boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.y0)
        assert len(boxes) >= 2
        assert all(below.y1 < above.y0 for below, above in pairwise(boxes))


def test_nearest_prototype_by_hand():
    # class means of the training images: 0 at 5, 1 at 10, 2 at 20; class 3 has none, and its mean
    # must not be taken for 0, which is nearer to the test image at 2 than any other
    tokens = torch.tensor([[4.0], [6.0], [10.0], [20.0], [2.0], [16.0], [21.0], [30.0]])
    labels = torch.tensor([0, 0, 1, 2, 0, 1, 2, 3])
    test = torch.tensor([False] * 4 + [True] * 4)
    # nearest: 0, 2 (wrong), 2, 2 (wrong); with all four classes in the top five, every one is hit
    assert block_accuracy.nearest_prototype(tokens, labels, test) == (50, 100)


def test_the_nearest_class_mean_is_that_of_the_euclidean_distance():
    # class means (0, 0, 4.5), (3, 3, 0) and (2.9, 2.9, 2.9); the test images lie at the origin, to
    # which the first is nearest by absolute, the last by largest differences
    means = torch.tensor([[0.0, 0.0, 4.5], [3.0, 3.0, 0.0], [2.9, 2.9, 2.9]])
    apart = torch.tensor([0.1, -0.2, 0.3])
    of_class_1 = means[1] + torch.stack([-apart, apart])
    tokens = torch.cat([means, of_class_1, torch.zeros(3, 3)])  # one, three and one image to train
    labels = torch.tensor([0, 1, 2, 1, 1, 0, 1, 2])
    test = torch.arange(8) >= 5
    top_1, _ = block_accuracy.nearest_prototype(tokens, labels, test)
    assert top_1 == pytest.approx(100 / 3), "the image of class 1"
    wrong = labels.clone()
    wrong[5:] = torch.tensor([0, 0, 2])
    assert block_accuracy.nearest_prototype(tokens, wrong, test)[0] == 0


def test_block_accuracy_of_a_store(tmp_path):
    rows = [(0, False), (1, False), (0, True), (1, True)]
    examples = [store.Example(np.zeros((1, 1, 1), np.uint8), y, t, "x") for y, t in rows]
    store.write_images(tmp_path / "s.arrow", examples, (1, 1, 1), ["a", "b"], "made by a test")
    images = store.ImageStore(tmp_path / "s.arrow")
    tokens = torch.tensor([0.0, 1, 0, 1])[:, None]
    inputs = torch.stack([torch.zeros(4, 1), 1 - tokens * torch.tensor([[1], [1], [1], [0]])], 1)
    safetensors.torch.save_file({"inputs": inputs, "final": tokens}, tmp_path / "f.safetensors")
    block_accuracy.write(images, tmp_path / "f.safetensors", tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["block"].tolist() == [1, 2, 3]
    # block 2: the last image lies on class 0's mean; block 3: all as in training
    assert found["top1"].tolist()[1:] == [50, 100]


def test_errors_name_the_file(series):
    with pytest.raises(FedLoomError, match=r"soft_weights.parquet: no test image of class 9"):
        draw("soft_weights", series["soft_weights"], classes=[9])
    with pytest.raises(FedLoomError, match=r"token_tsne.parquet: no block 4; the last is 3"):
        draw("token_tsne", series["token_tsne"], blocks=[4])
    for vectors in (np.zeros((3, 2)), np.full((5, 2), np.nan)):
        with pytest.raises(FedLoomError, match="x: t-SNE needs at least 4 vectors, all of finite"):
            maps.embed(vectors, "x")


def _weights(path, blocks, count, label):
    """A run whose images of one class have the weight 0.5 on their own prompt, at every block."""
    columns = {"block": np.repeat(blocks, count), "class": np.tile(range(count), len(blocks))}
    frame = pd.DataFrame(columns | {"label": label, "weight": 0.5 / (count - 1)})
    frame.loc[frame["class"] == label, "weight"] = 0.5
    frame.to_parquet(path)
    write_receipt(path, classes=[f"class {c}" for c in range(count)])
    return shown(artefact=path, store=path)


@pytest.mark.parametrize("count", [5, 100])
def test_soft_weights_are_bars_by_block_with_the_names_of_classes(tmp_path, count):
    run = _weights(tmp_path / "w.parquet", [3, 4, 7], count, label=2)
    with style.applied():
        figure = figures.draw(figure_job("soft_weights", classes=[2]), [run])
        assert [axis.get_title() for axis in figure.axes] == ["Block 3", "Block 4", "Block 7"]
        figure.draw_without_rendering()
        for axis in figure.axes:
            dark = [bar for bar in axis.patches if bar.get_facecolor()[3] == 1]
            assert len(axis.patches) == count and not axis.lines
            assert [bar.get_width() for bar in dark] == [0.5]
        labels = {round(text.get_position()[1]): text for text in figure.axes[0].get_yticklabels()}
        assert labels[2].get_text() == "class 2", "the true class is named, whatever is left out"
        boxes = [labels[at].get_window_extent() for at in sorted(labels)]
        assert len(boxes) == min(count, 20)
        assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))


def test_twenty_classes_of_a_token_map_can_be_told_apart(tmp_path):
    looks = [style.of_class(c) for c in range(style.MOST_CLASS_COLOURS)]
    assert style.MOST_CLASS_COLOURS == 20 == len({tuple(look.values()) for look in looks})
    draw = np.random.default_rng(0)
    rows = {"block": 1, "label": np.arange(60) % 20, "domain": ["x", "y"] * 30}
    frame = pd.DataFrame(rows | {"vector": list(draw.normal(size=(60, 4)))})
    run = _weights(tmp_path / "t.parquet", [1], 20, 0)
    frame.to_parquet(run.artefact)
    with style.applied():
        figure = figures.draw(figure_job("token_tsne", blocks=[1]), [run])
        assert len(figure.axes) == 1, "no bar of colours"
        (legend,) = figure.legends
        figure.draw_without_rendering()
        classes = [f"class {c}" for c in range(20)]
        texts = [text.get_text() for text in legend.get_texts()]
        assert sorted(texts) == sorted([*classes, "domain x", "domain y"])
        panel, box = figure.axes[0].bbox, legend.get_window_extent()
        assert not box.padded(-1).overlaps(panel)
        assert all(figure.bbox.padded(1).contains(*corner) for corner in box.corners())
        assert panel.height > 100, "legends take no room of the panels"


def test_large_sets_of_vectors_are_thinned_evenly():
    chosen = maps.evenly(5001)
    assert len(set(chosen)) == len(chosen) == maps.POINTS == 2000
    assert chosen[[0, -1]].tolist() == [0, 5000]


@pytest.mark.parametrize("count", [2, 5, 9, 20])
def test_every_legend_lies_within_its_figure_and_beside_the_panels(count):
    with style.applied():
        figure, axes = style.panels(1)
        for k in range(count):
            axes[0].plot([0, 1], [k, 1], label=f"A method with a long name, {k}")
        style.legend(figure, axes)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        place, panel = legend.get_window_extent(), axes[0].get_window_extent()
        assert len(legend.get_texts()) == count
        assert all(figure.bbox.padded(1).contains(*corner) for corner in place.corners())
        assert not place.padded(-1).overlaps(panel)
        assert panel.height > figure.bbox.height / 2, "the legend leaves it most of the height"
