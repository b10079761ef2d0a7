"""Every kind of table, by hand."""

import csv
import html
import math
import re

import pandas as pd
import pytest
from sklearn.metrics import adjusted_mutual_info_score

from fedloom.config.reading import read
from fedloom.config.settings import Reported
from fedloom.data.sources import glyphs
from fedloom.hooks import manifest
from fedloom.machine.install import ROOT
from fedloom.report import tables
from fedloom.report.metrics import accuracies, loss_not_below_guessing
from fedloom.report.tables import clustering, layout, notes, summary
from fedloom.report.tables.costs import cost_to_target
from refusals import refused
from shown_runs import filled, shown, table_files, table_job, table_kind


def _evaluation(path, correct, rounds=(1, 2)):
    """Clients 0 and 1 take part, client 2 is held out; 10 and 20 and 10 test images."""
    rows = [
        {
            "round": r,
            "client_id": k,
            "domain": "x",
            "participating": k < 2,
            "personalized": False,
            "num_test": (10, 20, 10)[k],
            "num_correct": n,
            "loss": 0.0,
        }
        for r in rounds
        for k, n in enumerate(correct[r])
    ]
    frame = pd.DataFrame(rows)
    if path:
        frame.to_parquet(path)
    return frame


def _rounds(path, losses):
    """The rounds of a run on ten classes, by its training losses."""
    numbers = range(1, len(losses) + 1)
    columns = {"round": numbers, "train_loss": losses, "guessing_loss": math.log(10)}
    filled(columns, "rounds").to_parquet(path)
    return path


def test_accuracies_are_means_over_clients_then_rounds():
    frame = _evaluation(None, {1: (10, 10, 3), 2: (5, 20, 7)})
    assert accuracies(frame, Reported((1, 2))) == {
        "participating_mean": (75 + 75) / 2,
        "participating_worst": (50 + 50) / 2,
        "held_out_mean": (30 + 70) / 2,
        "held_out_worst": 50,
    }
    assert accuracies(frame, Reported((2,)))["held_out_mean"] == 70
    absent = frame[(frame["round"] == 2) | (frame["client_id"] != 1)]  # one client in round 1
    assert accuracies(absent, Reported((1, 2)))["participating_mean"] == (100 + 75) / 2
    nobody = frame[frame["participating"]]
    assert accuracies(nobody, Reported((1,))).keys() == {
        "participating_mean",
        "participating_worst",
    }


@pytest.fixture
def outputs(tmp_path):
    runs = []
    scores = {"a_b": [(10, 20, 5), (8, 16, 5)], "second": [(7, 14, 5), (7, 14, 5)],
              "third": [(1, 2, 4), (1, 2, 4)]}  # fmt: skip
    for method, seeds in scores.items():
        for seed, correct in enumerate(seeds):
            path = tmp_path / f"{method}{seed}.parquet"
            _evaluation(path, {1: correct}, rounds=(1,))
            rounds = _rounds(tmp_path / "rounds.parquet", [1.0])
            runs.append(
                shown(method=method, title=method, seed=seed, evaluation=path, rounds=rounds)
            )
    outputs = table_files(tmp_path)
    tables.write(table_job(), runs, outputs)
    return outputs


