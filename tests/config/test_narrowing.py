"""`--only` narrows a study to some of its labels and seeds."""

import pytest

from bundled_plans import plan_of
from default_config import default_config
from fedloom.cli.run.bundled_studies import find_study_file
from fedloom.config.narrowing import in_words, narrow, read_narrowing
from fedloom.config.settings import Scenario
from fedloom.planning.load_plan import resolve
from fedloom.planning.overview import overview
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Wildcards
from refusals import refused

TABLE1 = plan_of(find_study_file("pep_fedpt/table1")).settings
DIRICHLET = Scenario("cifar100", "pep_dir_100")
# a grid of two methods, and two other methods, on a partition that holds clients out and one
# that does not
STUDY = {
    "methods": {"rates": {"plugin": "head_tuning", "grid": {"training.lr": [0.1, 0.7]}}},
    "partitions": {
        "all": {"scheme": "iid", "clients": 20},
        "some": {"scheme": "iid", "clients": 20, "held_out": 0.1},
    },
    "tables": {"held": {"kind": "held_out"}, "few": {"kind": "accuracy", "methods": ["fedvpt"]}},
    "figures": {
        "rates": {"kind": "option_line"},
        "tokens": {"kind": "token_tsne", "blocks": [1]},
        "blocks": {"kind": "block_accuracy"},
    },
    "select": {
        "datasets": ["digits"],
        "partitions": ["all", "some"],
        "methods": ["fedvpt", "rates", "pep_fedpt"],
        "tables": ["main", "held", "few"],
        "figures": ["rates", "tokens", "blocks"],
    },
}


def _settings():
    """Return the settings of STUDY over the default study, with two seeds."""
    config = default_config()
    for section, entries in STUDY.items():
        config[section] |= entries
    return resolve(config)


def _narrowed(*words):
    """Return the settings of STUDY, narrowed."""
    return narrow(_settings(), read_narrowing(words))


def _outputs(settings):
    """Return the labels of the tables and figures that are left."""
    return [*settings.select.tables, *settings.select.figures]


def test_only_the_named_labels_and_seeds_run():
    words = ["methods=pep_fedpt,fedvpt", "scenarios=cifar100/pep_dir_100", "seeds=0"]
    settings = narrow(TABLE1, read_narrowing(words))
    select = settings.select
    assert select.scenarios == (DIRICHLET,) and settings.study.seeds == [0]
    assert select.methods == ("fedvpt", "pep_fedpt"), "in the order of the study"
    assert select.tables == ("table1", "claims")
    assert len(Plan(settings).runs) == 2


def test_a_table_says_to_what_it_is_narrowed_and_keeps_the_papers_numbers():
    words = ["methods=fedvpt,pep_fedpt", "scenarios=cifar100/pep_dir_100", "seeds=0"]
    settings = narrow(TABLE1, read_narrowing(words))
    sentence = "Narrowed to scenarios cifar100/pep_dir_100; methods fedvpt, pep_fedpt; seeds 0."
    job = Plan(settings).table_job("table1")
    assert job.narrowed == sentence
    assert job.published == TABLE1.tables["table1"].published
    assert f"{overview(settings)['Narrowed to']}." == sentence.removeprefix("Narrowed to ")


def test_a_figure_says_in_the_report_to_what_it_is_narrowed():
    plan = Plan(_narrowed("seeds=0"))
    caption = plan.caption("figure", Wildcards(label="rates"))
    assert caption.endswith(" Narrowed to seeds 0.")
    for label in ("tokens", "blocks"):
        caption = plan.caption("figure", Wildcards(label=label))
        assert "Narrowed" not in caption, f"{label} shows the first seed, or none"


def test_what_loses_nothing_is_that_of_the_whole_study():
    whole = _settings()
    settings = narrow(whole, read_narrowing(["methods=fedvpt,rates"]))
    assert settings.tables["few"] is whole.tables["few"]
    assert settings.tables["main"].narrowed == "Narrowed to methods fedvpt, rates."


def test_a_grid_stands_for_its_members_and_a_member_for_itself():
    assert _narrowed("methods=rates").select.methods == ("rates.0.1", "rates.0.7")
    assert _narrowed("methods=rates.0.7").select.methods == ("rates.0.7",)
    assert _narrowed("methods=pep_fedpt,rates.0.1").select.methods == ("rates.0.1", "pep_fedpt")


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["partitions=all"], ["main", "few", "rates", "tokens", "blocks"]),
        (["methods=fedvpt"], ["main", "held", "few", "blocks"]),
        (["methods=fedvpt,pep_fedpt"], ["main", "held", "few", "tokens", "blocks"]),
        (["methods=rates"], ["main", "held", "rates", "blocks"]),
        (["seeds=1"], ["main", "held", "few", "rates", "blocks"]),
        (["tables=held"], ["held"]),
        (["tables=held", "figures=rates,tokens"], ["held", "rates", "tokens"]),
        (["figures=tokens"], ["tokens"]),
    ],
)
def test_what_cannot_be_made_of_the_rest_is_left_out(words, left):
    assert _outputs(_narrowed(*words)) == left


