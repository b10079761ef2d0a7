"""Define the commands about trained models: `fedloom predict` and `fedloom publish`."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.commands import POSITIVE


@click.command(short_help="Predict the classes of images with a trained model.")
@click.argument("run")
@click.argument("images", nargs=-1, required=True, metavar="IMAGES...")
@click.option("--client", type=int, help="Take the model of this client; default: the server's.")
@click.option("--round", "round_number", type=int, help="Take the model after this round.")
@click.option("--top-k", type=POSITIVE, default=1, help="Classes for each image; default: 1.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the predictions to a .csv or .parquet file instead of printing them.",
)
@click.option("--skip-unreadable", is_flag=True, help="Leave out images that cannot be read.")
@click.option("--device", default="cpu", help="Where to compute, such as cuda; default: cpu.")
@click.option(
    "--precision",
    type=click.Choice(["float32", "tf32", "bf16"]),
    help="Number format of the backbone; default: that of the study.",
)
def predict(**words: Any) -> None:
    """Print the classes that a run's model predicts for images, with their probabilities.

    IMAGES are files, folders, patterns such as "photos/*.png", and lists: .txt files with a path in
    each line. If a folder has a folder for each class, the accuracy is printed too.
    """
    from fedloom.cli.inspect.predict import PredictOptions, predict

    print(predict(PredictOptions(**words)))


@click.command(short_help="Write a trained model into a folder.")
@click.argument("run")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--client", type=int, help="Publish the model of this client, not the server's.")
@click.option("--round", "round_number", type=int, help="Take the model after this round.")
def publish(run: str, folder: Path, client: int | None, round_number: int | None) -> None:
    """Write a run's model into FOLDER: tensors, config.json and a model card.

    `fedloom.load` and `fedloom predict` take the folder in place of a run. It holds nothing of a
    client unless --client names one.
    """
    from fedloom.models import run_folder

    # a mistyped name is an error before torch is imported, which takes seconds
    run_folder.find_run(run)
    from fedloom.cli.make.publish import publish

    print(publish(run, folder, client=client, round=round_number))