def test_markdown(outputs):
    lines = outputs["md"].read_text().splitlines()
    assert "clients in %, round 1; mean ± standard deviation over 2 seeds." in lines[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["Method", "Mean", "Worst", "Held-out mean", "Held-out worst"]
    # 100 and 80: mean 90, sample deviation sqrt(200) = 14.14
    assert cells[2][:2] == ["a_b", "**90.00 ± 14.14**"]
    assert cells[3][:2] == ["second", "<u>70.00 ± 0.00</u>"]
    assert cells[4][:2] == ["third", "10.00 ± 0.00"]
    assert cells[2][3] == cells[3][3] == "**50.00 ± 0.00**", "equal figures share a rank"
    assert cells[4][3] == "<u>40.00 ± 0.00</u>"


def test_latex(outputs):
    text = outputs["tex"].read_text()
    for part in (r"\toprule", r"\bottomrule", r"\textbf{90.00 $\pm$ 14.14}", r"a\_b", "lrrrr"):
        assert part in text
    assert r"\underline{70.00 $\pm$ 0.00}" in text
    assert r"test accuracy of clients in \%" in text
    assert text.startswith("% Needs \\usepackage{booktabs} in the preamble.\n\\begin{table}")


def test_numbers(outputs):
    for frame in (pd.read_csv(outputs["csv"]), pd.read_parquet(outputs["parquet"])):
        assert frame["participating_mean"].tolist() == [90, 70, 10]
        assert frame["seeds"].tolist() == [2, 2, 2]
        assert frame["participating_mean_std"].iloc[0] == pytest.approx(200**0.5, abs=1e-4)


def test_html(outputs):
    text = outputs["html"].read_text()
    assert _styled(text, "90.00 ± 14.14") == {"font-weight": "bold"}
    assert _styled(text, "70.00 ± 0.00") == {"text-decoration": "underline"}
    assert re.search(r'class="data row0 col0" *>a_b</td>', text)
    assert not re.search(r"https?:", text), "needs no network"


def _styled(page, text):
    """The style of the first cell that holds `text`, by its id."""
    (name, *_) = re.findall(rf'<td id="(\w+)"[^>]*>{text}</td>', page)
    rules = re.findall(r"^(#[^{]+)\{([^}]*)\}", page, re.MULTILINE)
    (body,) = (body for selectors, body in rules if f"#{name}" in re.split(r"[ ,]+", selectors))
    lines = [line.strip(" ;\n") for line in body.split(";") if line.strip()]
    return dict(line.split(": ") for line in lines)


NASTY = [r"a|b \ $x_{$ 50% #1 & ~^", "<b>bold</b>", "_x_", "two\nlines", "Mean", "a_std"]


@pytest.mark.parametrize("text", NASTY)
def test_any_text_stands_in_a_table_as_it_is(text, tmp_path):
    """As a title, or a domain that is a heading, or a name that ends like one of our columns."""
    runs = [shown(title=text, method=m, dataset=d) for m in "ab" for d in "xy"]
    measured = [{f"domain_{text}": 1.0, "participating_mean": 2.0}] * 4
    texts = layout.texts(summary.summarise(runs, measured), table_kind("domains").column)
    assert texts.titles == ["Dataset", "Method", text, "Mean"]
    caption, _, *lines = layout.markdown(texts, text).splitlines()
    assert not re.search("<[a-z/]", "".join([caption, *lines])), "no HTML"
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert {len(row) for row in cells} == {4}
    assert html.unescape(cells[2][1].strip().replace("\\|", "|")) == " ".join(text.split())
    page = layout.page(texts, text)
    found = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", page)]
    assert found[1] == text and len(found) == 16
    heads = re.findall(r"<th [^>]*>([^<]*)</th>", page)
    assert [html.unescape(cell) for cell in heads] == texts.titles
    assert page == layout.page(texts, text), "equal tables give equal bytes"
    latex = layout.latex(texts, text, "tab:x")
    assert latex.startswith("% Needs \\usepackage{booktabs}")
    for command in ("textbackslash", "textasciitilde", "ensuremath", "textbf", "underline"):
        latex = latex.replace(f"\\{command}{{", "{")
    assert re.search(r"(?<!\\)[$#^]", latex) is None, "nothing that LaTeX takes as a command"


def _run(method, seed=0):
    return shown(method=method, title=method, seed=seed)


def test_one_seed_has_no_deviation_and_no_best():
    frame = summary.summarise([_run("a"), _run("b")], [{"participating_mean": x} for x in (1, 2)])
    texts = layout.texts(frame, table_kind("accuracy").column)
    assert texts.cells["participating_mean"].tolist() == ["1.00", "2.00"]
    assert texts.marks["participating_mean"].tolist() == ["", ""]


def test_a_number_that_a_group_lacks_is_a_dash():
    runs = [_run(method, seed) for method in "ab" for seed in (0, 1)]
    both, one = {"participating_mean": 1.0, "held_out_mean": 2.0}, {"participating_mean": 3.0}
    shown = layout.texts(
        summary.summarise(runs, [both, both, one, one]), table_kind("accuracy").column
    )
    assert shown.cells["held_out_mean"].tolist() == ["2.00 ± 0.00", "-"]
    assert shown.marks["held_out_mean"].tolist() == [layout.BEST, ""]


# ---- notes on rows -------------------------------------------------------------------------------


def _written(tmp_path, runs):
    """Write a table, and return the text of three formats, and the frames of the other two."""
    outputs = table_files(tmp_path)
    tables.write(table_job(), runs, outputs)
    text = {kind: outputs[kind].read_text() for kind in ("md", "tex", "html")}
    return text, pd.read_parquet(outputs["parquet"]), pd.read_csv(outputs["csv"])


def _measured(tmp_path, name, losses=(1.0,), **more):
    evaluation, rounds = (tmp_path / f"{name}.{file}.parquet" for file in "er")
    _evaluation(evaluation, {1: (10, 20, 5)}, rounds=(1,))
    files = {"evaluation": evaluation, "rounds": _rounds(rounds, losses)}
    return shown(method=name, title=name, **files, **more)


def test_every_format_says_that_a_loss_is_not_below_that_of_guessing(tmp_path):
    runs = [_measured(tmp_path, "good", [3.0, 2.0]), _measured(tmp_path, "bad", [2.0, 15.0, 19.0])]
    text, *frames = _written(tmp_path, runs)
    line = f"{notes.GUESSING.sign} {notes.GUESSING.text}."
    assert "| bad ‡ " in text["md"] and text["md"].endswith(f"\n\n{line}\n")
    assert "bad $\\ddagger$ &" in text["tex"] and "good &" in text["tex"]
    after = text["tex"].split("\\end{tabular}")[1]
    assert notes.GUESSING.text in after and after.rstrip().endswith("\\end{table}")
    assert ">bad ‡</td>" in text["html"] and f">{line}</td></tr>\n</tfoot>" in text["html"]
    for frame in frames:
        assert frame["marks"].fillna("").tolist() == ["", notes.GUESSING.text]


@pytest.mark.parametrize(
    ("losses", "bad"),
    [
        ([9.0, 9.0, 2.0, 1.0], False),  # it began badly
        ([2.0, 2.0, 9.0, 9.0], True),  # it diverged
        ([2.0, 9.0, 1.0, 1.0], False),
        ([2.3], False),
        ([math.log(10)], True),
        ([3.0, 3.0, 3.0, 1.0, 1.0, 99.0], False),  # the median, which a single round does not move
    ],
)
def test_the_last_half_of_the_rounds_says_whether_a_loss_is_that_of_guessing(losses, bad, tmp_path):
    frame = pd.read_parquet(_rounds(tmp_path / "r.parquet", losses))
    assert loss_not_below_guessing(frame.sample(frac=1, random_state=0)) == bad


def test_held_out_clients_whose_images_a_server_has_are_no_strangers(tmp_path):
    runs = [_measured(tmp_path, "a"), _measured(tmp_path, "b", sees_held_out=True)]
    text, *_ = _written(tmp_path, runs)
    assert "| b † " in text["md"] and f"† {notes.STRANGERS.text}." in text["md"]
    for run in runs:
        frame = pd.read_parquet(run.evaluation)
        frame[frame["participating"]].to_parquet(run.evaluation)
    text, *_ = _written(tmp_path, runs)
    assert "†" not in text["md"], "without held-out clients there is nothing to say"


def test_a_table_says_what_is_trained_where_that_differs(tmp_path):
    parts = {"a": "prompts + head", "b": "whole model", "c": ""}
    runs = [_measured(tmp_path, n, trains=trains) for n, trains in parts.items()]
    text, *frames = _written(tmp_path, runs)
    rows = [[cell.strip() for cell in row.split("|")[1:3]] for row in text["md"].splitlines()[2:]]
    assert [rows[0], *rows[2:]] == [
        ["Method", "Trains"], ["a", "prompts + head"], ["b", "whole model"], ["c", "-"],
    ]  # fmt: skip
    assert "{llrrrr}" in text["tex"], "both columns are labels"
    assert "border-top" not in text["html"], "rows of one scenario"
    for frame in frames:
        assert frame["trains"].fillna("").tolist() == list(parts.values())
    text, *_ = _written(tmp_path, runs[:1])
    assert "Trains" not in text["md"] and not any(mark.sign in text["md"] for mark in notes.MARKS)


def test_every_method_that_ships_says_what_it_trains():
    plugins = [p for p in manifest.discover_methods().values() if p.kind == "method"]
    said = {p.name: p.trained_part(p.complete_options({})) for p in plugins}
    assert all(said.values()), "method.toml needs `trains`"
    found = [said[name] for name in ("ditto", "fedavg", "head_tuning", "zero_shot_clip")]
    assert found == ["prompts + head", "whole model", "head", "nothing"]
    fedavg = manifest.find_method("fedavg")
    for train, part in (("head", "head"), ("bias$", "some weights + head")):
        assert fedavg.trained_part(fedavg.complete_options({"train": train})) == part
    assert [p.name for p in plugins if p.server_sees_held_out] == ["fedic"]


def test_held_out_has_two_columns(tmp_path):
    _evaluation(tmp_path / "x.parquet", {1: (10, 10, 3)}, rounds=(1,))
    run = shown(evaluation=tmp_path / "x.parquet")
    assert table_kind("held_out").measure(run) == {
        "participating_mean": 75,
        "held_out_mean": 30,
    }


def test_domains_are_means_over_their_clients(tmp_path):
    rows = [  # domain, participating, test images, correct: 50 %, 100 %, 10 %; the last is held out
        ("real", True, 10, 5), ("real", True, 40, 40), ("sketch", True, 10, 1),
        ("sketch", False, 10, 10),
    ]  # fmt: skip
    columns = ["domain", "participating", "num_test", "num_correct"]
    frame = pd.DataFrame(rows, columns=columns).assign(round=1, personalized=False)
    frame["client_id"] = range(4)
    other = frame.assign(round=2, num_correct=0)
    pd.concat([frame, other]).to_parquet(tmp_path / "x.parquet")

    def by_domain(*rounds):
        run = shown(evaluation=tmp_path / "x.parquet", reported=Reported(rounds))
        return table_kind("domains").measure(run)

    assert by_domain(1) == {
        "domain_real": 75,
        "domain_sketch": 10,
        "participating_mean": pytest.approx(160 / 3),
        "participating_worst": 10,
        "pooled": pytest.approx(100 * 46 / 60),
    }
    assert by_domain(1, 2)["domain_real"] == 37.5


def _cost(target):
    evaluation = _evaluation(None, {2: (5, 10, 10), 4: (8, 16, 0), 6: (9, 18, 0)}, rounds=(2, 4, 6))
    columns = {"processor_seconds": 2.0, "bytes_up": 5e5, "bytes_down": 1e6, "clients": 5}
    rounds = pd.DataFrame({"round": range(1, 7), **columns})
    return cost_to_target(evaluation, rounds, target)


def test_communication_counts_up_to_the_first_evaluated_round_at_the_target():
    found = _cost(80)  # 50, 80, 90 % at rounds 2, 4, 6
    names = ("rounds", "megabytes_up", "megabytes_down", "processor_seconds")
    assert [found[name] for name in names] == [4, 2, 4, 8]
    assert found["million_params"] == 4 * 5e5 / 5 / 4 / 1e6, "of one client, four bytes a number"
    assert not found["rounds_above"]


def test_a_target_never_reached_is_a_bound_and_never_the_best():
    runs = [_run(method, seed) for method in "ab" for seed in (0, 1)]
    frame = summary.summarise(runs, [_cost(80), _cost(95), _cost(80), _cost(90)])
    shown = layout.texts(frame, table_kind("communication").column)
    assert shown.cells["rounds"].tolist() == ["> 5.0", "5.0 ± 1.4"]  # 4 and > 6; 4 and 6
    assert shown.marks["rounds"].tolist() == ["", layout.BEST]
    latex = layout.latex(shown, "x", "tab:x")
    assert r"\ensuremath{>} 5.0 &" in latex and r"\textbf{5.0 $\pm$ 1.4} &" in latex


def test_seconds_are_the_processors_on_named_machines_and_never_marked(tmp_path):
    """Wall seconds of runs that shared the cores would say nothing of the methods."""
    runs = []
    for method, spent, threads, cores in (("a", 2.0, 1, 2), ("b", 3.0, 1, 8)):
        evaluation, rounds = (tmp_path / f"{method}.{name}.parquet" for name in "er")
        _evaluation(evaluation, {1: (5, 10, 0), 2: (10, 20, 0)})
        columns = {"round": [1, 2], "seconds": 99.0, "processor_seconds": spent}
        columns |= {"threads": threads, "cores": cores, "bytes_up": 1, "bytes_down": 1}
        columns |= {"clients": 1, "train_loss": 1.0, "guessing_loss": 2.3}
        pd.DataFrame(columns).to_parquet(rounds)
        runs.append(shown(method=method, title=method, evaluation=evaluation, rounds=rounds))
    outputs = table_files(tmp_path)
    tables.write(table_job("communication", target=90), runs, outputs)
    caption, _, header, _, *rows = outputs["md"].read_text().splitlines()
    assert "processor seconds of training" in caption
    assert "threads: 1, cores of the machine: 2 to 8" in caption
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)]
    assert [row[-1] for row in cells] == ["Processor seconds", "4.0", "6.0"]


