"""Checks that every method must pass, ours or a third party's: `fedloom check <name>`.

Each check trains the method for a few rounds on six tiny clients of random images and raises a
FedLoomError that names the method and what it broke.
"""

# ruff: noqa: F401  other modules import these names from here

from fedloom.contract import checks, driver
from fedloom.contract.checks import (
    CHECKS,
    TinyRun,
    aggregates_as_declared,
    answers_as_declared,
    differences,
    gives_its_tables,
    ignores_order,
    keeps_rules,
    keeps_secrets,
    learns,
    leaves_inputs_alone,
    resumes,
    stacks,
)
from fedloom.contract.driver import (
    VARIATIONS,
    check,
    other_options,
    other_values,
    refusal,
    shipped_backbone,
)
from fedloom.contract.tiny import (
    ALIKE,
    DIFFERENT,
    tiny_clip,
    tiny_job,
    tiny_outputs,
    tiny_task,
    tiny_vit,
)
