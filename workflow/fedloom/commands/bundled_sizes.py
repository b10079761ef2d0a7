"""`python -m fedloom.commands.bundled_sizes`: count the backbones of the bundled studies again."""

import json

from fedloom.backbones.sizes import count
from fedloom.commands.planning import load_plan
from fedloom.common.io import write_text
from fedloom.study import bundled_studies
from fedloom.study.backbone_sizes import SHIPPED, key


def main() -> None:
    """Write workflow/resources/backbone_sizes.json."""
    plans = [load_plan([study]) for study in bundled_studies.studies()]
    backbones = [backbone for plan in plans for backbone in plan.settings.backbones.values()]
    counted = {key(backbone): count(backbone.library, backbone.settings) for backbone in backbones}
    lines = [f"{json.dumps(name)}: {json.dumps(counted[name])}" for name in sorted(counted)]
    write_text(SHIPPED, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