def test_no_spreadsheet_computes_a_title(tmp_path):
    titles = ["=HYPERLINK(0)", "+1 prompt", "-1 prompt", "@SUM(1)", "-1e-3", "-", "a=1"]
    runs = [shown(method=f"m{n}", title=title) for n, title in enumerate(titles)]
    frame = summary.summarise(runs, [{"x": -1.5, "=y": 1.0} for _ in titles])
    outputs = table_files(tmp_path)
    built = layout.Built(frame, layout.texts(frame, layout.Column), "caption")
    layout.write(built, "tab:x", outputs)
    with outputs["csv"].open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["title"] for row in rows] == [*(f"'{title}" for title in titles[:4]), *titles[4:]]
    assert {row["x"] for row in rows} == {"-1.5000"} and "'=y" in rows[0]


def test_lower_is_better_where_it_is():
    column = layout.Column("Rounds", higher_is_better=False, decimals=1)
    numbers = [{"x": 3.0}, {"x": 1.04}, {"x": 1.0}] * 2
    frame = summary.summarise([_run(m, seed) for seed in (0, 1) for m in "abc"], numbers)
    assert layout.ranks(frame, "x", column).tolist() == [2, 1, 1], "as printed"


@pytest.mark.parametrize(
    ("kind", "settings", "best"),
    [
        (
            "communication",
            {"target": 50.0},
            {
                "rounds": "lowest", "megabytes_up": "lowest", "megabytes_down": "lowest",
                "million_params": "lowest", "processor_seconds": None,
            },
        ),
        ("parameters", {}, {"params_up": "lowest", "params_down": "lowest"}),
        (
            "clustering",
            {"superclasses": None},
            {
                "information": "highest", "accuracy": None, "congruence": "highest",
                "largest": None,
            },
        ),
        ("held_out", {}, {"participating_mean": "highest", "held_out_mean": "highest"}),
        (
            "accuracy",
            {},
            {
                "participating_mean": "highest", "participating_worst": "highest",
                "held_out_mean": "highest", "held_out_worst": "highest", "global": "highest",
                "pooled": "highest", "backdoor_rate": "lowest",
            },
        ),
        (
            "forgetting",
            {},
            {"last": "highest", "average": "highest", "forgetting": "lowest"},
        ),
    ],
)  # fmt: skip
def test_the_best_of_a_column_is_its_lowest_cost_or_highest_share(kind, settings, best):
    """Bold in a printed table: of three methods with 1, 2 and 3."""
    runs = [_run(method, seed) for seed in (0, 1) for method in "abc"]
    frame = summary.summarise(runs, [dict.fromkeys(best, float(n)) for n in (1, 2, 3)] * 2)
    shown = layout.texts(frame, table_kind(kind, **settings).column)
    marks = {"lowest": ["best", "second", ""], "highest": ["", "second", "best"], None: [""] * 3}
    for name, end in best.items():
        assert shown.marks[name].fillna("").tolist() == marks[end], name


