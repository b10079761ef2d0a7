"""Checks that every method must pass, ours or a third party's: `fedloom check <name>`.

Each check trains the method for a few rounds on six tiny clients of random images and raises a
FedLoomError that names the method and what it broke.
"""

# ruff: noqa: F401  other modules import these names from here

from fedloom.contract import checks
from fedloom.contract.checks import (
    CHECKS,
    aggregates_as_declared,
    differences,
    evaluates_strangers,
    ignores_order,
    keeps_secrets,
    learns,
    leaves_inputs_alone,
    reads_nothing_private,
    resumes,
    stacks,
)
from fedloom.contract.driver import VARIATIONS, check, refusal
from fedloom.contract.tiny import (
    ALIKE,
    DIFFERENT,
    tiny_clip,
    tiny_job,
    tiny_outputs,
    tiny_task,
    tiny_vit,
)
from fedloom.contract.variations import other_options, other_values, shipped_backbone
