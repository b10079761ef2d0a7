"""Count the sizes of the backbones of all studies that ship.

    PYTHONPATH=workflow .venv/bin/python -m pretraining.backbone_sizes

writes workflow/resources/backbone_sizes.json.
"""

import json

from fedloom.backbones.sizes import count
from fedloom.cli.run.bundled_studies import all_studies
from fedloom.common.files import write_text
from fedloom.planning.load_plan import load_plan
from fedloom.planning.resources.backbone_sizes import SHIPPED, size_key


def main() -> None:
    """Write the file."""
    plans = [load_plan([study]) for study in all_studies()]
    backbones = [backbone for plan in plans for backbone in plan.settings.backbones.values()]
    counted = {}
    for backbone in backbones:
        key = size_key(backbone)
        counted[key] = count(backbone.library, json.loads(key.partition(" ")[2]))
    lines = [f"{json.dumps(name)}: {json.dumps(counted[name])}" for name in sorted(counted)]
    write_text(SHIPPED, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
