"""Evaluations and rounds that no run made, for tables."""

import math

import pandas as pd

from shown_runs import filled, shown


def evaluation_table(path, correct, rounds=(1, 2)):
    """Return an evaluation in which clients 0 and 1 take part and client 2 is held out.

    They have 10, 20 and 10 test images.
    """
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


def rounds_table(path, losses):
    """Write the rounds of a run on ten classes, by its training losses; return the path."""
    numbers = range(1, len(losses) + 1)
    columns = {"round": numbers, "train_loss": losses, "guessing_loss": math.log(10)}
    filled(columns, "rounds").to_parquet(path)
    return path


def run_of(method, seed=0):
    return shown(method=method, title=method, seed=seed)
