"""Domains that no client trains on: who trains, one after the other, and their table."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from default_config import default_config
from fedloom.common.ids import SERVER_MODEL
from fedloom.config.settings import ReportedRounds
from fedloom.planning.load_plan import resolve
from fedloom.report import tables
from partitioned import DOMAINS, make, with_domains
from refusals import refused
from shown_runs import shown, table_job

ONE_OUT = {
    "scheme": "domain",
    "clients_per_domain": 2,
    "grid": {"held_out_domains": [["ink"], ["oil"]]},
}


@settings(deadline=None, max_examples=8)
@given(st.sets(st.sampled_from(DOMAINS), min_size=1, max_size=2), st.integers(0, 3))
def test_no_image_of_a_domain_that_is_held_out_is_trained_on_and_all_others_are(names, seed):
    spec = {"scheme": "domain", "clients_per_domain": 2, "held_out_domains": sorted(names)}
    data = with_domains(seed)
    table = make(spec, seed, data)
    assert (table["participating"].to_numpy() == ~np.isin(data[2], list(names))).all()
    whole = make(spec | {"held_out_domains": ["ink"]}, seed, data)
    assert table["client_id"].equals(whole["client_id"]), "clients are the same whichever is out"


@pytest.mark.parametrize(("names", "words"), [(["inc"], ["'inc'", "'ink'"]), (DOMAINS, ["remove"])])
def test_a_domain_that_is_not_there_and_all_domains_are_refused(names, words):
    spec = {"scheme": "domain", "clients_per_domain": 2, "held_out_domains": names}
    with refused("held_out_domains", *words):
        make(spec, 0, with_domains(0))


def _resolved(partitions, /, **select):
    changed = default_config()
    changed["partitions"] |= partitions
    changed["select"] |= {"tables": ["main"], "figures": [], **select}
    return resolve(changed)


def test_a_selected_grid_stands_for_a_partition_per_value():
    entry = ONE_OUT | {"protocol": {"rounds": 8}}
    found = _resolved({"out": entry}, partitions=["out", "iid"])
    assert found.select.partitions == ("out.ink", "out.oil", "iid")
    assert found.partitions["out.oil"].settings["held_out_domains"] == ["oil"]
    assert found.partitions["out.oil"].holds_out and found.protocols["out.oil"].rounds == 8
    assert "out" not in found.partitions
    found = _resolved({"out": ONE_OUT}, scenarios=["styles/out", "digits/iid"])
    assert list(map(str, found.select.scenarios)) == [
        "styles/out.ink",
        "styles/out.oil",
        "digits/iid",
    ]


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        ({"out": ONE_OUT | {"grid": {"held_out_domains": []}}}, ["partitions.out.grid"]),
        ({"out": ONE_OUT | {"grid": {"held_out_domains": [["a b"], ["a_b"]]}}}, ["'out.a_b'"]),
        ({"out": ONE_OUT, "out.ink": {"scheme": "iid", "clients": 2}}, ["'out.ink'"]),
        ({"out": ONE_OUT | {"grid": {"clients": [2]}}}, ["partitions.out.2", "clients"]),
        ({"out": ONE_OUT | {"held_out": 0.1}}, ["held_out and held_out_domains"]),
    ],
)
def test_what_is_no_grid_of_partitions_is_refused(partitions, words):
    with refused(*words):
        _resolved(partitions, partitions=["out"])


def _with_table(partitions, selected, /, **keys):
    config = default_config()
    config["partitions"] |= partitions
    config["tables"]["out"] = {"kind": "leave_one_domain_out", **keys}
    config["select"] |= {"tables": ["out"], "figures": [], "partitions": selected}
    return resolve(config | {"select": config["select"] | {"datasets": ["styles"]}})


@pytest.mark.parametrize(
    ("keys", "members"),
    [
        ({}, ["ink", "oil"]),
        ({"scenarios": ["styles/out"]}, ["ink", "oil"]),
        ({"scenarios": ["styles/out.oil"]}, ["oil"]),
    ],
)
def test_a_table_names_partitions_without_a_domain_by_their_grid(keys, members):
    output = _with_table({"out": ONE_OUT}, ["iid", "out"], **keys).tables["out"]
    assert list(map(str, output.scenarios)) == [f"styles/out.{member}" for member in members]


def test_a_table_of_domains_left_out_needs_partitions_that_leave_some_out():
    with refused("tables.out", "held_out_domains"):
        _with_table({}, ["iid"])


def _run(folder, partition, seed, correct):
    """Write the tables of a run, and return the run.

    In round 2, clients 0 (ink), 1 and 2 (oil) are tested on 10 images each, and the server's model
    on 10 images of no domain.
    """
    rows = [
        {"round": 2, "client_id": k, "domain": domain, "participating": domain != partition,
         "personalized": False, "num_test": 10, "num_correct": n, "loss": 0.0}
        for k, domain, n in zip((0, 1, 2), ("ink", "oil", "oil"), correct, strict=True)
    ]  # fmt: skip
    rows.append(rows[0] | {"client_id": SERVER_MODEL, "domain": "", "participating": False})
    file, rounds = (folder / f"{partition}{seed}{end}.parquet" for end in ("", "_rounds"))
    pd.DataFrame(rows).to_parquet(file)
    loss = 3.0 if partition == "oil" else 1.0
    pd.DataFrame({"round": [1, 2], "train_loss": loss, "guessing_loss": 2.0}).to_parquet(rounds)
    labels = {"partition": f"out.{partition}", "seed": seed, "reported": ReportedRounds((2,))}
    return shown(**labels, evaluation=file, rounds=rounds)


def test_the_table_has_a_column_per_domain_and_their_mean_over_seeds(tmp_path):
    runs = [
        _run(tmp_path, "ink", 0, (4, 9, 9)),
        _run(tmp_path, "ink", 1, (6, 9, 9)),
        _run(tmp_path, "oil", 0, (9, 5, 7)),
        _run(tmp_path, "oil", 1, (9, 7, 9)),
    ]
    built = tables.build_table(table_job("leave_one_domain_out"), runs)
    (row,) = built.frame.to_dict("records")
    names = ("domain_ink", "domain_oil", "held_out_mean")
    assert [row[name] for name in (*names, "seeds")] == [50, 70, 60, 2]
    deviations = [np.std(each, ddof=1) for each in ([40, 60], [60, 80], [50, 70])]
    assert [row[f"{name}_std"] for name in names] == pytest.approx(deviations)
    assert built.texts.titles == ["Method", "ink", "oil", "Held-out mean"]
    (note,) = built.texts.notes
    assert "not below that of guessing" in note, "a row is marked for any of its partitions"
    runs = [replace(run, sees_held_out=True) for run in runs]
    first, _ = tables.build_table(table_job("leave_one_domain_out"), runs).texts.notes
    assert "trained on images of the held-out clients" in first
