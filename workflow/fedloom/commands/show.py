"""`fedloom show` and `fedloom diff`: what a run was given, where that comes from, and its curve."""

WIDTH = 40  # characters of a value
ROWS = 12  # of a curve, at most
CURVES = {  # by their names here
    "participating_mean": "mean",
    "participating_worst": "worst",
    "held_out_mean": "held-out",
    "train_loss": "train loss",
}
