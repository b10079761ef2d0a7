"""The training options: of method.toml, of a study, of a partition's protocol, of a method."""

from typing import Annotated, Literal

from pydantic import Field

from fedloom.common.json_types import JsonDict
from fedloom.common.schema import UNSET, Count, Keys, Number

# a method that trains says these in its method.toml; the others have a default
REQUIRED_IN_METHOD_TOML = ("optimizer", "lr", "schedule", "epochs", "batch_size")
Fraction = Annotated[Number, Field(ge=0, lt=1)]


class Training(Keys):
    """Training options that are set. Those of a method's entry override the study's, and these
    override method.toml's."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field(default=UNSET)
    """Optimiser of the local training."""
    lr: Number = Field(default=UNSET, gt=0)
    """Learning rate of the local training in round 1."""
    schedule: Literal["constant", "exponential", "cosine"] = Field(default=UNSET)
    """Course of the learning rate over rounds: `constant`; `exponential`, a factor of `decay` per
    round; or `cosine`, which ends at the study's last round."""
    decay: Number = Field(default=1.0, gt=0, le=1)
    """Factor of the learning rate per round, for the schedule `exponential`."""
    momentum: Fraction = 0.0
    """Momentum of SGD; it has no effect on other optimisers."""
    betas: list[Fraction] = Field(default=[0.9, 0.999], min_length=2, max_length=2)
    """Decay rates of the two moments of Adam and AdamW; they have no effect on SGD."""
    eps: Number = Field(default=1e-8, gt=0)
    """Constant in the denominator of Adam and AdamW; it has no effect on SGD."""
    weight_decay: Number = Field(default=0.0, ge=0)
    """Coefficient of the weight decay."""
    clip: Annotated[Number, Field(gt=0)] | None = Field(default=None)
    """Largest norm of a client's gradient, which is scaled down to it. `null`: no clipping."""
    epochs: Count = Field(default=UNSET)
    """Number of local epochs of a client in a round."""
    local_steps: Count | None = None
    """Number of optimiser steps of every client in a round, in place of `epochs`. `null`: `epochs`
    counts."""
    batch_size: Count = Field(default=UNSET)
    """Number of images in a batch of a client."""
    augment: bool | Literal["shift"] = False
    """Augmentation of the training images, at random in every step. With true, crops (8 to 100% of
    the area) and flips, as in CoOp; with `shift`, shifts by up to an eighth of the side, and flips.
    Features are then computed in every step, not read from the cache."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is smaller than `batch_size`, as CoOp does, unless
    it is the only one."""
    micro_batch: Count | None = None
    """Number of images per client that are computed at a time in a batch: less memory, and the same
    step up to rounding. `null`: the whole batch at once."""

    @property
    def given(self) -> JsonDict:
        """The options that are set, which override others."""
        return self.model_dump(exclude_unset=True)


# defaults, as in torch, of options that neither method.toml nor the study sets
DEFAULTS: JsonDict = {
    name: field.default
    for name, field in Training.model_fields.items()
    if name not in REQUIRED_IN_METHOD_TOML
}
