"""The artefact `answers`: what clients answer on a few test images, as their evaluation does."""

import io
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedloom.common.seeds import torch_generator
from fedloom.common.trees import Tree
from fedloom.federated import groups
from fedloom.federated.cohorts import personalize_cohort, prepare_clients
from fedloom.federated.evaluate import answer
from fedloom.federated.round import attacking_clients
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task
from fedloom.hooks.manifest import EXAMPLES
from fedloom.hooks.run_hooks import Hooks

# the most pixels of a side of the pictures
LARGEST_SIDE = 96


@dataclass(frozen=True)
class AnswerRow:
    """A row of the artefact `answers`: a test image, and what its client answers.

    Attributes:
        client_id: the client that has the image.
        image: the row of the image in the image store.
        label, predicted: its class and the class that the client answers, as the dataset's numbers.
        probability: the probability that the client gives to its answer.
        picture: the image as a PNG file, with at most LARGEST_SIDE pixels to a side.
    """

    client_id: int
    image: int
    label: int
    predicted: int
    probability: float
    picture: bytes


@torch.no_grad()
def example_answers(task: Task, hooks: Hooks, state: State) -> list[AnswerRow]:
    """Return the answers on EXAMPLES test images, or on fewer if there are not as many.

    They are images of honest participating clients, drawn from the run's seed. So methods with the
    same clients show the same images.

    A client answers with the model that its last row of evaluation.parquet is of: after
    personalisation, if the method has it.
    """
    attacking = attacking_clients(task, hooks)
    honest = [k for k in task.data.tested if k in task.data.position and k not in attacking]
    asked = _draw_images(task, honest)

    # answer in cohorts of as many clients as an evaluation has
    rows: list[AnswerRow] = []
    ids = sorted(asked)
    for group in groups.equal_groups(len(ids), groups.clients_evaluated_at_once(task, state)):
        received, clients = prepare_clients(task, hooks, state, [ids[k] for k in group])
        personal = personalize_cohort(task, hooks, received, clients)
        if personal is not None:
            clients = personal
        rows += _answers_of_cohort(task, hooks, received, clients, asked)
    return rows


def _draw_images(task: Task, clients: list[int]) -> dict[int, np.ndarray]:
    """Return EXAMPLES test images (rows of the store) by client, of as many clients as possible."""
    generator = torch_generator(task.seed, "answers")
    order = torch.randperm(len(clients), generator=generator).tolist()

    # each of these clients shows its first image before one of them shows its second
    turns = list[tuple[int, int, int]]()
    for turn, position in enumerate(order[:EXAMPLES]):
        images = task.data.test[clients[position]]
        shuffled = images[torch.randperm(len(images), generator=generator).numpy()]
        for place, image in enumerate(shuffled[:EXAMPLES].tolist()):
            turns.append((place, turn, image))

    asked = defaultdict[int, list[int]](list)
    for _, turn, image in sorted(turns)[:EXAMPLES]:
        asked[clients[order[turn]]].append(image)
    return {client: np.array(images) for client, images in asked.items()}


def _answers_of_cohort(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, asked: dict[int, np.ndarray]
) -> list[AnswerRow]:
    """Return the rows of K clients, each on its images in `asked`."""
    images = [asked[client] for client in clients.ids]

    # the answers [K, B] of each batch, and their probabilities
    predicted: list[Tensor] = []
    probabilities: list[Tensor] = []
    for batch in groups.iterate_examples(task, images):
        logits = answer(task, hooks, received, clients, batch)
        assert logits is not None, "only the server's model may be missing"
        best = logits.softmax(-1).max(-1)
        predicted.append(best.indices)
        probabilities.append(best.values)
    classes = torch.cat(predicted, 1).cpu().numpy()  # [K, B]
    shares = torch.cat(probabilities, 1).cpu().numpy()
    if task.data.numbers is not None:
        classes = task.data.numbers[classes]

    rows: list[AnswerRow] = []
    for k, client in enumerate(clients.ids):
        pictures = task.data.store.images(images[k])
        for place, image in enumerate(images[k].tolist()):
            row = AnswerRow(
                client_id=client,
                image=image,
                label=int(task.data.store.labels[image]),
                predicted=int(classes[k, place]),
                probability=float(shares[k, place]),
                picture=as_png(pictures[place]),
            )
            rows.append(row)
    return rows


def as_png(pixels: np.ndarray) -> bytes:
    """Return an image [H, W, channels] as a PNG file; a large image is made smaller."""
    if pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
