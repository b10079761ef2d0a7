"""List the rules of the workflow: how planning makes their jobs, and which files these have.

A new rule is a dataclass for its job in fedloom.planning.job_specs, and a class here. Beside these,
it needs a module `<rule>_job` in fedloom.jobs, which runs the job, the rule in workflow/rules, and
its jobs in fedloom.planning.study_jobs, so that stale results of the rule are found.
"""

from typing import Any

from fedloom.planning.rules.data_rules import (
    BlockAccuracyRule,
    CacheRule,
    DatasetRule,
    PartitionChartRule,
    PartitionRule,
    PrototypesRule,
)
from fedloom.planning.rules.output_rules import FigureRule, TableRule
from fedloom.planning.rules.rule import Rule
from fedloom.planning.rules.run_rules import ArtefactRule, ChooseRule, EvaluateRule, TrainRule

# every rule by its name
RULES: dict[str, Rule[Any]] = {
    rule.name: rule
    for rule in (
        # jobs of images and of backbones, which runs share
        DatasetRule(),
        PartitionRule(),
        PartitionChartRule(),
        CacheRule(),
        PrototypesRule(),
        BlockAccuracyRule(),
        # jobs of one run, or of the trials before it
        TrainRule(),
        ChooseRule(),
        EvaluateRule(),
        ArtefactRule(),
        # jobs of many runs
        TableRule(),
        FigureRule(),
    )
}
