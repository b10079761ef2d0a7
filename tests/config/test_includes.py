"""Files that a study includes, and what it says of the paper that it is of."""

import pytest

from fedloom.common.errors import FedLoomError
from fedloom.config.reading import read_all
from fedloom.planning.load_plan import load_plan
from fedloom.planning.overview import overview


def _write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_an_included_file_is_read_once_before_those_that_include_it(tmp_path):
    _write(
        tmp_path,
        base="study: {rounds: 1}",
        left="include: [base.yaml]\nstudy: {seeds: [1]}",
        right="include: [base.yaml, left.yaml]\nstudy: {seeds: [2]}",
        study="include: [left.yaml, right.yaml]\nstudy: {rounds: 5}",
    )
    contents = read_all([tmp_path / "study.yaml"])
    assert [path.stem for path, _ in contents] == ["base", "left", "right", "study"]
    assert all("include" not in content for _, content in contents)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path):
    (tmp_path / "papers/one").mkdir(parents=True)
    _write(tmp_path / "papers", all="study: {rounds: 7}")
    _write(tmp_path / "papers/one", study="include: [../all.yaml]\nstudy: {name: one}")
    plan = load_plan([tmp_path / "papers/one/study.yaml"])
    assert (plan.name, plan.settings.study.rounds) == ("one", 7)


BAD = {
    "a circle": ("include: [study.yaml]", "study.yaml: includes itself"),
    "a path alone": ("include: other.yaml", "include: must be a list of paths, got 'other.yaml'"),
    "a number": ("include: [1]", "include: must be a list of paths, got [1]"),
    "no such file": ("include: [none.yaml]", "none.yaml: No such file"),
    "a wrong key": ("study: {round: 3}", "study.round: unknown key; did you mean 'rounds'?"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_included_is_one_line(case, tmp_path):
    text, expected = BAD[case]
    _write(tmp_path, study="include: [other.yaml]", other=text)
    with pytest.raises(FedLoomError) as error:
        load_plan([tmp_path / "study.yaml"])
    assert expected in str(error.value) and "\n" not in str(error.value)
    if case == "a wrong key":
        assert f"({tmp_path / 'other.yaml'}, line 1)" in str(error.value)


def test_include_on_the_command_line_is_refused():
    with pytest.raises(FedLoomError, match="include: unknown key"):
        load_plan([], {"include": ["x.yaml"]})


ABOUT = """
study:
  paper: pep_fedpt
  shows: [Table 1, Figure 3]
  deviations: {crop: "Images are cropped, not squashed."}
  open_questions: {decay: "The decay is 0.99_1."}
partitions:
  other: {scheme: iid, clients: 20, protocol: {rounds: 7, clients_per_round: 3}}
methods: {slow: {plugin: fedvpt, rounds: 99}}
select: {datasets: [digits], partitions: [iid, other], methods: [fedvpt, slow], figures: []}
"""


def test_the_report_says_what_a_study_is_of_and_where_it_differs(tmp_path):
    _write(tmp_path, protocol=ABOUT, study="include: [protocol.yaml]\nstudy: {name: mine}")
    shown = overview(load_plan([tmp_path / "study.yaml"]).settings)
    assert "Yashwanth" in shown["Paper"] and shown["Shows"] == "Table 1, Figure 3"
    assert shown["Different from the paper"] == ["Images are cropped, not squashed."]
    assert "The decay is 0.99_1." in shown["Left open by the paper"]
    assert shown["Rounds"] == [
        "iid: 12, with 15 clients each; slow 99",
        "other: 7, with 3 clients each; slow 99",
    ]
    assert "Paper" not in overview(load_plan([]).settings)
