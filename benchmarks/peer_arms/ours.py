"""FedLoom's own engine: `train_round` on a task that is prepared as a job prepares it.

The arm `one_by_one` makes every client a cohort of its own (`study.stacked: false`), and
`fedloom_bf16` computes with `study.precision: bf16`.
"""

import os
import sys
from dataclasses import replace

from prepared import STUDY, prepared

from fedloom.federated.round import initial_state, train_round
from fedloom.planning.load_plan import load_plan
from peer_arms.world import begin


def main() -> None:
    """Train all cases."""
    arm = sys.argv[2]
    pace = begin(arm)
    os.chdir(pace.world.folder)
    half = {"study": {"precision": "bf16"}} if arm.endswith("bf16") else {}
    plan = load_plan([STUDY], half)
    for case in pace.world.cases:
        task, hooks = prepared(plan, case.name)
        task = replace(task, declared=replace(task.declared, stacked=arm != "one_by_one"))
        state = initial_state(task, hooks)
        for number in range(1, pace.world.rounds + 1):
            pace.start()
            state, _ = train_round(task.at(number), hooks, state)
            pace.stop(case, number, state.server["params"])


if __name__ == "__main__":
    main()
