"""The training options: of method.toml, of a study, of a partition's protocol, of a method."""

from typing import Annotated, Any, Literal

from pydantic import Field

from fedloom.common.schema import UNSET, Count, Keys, Number

# a method that trains says these in its method.toml; the others have a default
REQUIRED_IN_METHOD_TOML = ("optimizer", "lr", "schedule", "epochs", "batch_size")
Fraction = Annotated[Number, Field(ge=0, lt=1)]


class Training(Keys):
    """Training options that are set. Those of a method's entry override the study's, and these
    override method.toml's."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field(default=UNSET)
    lr: Number = Field(default=UNSET, gt=0)
    schedule: Literal["constant", "exponential", "cosine"] = Field(default=UNSET)
    """How the learning rate changes over rounds; cosine ends at the study's last round."""
    decay: Number = Field(default=1.0, gt=0, le=1)
    """By what the schedule exponential multiplies the learning rate after every round."""
    momentum: Fraction = 0.0
    """The momentum of sgd; the other optimisers have none."""
    betas: list[Fraction] = Field(default=[0.9, 0.999], min_length=2, max_length=2)
    """How much of its two averages adam, or adamw, keeps in a step; sgd has none."""
    eps: Number = Field(default=1e-8, gt=0)
    """What adam, or adamw, adds to the number that it divides by; sgd has none."""
    weight_decay: Number = Field(default=0.0, ge=0)
    clip: Annotated[Number, Field(gt=0)] | None = Field(default=None)
    """The L2 norm that each client's gradient is scaled down to if it is larger; null: none."""
    epochs: Count = Field(default=UNSET)
    """How often a client goes through its training images in a round."""
    local_steps: Count | None = None
    """Optimiser steps of every client in a round, in place of epochs; null: epochs."""
    batch_size: Count = Field(default=UNSET)
    augment: bool | Literal["shift"] = False
    """Crop (8 to 100% of the area) and flip training images at random in every step, as CoOp does;
    or shift them, by up to an eighth of the side, and flip them. Features are then computed, not
    read from the cache."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is smaller than batch_size, as CoOp does, unless
    it is the only one."""
    micro_batch: Count | None = None
    """Go through a batch this many images per client at a time, with less memory and the same step
    up to rounding; null: all at once."""

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set, which override others."""
        return self.model_dump(exclude_unset=True)


# defaults, as in torch, of options that neither method.toml nor the study sets
DEFAULTS: dict[str, Any] = {
    name: field.default
    for name, field in Training.model_fields.items()
    if name not in REQUIRED_IN_METHOD_TOML
}
