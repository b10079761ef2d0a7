"""Narrow a study to some of its labels and seeds (`--only`).

The resolved settings are narrowed, not the config. Therefore a run keeps its options, its folder
and its job, and is not made again when the whole study follows.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.key_path import CONFIG
from fedloom.config.resolve_outputs import check_requirements, complete_output, with_labels
from fedloom.config.settings import OutputEntry, Scenario, Settings

# what `--only` can name: labels of runs, and labels of what is made of runs
SCENARIO_KEYS = ("scenarios", "datasets", "partitions")
RUN_KEYS = (*SCENARIO_KEYS, "backbones", "methods", "seeds")
OUTPUT_KEYS = ("tables", "figures")
KEYS = (*RUN_KEYS, *OUTPUT_KEYS)

# the labels that a study is narrowed to, by key
Narrowing = dict[str, tuple[str, ...]]


def read_narrowing(words: Iterable[str]) -> Narrowing:
    """Return the labels that words such as "methods=fedvpt,pep_fedpt" name, by their KEYS.

    Raises:
        FedLoomError: a word is not of this form, or its key is unknown or was named before.
    """
    found = Narrowing()
    for word in words:
        key, equals, value = word.partition("=")
        labels = tuple(label.strip() for label in value.split(","))
        if not equals or not all(labels):
            raise FedLoomError(f"--only must be <key>=<label>,<label>,..., got '{word}'")
        check_known(key, KEYS, "--only: no key")
        if key in found:
            raise FedLoomError(
                f"--only {word}: {key} must be named once; write all its labels there, with commas "
                "between them"
            )
        found[key] = tuple(dict.fromkeys(labels))
    return {key: found[key] for key in KEYS if key in found}


def in_words(narrowing: Narrowing, keys: Collection[str] = KEYS) -> str:
    """Return the labels as text, by key: "methods fedvpt, pep_fedpt; seeds 0"."""
    parts = [f"{key} {', '.join(narrowing[key])}" for key in keys if key in narrowing]
    return "; ".join(parts)


def narrow(settings: Settings, narrowing: Narrowing) -> Settings:
    """Return the settings of a part of a study: of the labels and seeds that are named.

    A key that is not named keeps all its labels. But if only tables are named, no figure is made,
    and if only figures are named, no table. A table or figure of which nothing is left, or that
    cannot be made of the rest, is left out, with a note.

    Raises:
        FedLoomError: the study does not have a label, or no table and no figure is left.
    """
    if not narrowing:
        return settings

    # the labels that are kept, by key
    every = _every_label(settings)
    kept = dict(every)
    if not narrowing.keys().isdisjoint(OUTPUT_KEYS):
        kept |= {key: [] for key in OUTPUT_KEYS}
    for key, names in narrowing.items():
        if key == "methods":
            kept[key] = _methods(settings, names)
        else:
            for name in names:
                check_known(name, every[key], f"--only {key}: the study has no")
            kept[key] = [*names]

    # what is left of the study, in its order
    select = settings.select
    scenarios = [each for each in select.scenarios if _is_kept(each, kept)]
    if not scenarios:
        raise FedLoomError(
            f"--only: the study has no scenario of {in_words(narrowing, SCENARIO_KEYS)}; known: "
            f"{', '.join(every['scenarios'])}"
        )
    left = replace(
        select,
        scenarios=tuple(scenarios),
        backbones=tuple(label for label in select.backbones if label in kept["backbones"]),
        methods=tuple(label for label in select.methods if label in kept["methods"]),
        tables=tuple(label for label in select.tables if label in kept["tables"]),
        figures=tuple(label for label in select.figures if label in kept["figures"]),
    )
    seeds = [seed for seed in settings.study.seeds if str(seed) in kept["seeds"]]

    study = settings.study.model_copy(update={"seeds": seeds})
    changed = replace(settings, study=study, select=left, narrowing=narrowing, whole=settings)
    return _with_outputs(changed)


def _every_label(settings: Settings) -> dict[str, list[str]]:
    """Return all labels of a study as text, by key."""
    every = {"seeds": [str(seed) for seed in settings.study.seeds]}
    for key in KEYS:
        if key != "seeds":
            every[key] = [str(label) for label in getattr(settings.select, key)]
    return every


def _is_kept(scenario: Scenario, kept: Mapping[str, Collection[str]]) -> bool:
    """Return True if a scenario is kept, and its dataset, and its partition."""
    return (
        str(scenario) in kept["scenarios"]
        and scenario.dataset in kept["datasets"]
        and scenario.partition in kept["partitions"]
    )


def _methods(settings: Settings, names: Iterable[str]) -> list[str]:
    """Return the labels of methods that names stand for: a grid's label stands for its members.

    Raises:
        FedLoomError: the study does not run a method.
    """
    # the labels that each name stands for
    known = dict[str, list[str]]()
    members = dict[str, list[str]]()
    for label in settings.select.methods:
        member = settings.methods[label].member
        if member is None:
            known[label] = [label]
        else:
            known.setdefault(member.grid, []).append(label)
            members[label] = [label]

    labels = list[str]()
    for name in names:
        # an error about a member of a grid names members; any other error names grids as a whole
        words = "--only methods: the study runs no"
        if name not in members and name not in known:
            grid, dot, _ = name.partition(".")
            check_known(name, known[grid] if dot and grid in known else known, words)
        labels += members.get(name) or known[name]
    return labels


def _with_outputs(narrowed: Settings) -> Settings:
    """Return narrowed settings with what is left of the selected tables and figures.

    Scenarios and backbones that no table and no figure shows any more are left out too.
    """
    # what is left of each table and figure
    outputs: dict[str, dict[str, OutputEntry]] = {section: {} for section in OUTPUT_KEYS}
    refused = list[FedLoomError]()
    for section in OUTPUT_KEYS:
        for label in getattr(narrowed.select, section):
            try:
                outputs[section][label] = _narrow_output(narrowed, section, label)
            except FedLoomError as error:
                refused.append(error)
    left = [*outputs["tables"].values(), *outputs["figures"].values()]
    if refused and not left:
        raise FedLoomError(f"--only: no table and no figure of the study is left: {refused[0]}")

    select = replace(
        narrowed.select, tables=tuple(outputs["tables"]), figures=tuple(outputs["figures"])
    )
    if left:
        scenarios = {scenario for output in left for scenario in output.scenarios}
        backbones = {label for output in left for label in output.backbones}
        select = replace(
            select,
            scenarios=tuple(each for each in select.scenarios if each in scenarios),
            backbones=tuple(label for label in select.backbones if label in backbones),
        )
    notes = [f"left out after --only: {error}" for error in refused]
    return replace(narrowed, select=select, notes=(*narrowed.notes, *notes), **outputs)


def _narrow_output(narrowed: Settings, section: str, label: str) -> OutputEntry:
    """Return a table or figure of the whole study with the labels that are left.

    If all of its labels and seeds are left, it is returned as it is.

    Raises:
        FedLoomError: nothing is left of it, or it cannot be made of the rest.
    """
    whole = narrowed.whole
    assert whole is not None
    output: OutputEntry = getattr(whole, section)[label]
    where = CONFIG / section / label
    spec = output.entry.needs()

    # what shows settings shows methods, but lists none, since it needs no runs
    before = output
    if spec.shows == "settings":
        before = with_labels(whole, output, where)

    select = narrowed.select
    after = replace(
        before,
        scenarios=tuple(each for each in before.scenarios if each in select.scenarios),
        backbones=tuple(each for each in before.backbones if each in select.backbones),
        methods=tuple(each for each in before.methods if each in select.methods),
    )
    for key in ("scenarios", "backbones", "methods"):
        if getattr(before, key) and not getattr(after, key):
            raise where.error(f"none of its {key} is left")

    # the seeds of its runs
    has_all_seeds = narrowed.study.seeds == whole.study.seeds
    if spec.first_seed:
        first = whole.study.seeds[0]
        if first not in narrowed.study.seeds:
            raise where.error(f"it shows only the runs of the study's first seed, {first}")
        has_all_seeds = True
    if after == before and (has_all_seeds or not spec.shows_runs):
        return output

    # what its kind requires, and what it reads from the study; a paper's numbers stay the same
    words = in_words(narrowed.narrowing, RUN_KEYS)
    after = replace(after, extra={}, narrowed=f"Narrowed to {words}.")
    check_requirements(narrowed, after, where)
    return complete_output(narrowed, after, where)
