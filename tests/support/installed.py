"""Try FedLoom as a package, outside the checkout: `make wheel`, and tests/repository/test_wheel.py.

As a program, it makes an environment in the given folder with the versions of constraints.txt.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "rounds=1", "seeds=[0]", "evaluate_every=1", "report.last_evaluations=1",
    "datasets.digits.max_train=240", "datasets.digits.max_test=60",
    "select.methods=[fedvpt,mine]", "select.figures=[]",
)  # fmt: skip


def call(*words: object, folder: Path) -> str:
    """Run a command in a folder and return its output; the checkout is not on Python's path."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env=clean,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}"
    return done.stdout


def build(python: Path | str, folder: Path) -> Path:
    """Build the sdist, and the wheel from the sdist alone; return the wheel."""
    hatchling = [python, "-m", "hatchling", "build", "-d", folder, "-t"]
    subprocess.run([*hatchling, "sdist"], cwd=ROOT, check=True)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    subprocess.run([*hatchling, "wheel"], cwd=source, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_out(programs: Path, folder: Path, command: str = "run") -> str:
    """Make a study with a new plugin in a folder, run it and return the output."""
    fedloom = programs / "fedloom"
    study = folder / "my-study"
    call(fedloom, "init", "my-study", folder=folder)
    mine = study / "plugins/mine"
    shutil.copytree(ROOT / "plugins/methods/head_tuning", mine)
    toml = mine / "method.toml"
    toml.write_text(toml.read_text().replace('name = "head_tuning"', 'name = "mine"'))
    call(fedloom, "plan", "pep_fedpt/table4", folder=study)
    call(fedloom, "new", "idea", folder=study)
    shutil.copytree(study / "examples/methods/apfl_prompts", study / "plugins/apfl_prompts")
    for name in ("idea", "apfl_prompts"):
        call(fedloom, "check", "--method", name, folder=study)
    return call(fedloom, command, "--cores", 2, "--set", *SMALL, folder=study)


def take_away(programs: Path, study: Path, folder: Path) -> str:
    """Publish the model of a run of `try_out` into a new folder, and let it predict there.

    The folder has no study, no plugin and no results. Return the output of `fedloom predict`.
    """
    folder.mkdir()
    shutil.copy(ROOT / "docs/peers.png", folder / "image.png")
    (run,) = study.glob("results/runs/*/*/*/fedvpt/seed0")
    name = "/".join(run.parts[-5:])
    call(programs / "fedloom", "publish", name, folder / "model", folder=study)
    return call(programs / "fedloom", "predict", "model", "image.png", folder=folder)


def main(folder: Path) -> None:
    """Build the wheel in a folder that is made anew, and try it in a new environment."""
    shutil.rmtree(folder, ignore_errors=True)
    call(sys.executable, "-m", "venv", folder / "env", folder=ROOT)
    python = folder / "env/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    call(*pip, "hatchling", folder=ROOT)
    wheel = build(python, folder)
    print("installing it and its packages: gigabytes, some minutes", flush=True)
    call(*pip, wheel, folder=ROOT)
    print("trying it: fedloom init, plan, new, check, report, publish, predict", flush=True)
    try_out(python.parent, folder, "report")
    take_away(python.parent, folder / "my-study", folder / "elsewhere")
    shutil.rmtree(folder / "env")
    print(f"it works: {os.path.relpath(wheel)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
