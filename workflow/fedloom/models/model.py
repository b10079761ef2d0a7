"""A model that a run has trained: its classes, its transform, its module, and its predictions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.common.trees import leaves
from fedloom.data.loading import with_test_images
from fedloom.hooks.manifest import find_method
from fedloom.models.classifier import Classifier
from fedloom.models.content import ModelContent
from fedloom.models.images import AnyImage, Preparation, new_images
from fedloom.models.predictions import predict_images

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Model:
    """A model that a run has trained, for predictions.

    Attributes:
        content: the model's facts, and its tensors without the backbone's weights.
        transform: a function from a PIL image to the pixels that the module takes, uint8 [channels,
            H, W].
        module: a torch module: pixels uint8 [N, channels, H, W] become logits [N, C].
    """

    content: ModelContent
    transform: Preparation
    module: Classifier

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the C classes, in the order of the logits."""
        return self.module.task.data.classes

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's tensors by path, such as "received/params/head"."""
        found = leaves(self.content.tensors)
        return {path: value for path, value in found if isinstance(value, Tensor)}

    def __repr__(self) -> str:
        """Say which model it is, and how many classes it has."""
        facts = self.content.facts
        whose = "server"
        if facts.client is not None:
            whose = f"client {facts.client}"
        return (
            f"Model({facts.spec.run.path!r}, {whose}, round {facts.round}, "
            f"{len(self.classes)} classes)"
        )

    def predict(self, images: AnyImage | Iterable[AnyImage], top_k: int = 1) -> "pd.DataFrame":
        """Return the most probable classes of images, a row for each image and rank.

        The columns are `image` (its path, or else its position), `rank` (from 1), `class` and
        `probability`.

        Args:
            images: one image or several: paths of files, PIL images, or arrays of 8-bit pixels, [H,
                W] or [H, W, channels].
            top_k: the number of classes for each image.

        Raises:
            FedLoomError: an image has another type or cannot be read, or `top_k` is no number of
                classes.
        """
        found = new_images(images)
        return predict_images(found, self.module, self.transform, self.classes, top_k).table

    def with_classes(self, classes: Sequence[str]) -> "Model":
        """Return the model that chooses among other classes, given by their names.

        Only methods on a CLIP that name classes in a text can do this.

        Raises:
            FedLoomError: the method chooses among the classes of its training alone, a wrapper adds
                to their logits, or a name is empty, too long or occurs twice.
        """
        names = tuple(classes)
        if not names or len(set(names)) < len(names) or not all(names):
            raise FedLoomError(
                f"with_classes: must be names of classes, each of them once, got {list(names)}"
            )

        module = self.module
        task = module.task
        manifest = find_method(task.method, role="method")
        reason = manifest.why_unseen_classes_unsupported(vars(task.options))
        if reason is not None:
            raise FedLoomError(f"with_classes: {reason}")
        if module.clients.logit_offsets is not None:
            raise FedLoomError(
                "with_classes: a wrapper adds to the client's logits, by its shares of the classes "
                "that it trained on; load the server's model (without client)"
            )

        # as in an evaluation on classes that no client trains on
        nothing = np.zeros(0, np.int64)
        data = with_test_images(task.data, nothing, task.data.labels.cpu().numpy(), names)
        own = module.clients
        clients = replace(own, priors=data.priors[: len(own)])
        changed = Classifier(
            replace(task, data=data),
            module.hooks,
            module.received,
            clients,
            module.shape,
            module.cache_precision,
        )
        changed.check()
        return replace(self, module=changed)
