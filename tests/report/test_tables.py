"""Every kind of table, by hand."""

import html
import re

import pandas as pd
import pytest

from fedloom.config.settings import ReportedRounds
from fedloom.report import tables
from fedloom.report.metrics import accuracies
from fedloom.report.tables import layout, summary
from shown_runs import shown, table_files, table_job, table_kind
from table_cases import evaluation_table, rounds_table, run_of


def test_accuracies_are_means_over_clients_then_rounds():
    frame = evaluation_table(None, {1: (10, 10, 3), 2: (5, 20, 7)})
    assert accuracies(frame, ReportedRounds((1, 2))) == {
        "participating_mean": (75 + 75) / 2,
        "participating_worst": (50 + 50) / 2,
        "held_out_mean": (30 + 70) / 2,
        "held_out_worst": 50,
    }
    assert accuracies(frame, ReportedRounds((2,)))["held_out_mean"] == 70
    absent = frame[(frame["round"] == 2) | (frame["client_id"] != 1)]  # one client in round 1
    assert accuracies(absent, ReportedRounds((1, 2)))["participating_mean"] == (100 + 75) / 2
    nobody = frame[frame["participating"]]
    assert accuracies(nobody, ReportedRounds((1,))).keys() == {
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
            evaluation_table(path, {1: correct}, rounds=(1,))
            rounds = rounds_table(tmp_path / "rounds.parquet", [1.0])
            runs.append(
                shown(method=method, title=method, seed=seed, evaluation=path, rounds=rounds)
            )
    outputs = table_files(tmp_path)
    tables.write_table(table_job(), runs, outputs)
    return outputs


def test_markdown(outputs):
    lines = outputs["md"].read_text().splitlines()
    assert lines[0] == (
        "Study s: test accuracy of clients in %, mean ± standard deviation over 2 seeds, "
        "best bold, second underlined."
    )
    assert lines[-2:] == ["", "How these numbers were made: Accuracies are from round 1."]
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
    end = r"\par How these numbers were made: Accuracies are from round 1."
    assert text.index("\\end{tabular}") < text.index(end) < text.index("\\end{table}")
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
    (fold,) = re.findall(r"<details.*?</details>", text[text.index("</table>") :], re.DOTALL)
    assert "<summary>How these numbers were made</summary>" in fold, "closed until it is clicked"
    assert "<p>Accuracies are from round 1.</p>" in fold and "round 1" not in text.split(fold)[0]


def _styled(page, text):
    """Return the style of the first cell that holds `text`, found by the cell's id."""
    (name, *_) = re.findall(rf'<td id="(\w+)"[^>]*>{text}</td>', page)
    rules = re.findall(r"^(#[^{]+)\{([^}]*)\}", page, re.MULTILINE)
    (body,) = (body for selectors, body in rules if f"#{name}" in re.split(r"[ ,]+", selectors))
    lines = [line.strip(" ;\n") for line in body.split(";") if line.strip()]
    return dict(line.split(": ") for line in lines)


NASTY = [r"a|b \ $x_{$ 50% #1 & ~^", "<b>bold</b>", "_x_", "two\nlines", "Mean", "a_std"]


@pytest.mark.parametrize("text", NASTY)
def test_any_text_stands_in_a_table_as_it_is(text, tmp_path):
    """The text is a title, a domain in a heading, or a name that ends like one of our columns."""
    runs = [shown(title=text, method=m, dataset=d) for m in "ab" for d in "xy"]
    measured = [{f"domain_{text}": 1.0, "participating_mean": 2.0}] * 4
    texts = layout.summary_text(summary.summarise(runs, measured), table_kind("domains").column)
    assert texts.titles == ["Dataset", "Method", text, "Mean"]
    finished = layout.FinishedTable(pd.DataFrame(), texts, text, (text, text))
    caption, _, *lines, _, details = layout.markdown(finished).splitlines()
    assert not re.search("<[a-z/]", "".join([caption, *lines, details])), "no HTML"
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert {len(row) for row in cells} == {4}
    assert html.unescape(cells[2][1].strip().replace("\\|", "|")) == " ".join(text.split())
    page = layout.page(finished)
    found = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", page)]
    assert found[1] == text and len(found) == 16
    heads = re.findall(r"<th [^>]*>([^<]*)</th>", page)
    assert [html.unescape(cell) for cell in heads] == texts.titles
    assert [html.unescape(part) for part in re.findall(r"<p>([^<]*)</p>", page)] == [text, text]
    assert page == layout.page(finished), "equal tables give equal bytes"
    latex = layout.latex(finished, "tab:x")
    assert latex.startswith("% Needs \\usepackage{booktabs}")
    for command in ("textbackslash", "textasciitilde", "ensuremath", "textbf", "underline"):
        latex = latex.replace(f"\\{command}{{", "{")
    assert re.search(r"(?<!\\)[$#^]", latex) is None, "nothing that LaTeX takes as a command"


def test_one_seed_has_no_deviation_and_no_best():
    frame = summary.summarise(
        [run_of("a"), run_of("b")], [{"participating_mean": x} for x in (1, 2)]
    )
    texts = layout.summary_text(frame, table_kind("accuracy").column)
    assert texts.cells["participating_mean"].tolist() == ["1.00", "2.00"]
    assert texts.marks["participating_mean"].tolist() == ["", ""]


def test_a_number_that_a_group_lacks_is_a_dash():
    runs = [run_of(method, seed) for method in "ab" for seed in (0, 1)]
    both = {"participating_mean": 1.0, "held_out_mean": 2.0}
    one = {"participating_mean": 3.0}
    shown = layout.summary_text(
        summary.summarise(runs, [both, both, one, one]), table_kind("accuracy").column
    )
    assert shown.cells["held_out_mean"].tolist() == ["2.00 ± 0.00", "-"]
    assert shown.marks["held_out_mean"].tolist() == [layout.BEST, ""]


def test_held_out_has_two_columns(tmp_path):
    evaluation_table(tmp_path / "x.parquet", {1: (10, 10, 3)}, rounds=(1,))
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
        run = shown(evaluation=tmp_path / "x.parquet", reported=ReportedRounds(rounds))
        return table_kind("domains").measure(run)

    assert by_domain(1) == {
        "domain_real": 75,
        "domain_sketch": 10,
        "participating_mean": pytest.approx(160 / 3),
        "participating_worst": 10,
        "pooled": pytest.approx(100 * 46 / 60),
    }
    assert by_domain(1, 2)["domain_real"] == 37.5
