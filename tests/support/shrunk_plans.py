"""The plans of studies, and those of the shrunk studies that smoke runs make of them."""

from pathlib import Path

from ruamel.yaml import YAML

from fedloom.cli.run.bundled_studies import find_study_file
from fedloom.config.shrink.scale import MICRO, Scale
from fedloom.config.shrink.study import shrink
from fedloom.planning.load_plan import read_plan
from fedloom.planning.plan import Plan


def shrunk_plans(study: str | Path, folder: Path, scale: Scale = MICRO) -> tuple[Plan, Plan]:
    """Return the plan of a study, and that of its shrunk config, which is written into a folder."""
    whole = read_plan([find_study_file(str(study))])
    file = folder / "shrunk.yaml"
    YAML().dump(shrink(whole.config, whole.settings, scale), file)
    return whole, read_plan([file])
