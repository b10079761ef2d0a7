"""The time left of a run follows from what its jobs took, rule by rule."""

import pytest

from fedloom.planning.time_left import Pace, Rest, time_left


@pytest.fixture
def pace():
    """Return the pace after one image store, which took as long as estimated: a minute."""
    found = Pace()
    found.add("dataset", 60.0, 60.0)
    return found


def test_nothing_is_said_before_a_job_has_told_anything():
    jobs = [Rest("train", 5.0, 10.0, None)]
    assert time_left(Pace(), jobs, {"train": 100.0}, 1.0) is None


def test_a_rule_without_ended_jobs_has_the_pace_of_all_rules_and_is_rough(pace):
    assert time_left(pace, [], {"train": 1200.0}, 1.0) == (1200.0, True)


def test_the_first_ended_job_of_a_rule_corrects_the_estimate(pace):
    """On a GPU, training takes a fraction of the estimate: 90 seconds instead of 20 minutes."""
    pace.add("train", 3.0, 40.0)
    assert time_left(pace, [], {"train": 1200.0}, 1.0) == (pytest.approx(90.0), False)


def test_small_jobs_that_take_longer_than_estimated_are_not_forgotten(pace):
    """Forty jobs of an estimated eighth of a second take a second each, to start."""
    pace.add("train", 1.0, 0.125)
    assert time_left(pace, [], {"train": 40 * 0.125}, 1.0) == (pytest.approx(40.0), False)


def test_a_job_at_work_that_tells_its_progress_shows_its_rules_pace(pace):
    jobs = [Rest("train", 10.0, 200.0, 10.0)]
    seconds, is_rough = time_left(pace, jobs, {"train": 400.0}, 1.0)
    assert seconds == pytest.approx(10.0 + 400.0 * 20.0 / 200.0)
    assert not is_rough


def test_jobs_at_the_same_time_share_the_rest(pace):
    pace.add("train", 10.0, 10.0)
    assert time_left(pace, [], {"train": 100.0}, 4.0).seconds == pytest.approx(25.0)


def test_a_run_does_not_end_before_its_longest_job(pace):
    jobs = [Rest("train", 10.0, 60.0, 50.0), Rest("train", 10.0, 12.0, 2.0)]
    assert time_left(pace, jobs, {}, 2.0).seconds == pytest.approx(50.0)


def test_a_job_that_takes_longer_than_expected_is_about_to_end(pace):
    pace.add("train", 10.0, 10.0)
    jobs = [Rest("train", 30.0, 10.0, None)]
    assert time_left(pace, jobs, {}, 1.0).seconds == 0.0
