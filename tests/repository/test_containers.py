"""Recipes of containers install what constraints.txt pins, for the Python of pyproject.toml."""

import re
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedloom.machine.install import ROOT

RECIPES = {"Dockerfile": r"^FROM (.*)$", "fedloom.def": r"^From: (.*)$"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALL = re.compile(r"PIP_EXTRA_INDEX_URL=\"\$WHEELS\" \\\n +python -m pip install (.*)$", re.M)


def pins() -> dict[str, str]:
    """Return the versions of constraints.txt, by the packages' canonical names."""
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, version in (li.split("==") for li in lines)}


def all_required(extras: list[str]) -> set[str]:
    """Return the packages that FedLoom with these extras installs, and their requirements."""
    optional = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    ahead = [Requirement(text) for text in (*PROJECT["dependencies"], *optional)]
    seen: set[tuple[str, str]] = set()
    while ahead:
        requirement = ahead.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            needed = map(Requirement, requires(name) or ())
            ahead += [r for r in needed if not r.marker or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_begins_with_the_projects_python(recipe):
    text = (ROOT / "containers" / recipe).read_text()
    (base,) = re.findall(RECIPES[recipe], text, re.M)
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert base == f"python:{lowest}-slim"
    assert f"PYTHON ?= python{lowest}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_installs_what_constraints_pin_and_copies_what_that_needs(recipe):
    text = (ROOT / "containers" / recipe).read_text()
    (arguments,) = INSTALL.findall(text)
    extras = re.fullmatch(r"--no-cache-dir --constraint constraints.txt '\.\[(.*)\]'", arguments)
    unpinned = all_required(extras[1].split(",")) - pins().keys()
    assert unpinned <= {"setuptools"}  # pip freeze, and so constraints.txt, leaves it out
    build = ("pyproject.toml", "hatch_build.py", "constraints.txt")
    for file in (PROJECT["readme"], *PROJECT["license-files"], *build):
        assert re.search(rf"^( +|COPY ).*\b{re.escape(file)}\b", text, re.M), file
        ignored = (ROOT / "containers/Dockerfile.dockerignore").read_text().split()
        assert f"!{file}" in ignored


def test_recipes_name_no_host():
    for recipe in RECIPES:
        assert not re.search(
            r"https?://|\w\.(org|io|com)\b", (ROOT / "containers" / recipe).read_text()
        )


def test_jobs_in_the_container_do_not_run_as_root():
    (user,) = re.findall(r"^USER (.*)$", (ROOT / "containers/Dockerfile").read_text(), re.M)
    assert user not in ("root", "0")