def test_a_column_without_a_direction_marks_nothing():
    runs = [_run("pep"), _run("mine")]
    frame = summary.summarise(runs, [{"accuracy": 90.0}, {"accuracy": 91.0}])
    shown = layout.texts(frame, table_kind("clustering").column)
    assert shown.titles == ["Method", "Clustering accuracy"]
    assert shown.cells["accuracy"].tolist() == ["90.00", "91.00"]
    assert not any(shown.marks["accuracy"])


def test_clustering_by_hand(tmp_path):
    """Of five test images, group 0 is "fur" twice and group 2 "fin" once; group 1 is nothing."""
    columns = {
        "class": ["cat", "dog", "cod", "cod", "cat", *["cat"] * 3, *["cod"] * 3],
        "test": [True] * 5 + [False] * 6,
        "group": [0, 0, 0, 2, 1, 0, 0, 1, 1, 1, 1],
        "cluster": [0] * 5 + [1, 1, 1, 2, 2, 1],
    }
    pd.DataFrame(columns).to_parquet(tmp_path / "groups.parquet")
    run = shown(artefact=tmp_path / "groups.parquet")
    labels = {"cat": "fur", "dog": "fur", "cod": "fin"}
    kind = table_kind("clustering", superclasses="c.yaml")
    # training: group 0 lies in cluster 1 (2 images), group 1 half in each (2 of 4);
    # k-means keeps 3 cats and 2 cods together
    found = kind.measure(run, labels)
    known = [[0] * 5, [0, 0, 1, 1, 0], [0, 0, 0, 2, 1]]  # nothing, superclasses, groups
    none, all_, some = (100 * adjusted_mutual_info_score(known[1], other) for other in known)
    assert (none, all_) == (0, pytest.approx(100))
    assert found.pop("information") == pytest.approx(some)
    assert found == {
        "accuracy": 60,
        "congruence": 100 * (2 + 2) / (3 + 2),
        "largest": 60,
    }
    del labels["cod"]
    with refused("c.yaml", "'cod'"):
        kind.measure(run, labels)


def test_congruence_sums_the_largest_overlap_of_each_group_and_of_each_class():
    """One group for all images overlaps with one of three clusters, and not with each."""
    clusters = pd.Series([0, 0, 1, 1, 2, 2])
    classes = pd.Series(list("aaaabb"))  # k-means keeps two of "a" together, and both of "b"
    group = pd.Series([0] * 6)
    assert clustering.congruence(group, clusters, classes) == 100 * 2 / 4
    assert clustering.congruence(clusters, clusters, classes) == 100 * 6 / 4, "above 100 %"
    assert clustering.congruence(classes, clusters, classes) == 100


@pytest.mark.parametrize(("name", "count"), [("glyphs", 3), ("cifar100", 20)])
def test_superclasses_that_ship(name, count):
    labels = read(ROOT / f"workflow/resources/superclasses/{name}.yaml")
    counts = pd.Series(labels).value_counts()
    assert len(counts) == count
    if name == "glyphs":
        assert set(labels) == {glyphs.name_of(glyph) for glyph in glyphs.classes("target")}
    else:
        assert (counts == 5).all()
