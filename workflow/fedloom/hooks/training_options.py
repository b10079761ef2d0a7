"""The training options, which method.toml, a study, a partition's protocol or a method may set."""

from typing import Annotated, Literal

from pydantic import Field

from fedloom.common.json_types import JsonDict
from fedloom.common.schema import UNSET, Count, Keys, Number, ShareBelowOne

# the method.toml of a method that trains must set these; the other options have a default
REQUIRED_IN_METHOD_TOML = ("optimizer", "lr", "schedule", "epochs", "batch_size")


class Training(Keys):
    """The training options that are set.

    The options of a method's entry override those of the partition's protocol. These override the
    options of the study, and the options of the study override those of method.toml.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = Field(default=UNSET)
    """Optimiser of the clients' local training."""
    lr: Number = Field(default=UNSET, gt=0)
    """Learning rate of the local training in round 1."""
    schedule: Literal["constant", "exponential", "cosine"] = Field(default=UNSET)
    """How the learning rate changes over the rounds. `constant`: it does not change. `exponential`:
    it is multiplied by `decay` each round. `cosine`: it falls along half a cosine until the study's
    last round."""
    decay: Number = Field(default=1.0, gt=0, le=1)
    """Factor by which the schedule `exponential` multiplies the learning rate each round."""
    momentum: ShareBelowOne = 0.0
    """Momentum of SGD; it has no effect on other optimisers."""
    betas: list[ShareBelowOne] = Field(default=[0.9, 0.999], min_length=2, max_length=2)
    """Decay rates of the two moments of Adam and AdamW; they have no effect on SGD."""
    eps: Number = Field(default=1e-8, gt=0)
    """Constant in the denominator of Adam and AdamW; it has no effect on SGD."""
    weight_decay: Number = Field(default=0.0, ge=0)
    """Coefficient of the optimiser's weight decay."""
    clip: Annotated[Number, Field(gt=0)] | None = Field(default=None)
    """Largest L2 norm of a client's gradient. A gradient with a larger norm is scaled down to it.
    `null`: no clipping."""
    epochs: Count = Field(default=UNSET)
    """Number of local epochs of a client in a round."""
    local_steps: Count | None = None
    """Number of optimiser steps of every client in a round, instead of `epochs`. `null`: `epochs`
    is used."""
    batch_size: Count = Field(default=UNSET)
    """Number of training images in a client's batch."""
    augment: bool | Literal["shift"] = False
    """Random augmentation of the training images in every step. true: crops (8 to 100% of the area)
    and flips, as in CoOp. `shift`: shifts by up to an eighth of the side, and flips. With
    augmentation, features are computed in every step and not read from the cache."""
    drop_last: bool = False
    """True leaves out the last batch of an epoch if it is smaller than `batch_size`, as CoOp does.
    The only batch of an epoch is never left out."""
    micro_batch: Count | None = None
    """Largest number of images per client that are computed at once. A batch is computed in such
    parts, which takes less memory and gives the same step up to rounding. `null`: the whole batch
    at once."""

    @property
    def given(self) -> JsonDict:
        """The options that are set, as a dict."""
        return self.model_dump(exclude_unset=True)


# defaults of the options that neither method.toml nor the study sets; they are torch's
DEFAULTS: JsonDict = {
    name: field.default
    for name, field in Training.model_fields.items()
    if name not in REQUIRED_IN_METHOD_TOML
}