def test_a_note_says_why_something_is_left_out():
    notes = _narrowed("methods=rates", "partitions=all", "seeds=1").notes
    for label, reason in {
        "tables.held": "at least one partition of the study must hold clients out",
        "tables.few": "none of its methods is left",
        "figures.tokens": "none of its methods is left",
    }.items():
        (note,) = [note for note in notes if label in note]
        assert note.startswith("left out after --only: ") and reason in note
    (note,) = _narrowed("seeds=1").notes
    assert "figures.tokens: it shows only the runs of the study's first seed, 0" in note


def test_a_scenario_that_nothing_shows_any_more_needs_no_images():
    settings = narrow(TABLE1, read_narrowing(["tables=table1_tiny_dir"]))
    assert settings.select.datasets == ("tiny_imagenet",)


def test_runs_are_a_part_of_the_whole_study_with_equal_jobs():
    whole = Plan(_settings())
    for words in (["seeds=1"], ["methods=rates.0.1,pep_fedpt", "seeds=0"], ["partitions=some"]):
        part = Plan(_narrowed(*words))
        assert {*part.runs} < {*whole.runs}
        for run in part.runs:
            labels = Wildcards(**vars(run), end="0012")
            assert part.job("train", labels) == whole.job("train", labels)
            assert part.job("evaluate", labels) == whole.job("evaluate", labels)


def test_trials_are_those_of_the_whole_study():
    config = default_config()
    config["study"]["tune"] = {"trials": 2, "values": {"training.lr": [0.1, 0.3]}, "seed": 7}
    whole = Plan(resolve(config))
    part = Plan(narrow(whole.settings, read_narrowing(["methods=fedvpt", "seeds=1"])))
    for run in part.runs:
        assert part.job("choose", run) == whole.job("choose", run)


def test_a_row_of_claims_keeps_its_method_or_is_not_run():
    """The label `fifty` would stand for FedVPT by its title, if the study had no other FedVPT."""
    config = default_config()
    fifty = {"plugin": "fedvpt", "title": "FedVPT", "options": {"prompts": 50}}
    config["methods"]["fifty"] = fifty
    claims = {
        "kind": "claims",
        "paper": "pep_fedpt",
        "stands_for": {"styles/four_classes": "pathological"},
    }
    config["tables"] = {"claims": claims}
    config["select"] |= {"methods": ["fedvpt", "fifty"], "tables": ["claims"], "figures": []}
    whole = resolve(config)
    both = {"FedVPT": "fedvpt", "FedVPT with 50 prompts": "fifty"}
    assert whole.tables["claims"].settings["labels"] == both

    part = narrow(whole, read_narrowing(["methods=fifty"])).tables["claims"]
    assert part.settings["labels"] == {"FedVPT with 50 prompts": "fifty"}
    assert part.methods == ("fifty",)


def test_a_table_of_settings_shows_what_is_left():
    config = default_config()
    config["tables"] = {"protocol": {"kind": "protocol"}}
    config["select"] |= {"methods": ["fedvpt", "sgpt"], "tables": ["protocol"], "figures": []}
    table = narrow(resolve(config), read_narrowing(["methods=sgpt"])).tables["protocol"]
    assert {row["method"] for row in table.settings["rows"]} == {"sgpt"}
    assert table.narrowed == "Narrowed to methods sgpt."


WRONG = {  # what is written after --only, and what the error holds
    "methods": "must be <key>=<label>,<label>,..., got 'methods'",
    "methods=": "must be <key>=<label>,<label>,..., got 'methods='",
    "methods=fedvpt,,sgpt": "got 'methods=fedvpt,,sgpt'",
    "method=fedvpt": "no key 'method'; did you mean 'methods'?",
    "methods=fedvptt": "--only methods: the study runs no 'fedvptt'; did you mean 'fedvpt'?",
    "methods=xyz": "the study runs no 'xyz'; known: fedvpt, pep_fedpt, rates",
    "methods=rates.5": "the study runs no 'rates.5'; did you mean 'rates.0.7'?",
    "seeds=7": "--only seeds: the study has no '7'; known: 0, 1",
    "scenarios=digits/al": "--only scenarios: the study has no 'digits/al'; did you mean",
    "tables=xyz": "--only tables: the study has no 'xyz'; known: few, held, main",
    "methods=fedvpt methods=pep_fedpt": "methods must be named once",
    "scenarios=digits/all partitions=some": "no scenario of scenarios digits/all; partitions some",
    "tables=few methods=pep_fedpt": "no table and no figure of the study is left: config",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_the_study_does_not_have_is_named(words):
    with refused("--only", WRONG[words]):
        _narrowed(*words.split())


def test_words_are_written_as_they_are_read():
    narrowing = read_narrowing(["seeds=0, 1", "methods=a,b,a", "tables=t"])
    assert in_words(narrowing) == "methods a, b; seeds 0, 1; tables t"
    assert narrow(TABLE1, read_narrowing([])) is TABLE1
