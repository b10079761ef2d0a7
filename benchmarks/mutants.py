"""Break the code in one place at a time, and see which of these mutants no test notices.

    mutants.py record NOTES [TEST_FILE ...]   which tests enter which function, and their seconds
    mutants.py run NOTES RESULTS --seed 1     try a random sample of mutants
    mutants.py again NOTES RESULTS            try those once more that were not killed
    mutants.py score RESULTS                  print survivors, and the share killed by folder
    mutants.py named                          try those of NAMED, which once lived, each on its test

All but `named` needs `pip install --constraint constraints.txt --editable ".[test,mutants]"`; the
operators are those of cosmic-ray. From every file of FOLDERS `run` draws places, and of each place
one mutant, so that a place with twelve mutants counts as much as one with two. A mutant meets those
tests that enter the function it lies in (the file, if it lies in none), up to BUDGET seconds of
them: the share killed is a lower bound. It is killed by the first test that fails, or by taking
longer than the tests may.

All runs on a copy of the files that git tracks, each mutant in a separate process that is forked
from one which has imported torch, timm and open_clip.
"""

import argparse
import ast
import difflib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import open_clip  # noqa: F401  imported before the fork
import pandas  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import sklearn.cluster  # noqa: F401
import timm  # noqa: F401

if TYPE_CHECKING:
    import coverage

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("plugins", "workflow/fedloom/toolbox", "workflow/fedloom/federated")
# those that start processes, in which nothing is recorded, and those that look at no method
NOT_RECORDED = (
    "test_workflow.py",
    "test_docs.py",
    "test_site.py",
    "test_glyphs.py",
    "test_figures.py",
)
NOT_RECORDED += ("test_figure_looks.py", "test_figure_inputs.py", "test_figures_of_insides.py")
BUDGET = 30.0


DATA, REPORT = "workflow/fedloom/data", "workflow/fedloom/report"
COUNT_ALIKE = "test_groups.py::test_a_clients_images_count_alike_in_one_batch_and_in_several"
# mutants that lived until someone read the code: file, the line as it is, the mutant's line, and
# the test that kills it
NAMED = [
    (
        "plugins/wrappers/dp_gaussian/plugin.py",
        "len(task.data.participating) if poisson else 1.0",
        "len(task.data.participating)",
        "test_privacy_accounting.py::test_epsilon_after_every_round_is_a_column_and_grows",
    ),
    (
        "plugins/wrappers/secure_mask/plugin.py",
        'task.generator("secure_mask", low, high)',
        'task.at(1).generator("secure_mask", low, high)',
        "test_secure_mask.py::test_every_round_has_masks_of_its_own",
    ),
    (
        "plugins/methods/fedlora/plugin.py",
        'task.at(0).generator("lora")',
        'task.generator("lora")',
        "test_trained_insides.py::test_a_frozen_a_is_the_same_in_every_round",
    ),
    (
        "plugins/wrappers/quantize/plugin.py",
        'task.generator("quantize", clients.ids[k])',
        'task.generator("quantize")',
        "test_compression.py::test_clients_and_rounds_draw_by_themselves",
    ),
    (
        "plugins/methods/fedpha/released.py",
        "int((1 - rho) * context.shape[-2])",
        "round((1 - rho) * context.shape[-2])",
        "test_clip_fedpha.py::test_the_released_projection_lies_inside_the_row_space",
    ),
    (
        "workflow/fedloom/toolbox/trained_part.py",
        "width**-0.5",
        "width**-1.0",
        "test_pfedpg.py::test_an_untrained_head_is_the_clients_own_from_round_to_round",
    ),
    (
        "plugins/methods/fedotp/transport.py",
        "math.log(torch.finfo(cost.dtype).tiny) / 2",
        "math.log(torch.finfo(cost.dtype).tiny)",
        "test_clip_transport.py::"
        "test_logarithms_begin_where_a_product_of_two_kernels_would_leave_the_range",
    ),
    (
        f"{DATA}/schemes/dirichlet.py",
        "wanted[client] * (left > 0)",
        "wanted[client] * left",
        "test_schemes.py::"
        "test_dirichlet_per_client_draws_by_proportions_whatever_is_left_of_a_class",
    ),
    (
        f"{DATA}/schemes/dirichlet.py",
        "held < len(column) / clients",
        "held <= len(column) / clients",
        "test_schemes.py::test_a_capped_client_that_holds_its_equal_share_gets_nothing_more",
    ),
    (
        "plugins/methods/ifca/plugin.py",
        "total[:, j] += losses",
        "total[:, j] = losses",
        COUNT_ALIKE,
    ),
    (
        "plugins/methods/per_fedavg/plugin.py",
        "total = fl.tensor_map(torch.add, total, part)",
        "total = part",
        COUNT_ALIKE,
    ),
    (
        "plugins/methods/creff/plugin.py",
        "total += torch.einsum",
        "total = torch.einsum",
        COUNT_ALIKE,
    ),
    (
        "workflow/fedloom/federated/round.py",
        "sorted(accepted, key=lambda update: update.client)",
        "list(accepted)",
        "test_packing.py::test_aggregate_gets_the_updates_that_receive_leaves_sorted_by_client",
    ),
    (
        f"{REPORT}/metrics.py",
        'evaluation["round"].isin(reported.rounds) & evaluation["participating"]',
        'evaluation["round"].isin(reported.rounds)',
        "test_protocols.py::test_pooled_counts_images_and_not_clients",
    ),
    (
        f"{REPORT}/metrics.py",
        "every[every.index.isin(reported.rounds)].mean()",
        "every.mean()",
        "test_tables.py::test_accuracies_are_means_over_clients_then_rounds",
    ),
]


class Tests:
    """A pytest plugin: keep the tests of `only`, in its order; record seconds and failures."""

    def __init__(self, only: list[str] | None = None, measured: "coverage.Coverage | None" = None):
        self.order = None if only is None else {name: place for place, name in enumerate(only)}
        self.measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.order is not None:
            items[:] = [item for item in items if item.nodeid in self.order]
            items.sort(key=lambda item: self.order[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.began = time.process_time()  # others may be at work on the machine
        if self.measured:
            self.measured.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = time.process_time() - self.began
        if report.outcome != "passed":
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"collection of {report.nodeid}")


def path_of_test(tree: Path, name: str) -> str:
    """Return where a test file lies in the tree, and the test of it that `name` may add."""
    file, colons, test = name.partition("::")
    (found,) = (tree / "tests").rglob(file)
    return f"{found.relative_to(tree)}{colons}{test}"


def copy_tree(tree: Path) -> None:
    """Copy the files that git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)


def in_a_fork(tree: Path, work: Callable[[], dict], seconds: float | None = None) -> dict | None:
    """Return what `work` does in a child that imports from `tree`; None if it dies.

    Args:
        seconds: processor time of the child; it dies after ten times this on the clock.
    """
    answer = tree.parent / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree / "workflow")
        sys.path[0] = str(tree / "workflow")
        sys.dont_write_bytecode = True  # of two mutants within a second, the first would be read
        quiet = os.open(tree.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            answer.write_text(json.dumps(work()))
        finally:
            os._exit(0)
    deadline = time.monotonic() + 10 * (seconds or 1e6)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.02)
    return json.loads(answer.read_text()) if answer.exists() else None


def run_tests(tree: Path, tests: Tests, files: list[str], *options: str) -> int:
    """Call pytest in this process, on files of the tree, with separate folders."""
    folder = f"--basetemp={tree.parent / 'tmp'}"
    own = ["-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:randomly", folder]
    return int(pytest.main([*own, *options, *files], plugins=[tests]))


def record(tree: Path, files: list[str]) -> dict:
    """Return the seconds of all tests that pass, and the lines of each file that they execute."""
    import coverage  # of the extra `mutants`, as cosmic-ray

    include = [str(tree / folder / "*") for folder in FOLDERS]
    measured = coverage.Coverage(data_file=None, include=include, config_file=False)
    tests = Tests(measured=measured)
    measured.start()
    run_tests(tree, tests, files)
    measured.stop()
    data = measured.get_data()
    good = {name: round(s, 3) for name, s in tests.seconds.items() if name not in tests.failed}
    lines = {
        str(Path(file).relative_to(tree)): {
            str(line): sorted(set(names) & good.keys())
            for line, names in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    return {"seconds": good, "failed": tests.failed, "lines": lines}


def merged(old: dict, new: dict) -> dict:
    """Return old notes with those of the new tests, which replace their old ones."""
    again = new["seconds"].keys() | set(new["failed"])
    lines: dict[str, dict[str, list[str]]] = {}
    for notes, stale in ((old, again), (new, set())):
        for file, tests in notes["lines"].items():
            for line, names in tests.items():
                known = lines.setdefault(file, {}).setdefault(line, [])
                known += [name for name in names if name not in stale]
    failed = [name for name in old["failed"] if name not in again] + new["failed"]
    return {"seconds": old["seconds"] | new["seconds"], "failed": failed, "lines": lines}


def functions(code: str) -> list[tuple[int, int]]:
    """Return first and last line of all functions' bodies, inner ones last."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)]
    return [(node.body[0].lineno, node.body[-1].end_lineno or 0) for node in nodes]


def concerned(notes: dict, file: str, code: str, line: int) -> list[str]:
    """Return the tests that enter the function of a line, up to the budget.

    Half of it is for the quickest, half for one case of every test, then a second and so on.
    """
    around = [(first, last) for first, last in functions(code) if first <= line <= last]
    first, last = around[-1] if around else (1, len(code.splitlines()))
    lines = notes["lines"].get(file, {}).items()
    names = {name for number, tests in lines if first <= int(number) <= last for name in tests}
    seconds, cases = notes["seconds"], Counter[str]()
    quick = sorted(names, key=seconds.__getitem__)
    varied = []
    for name in quick:
        test = name.split("[")[0]
        varied.append((cases[test], seconds[name], name))
        cases[test] += 1
    chosen: dict[str, None] = {}
    for share, order in ((0.5, quick), (1.0, [name for *_, name in sorted(varied)])):
        spent = sum(seconds[name] for name in chosen)
        for name in order:
            spent += seconds[name] if name not in chosen else 0
            if spent > share * BUDGET:
                break
            chosen[name] = None
    return list(chosen)


def annotations(code: str) -> set[tuple[int, int]]:
    """Return line and column of every node of an annotation: no test can notice a mutant there."""
    places = set()
    for node in ast.walk(ast.parse(code)):
        for field in ("annotation", "returns"):
            value = getattr(node, field, None)
            for part in ast.walk(value) if value is not None else ():
                if isinstance(part, ast.expr):
                    end = (part.end_lineno or 0, part.end_col_offset or 0)
                    start = (part.lineno, part.col_offset)
                    places |= {(start[0], c) for c in range(start[1], end[1] + 1)}
    return places


def mutants(code: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Return operator and occurrence of every mutant, by line and column."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    places: dict[tuple[int, int], list[tuple[str, int]]] = {}
    provider, ignored = OperatorProvider(), annotations(code)
    nodes = list(ast_nodes(get_ast(code)))
    for name in provider:
        if provider[name].arguments():  # of variables that someone must name
            continue
        operator = provider[name]()
        found = (place[0] for node in nodes for place in operator.mutation_positions(node))
        for occurrence, place in enumerate(found):
            if place not in ignored:
                places.setdefault(place, []).append((name, occurrence))
    return places


def draw(code: str, count: int, rng: random.Random) -> Iterator[tuple[int, str, str]]:
    """Yield line, operator and code of at most `count` mutants in different places."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    places = mutants(code)
    for place in rng.sample(sorted(places), len(places)):
        if not count:
            return
        name, occurrence = rng.choice(places[place])
        mutant = mutate_code(code, OperatorProvider()[name](), occurrence)
        try:
            ast.parse(mutant or "")
        except SyntaxError:
            continue
        if mutant and mutant != code:
            count -= 1
            yield place[0], name, mutant


def try_mutant(tree: Path, notes: dict, file: str, line: int, mutant: str) -> dict:
    """Return how a mutant ended: survived, killed by which test, or untested."""
    path, code = tree / file, (tree / file).read_text()
    names = concerned(notes, file, code, line)
    if not names:
        return {"status": "untested", "tests": 0}
    tests, limit = Tests(names), 20 + 4 * sum(notes["seconds"][name] for name in names)

    def work() -> dict:
        return {
            "status": run_tests(
                tree, tests, sorted({name.split("::")[0] for name in names}), "--exitfirst"
            ),
            "by": tests.failed,
        }

    try:
        path.write_text(mutant)
        end = in_a_fork(tree, work, limit) or {"status": 1, "by": ["time"]}
    finally:
        path.write_text(code)
    status = "survived" if end["status"] == 0 else "killed"
    return {"status": status, "tests": len(names), "by": end["by"][:1]}


def again(tree: Path, notes: dict, results: Path) -> None:
    """Try the mutants of `results` that were not killed once more, and write the lines anew."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    for row in rows:
        if row["status"] == "killed":
            continue
        code = (tree / row["file"]).read_text()
        old, new = (
            [line[1:] for line in row["diff"].splitlines()[3:] if line[0] == sign] for sign in "-+"
        )
        first = int(row["diff"].splitlines()[2].split()[1].split(",")[0][1:])
        lines = code.splitlines()
        assert lines[first - 1 : first - 1 + len(old)] == old, f"{row['file']} has changed"
        lines[first - 1 : first - 1 + len(old)] = new
        row |= try_mutant(tree, notes, row["file"], row["line"], "\n".join(lines) + "\n")
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(tree: Path, notes: dict, results: Path, options: argparse.Namespace) -> None:
    """Try a sample of mutants of every file, a line of JSON each; continue a run that was ended."""
    lines = results.read_text().splitlines() if results.exists() else []
    done = {json.loads(line)["diff"] for line in lines}
    for earlier in options.other_than:
        done |= {json.loads(line)["diff"] for line in earlier.read_text().splitlines()}
    files = [path for folder in FOLDERS for path in sorted((tree / folder).rglob("*.py"))]
    sample = []
    for path in files:
        file, code = str(path.relative_to(tree)), path.read_text()
        if "_template" in file or (options.only and not any(o in file for o in options.only)):
            continue
        rng = random.Random(f"{options.seed} {file}")
        for line, operator, mutant in draw(code, options.count, rng):
            old, new = code.splitlines(), mutant.splitlines()
            diff = "\n".join(difflib.unified_diff(old, new, file, n=0, lineterm=""))
            sample.append((file, line, operator, mutant, diff))
    random.Random(options.seed).shuffle(sample)  # so that a run that is ended is a sample too
    for file, line, operator, mutant, diff in sample:
        if diff in done:
            continue
        began = time.monotonic()
        end = try_mutant(tree, notes, file, line, mutant)
        row = {"file": file, "line": line, "operator": operator, **end, "diff": diff}
        row["seconds"] = round(time.monotonic() - began, 1)
        with results.open("a") as handle:
            handle.write(json.dumps(row) + "\n")


def named(tree: Path) -> list[str]:
    """Return the mutants of NAMED that their test lets live, or whose place is gone."""
    alive = []
    for file, old, new, test in NAMED:
        path, code = tree / file, (tree / file).read_text()
        name = f"{file}: {new}"
        if code.count(old) != 1:
            alive.append(f"{name}: '{old}' is in it {code.count(old)} times")
            continue
        for mutant, dies in ((code, False), (code.replace(old, new), True)):
            path.write_text(mutant)
            status = in_a_fork(
                tree,
                lambda test=test: {"end": run_tests(tree, Tests(), [path_of_test(tree, test)])},
            )
            if (status != {"end": 0}) != dies:
                alive.append(f"{name}: {test} {'passes' if dies else 'fails without it'}")
        path.write_text(code)
    return alive


def score(results: list[Path]) -> None:
    """Print all mutants that were not killed, and the share of killed ones by folder."""
    rows = [json.loads(line) for path in results for line in path.read_text().splitlines()]
    for row in rows:
        if row["status"] != "killed":
            print(f"{row['status']} ({row['tests']} tests), {row['operator']}\n{row['diff']}\n")
    for folder in (*FOLDERS, ""):
        ends = Counter(row["status"] for row in rows if row["file"].startswith(folder))
        killed = ends["killed"] / max(1, ends.total())
        print(f"{folder or 'all':30} {ends['killed']} of {ends.total()} killed: {killed:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("record")
    sub.add_argument("notes", type=Path)
    sub.add_argument("files", nargs="*", help="names of tests/*.py; default: those of use")
    sub = commands.add_parser("run")
    sub.add_argument("notes", type=Path)
    sub.add_argument("results", type=Path)
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--count", type=int, default=4, help="mutants per file")
    sub.add_argument("--only", nargs="*", help="parts of the names of files")
    sub.add_argument("--other-than", nargs="*", type=Path, default=[], help="results to leave out")
    sub = commands.add_parser("again")
    sub.add_argument("notes", type=Path)
    sub.add_argument("results", type=Path)
    sub = commands.add_parser("score")
    sub.add_argument("results", type=Path, nargs="+")
    commands.add_parser("named")
    options = parser.parse_args()
    if options.command == "score":
        return score(options.results)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        if options.command == "named":
            alive = named(tree)
            sys.exit("\n".join(alive) or None)
        if options.command == "run":
            return run(tree, json.loads(options.notes.read_text()), options.results, options)
        if options.command == "again":
            return again(tree, json.loads(options.notes.read_text()), options.results)
        every = [path.name for path in sorted((tree / "tests").rglob("test_*.py"))]
        names = options.files or [name for name in every if name not in NOT_RECORDED]
        notes = in_a_fork(tree, lambda: record(tree, [path_of_test(tree, name) for name in names]))
        if notes is None:
            sys.exit("error: the recording died")
        if options.notes.exists():  # of other tests, or of these before they changed
            notes = merged(json.loads(options.notes.read_text()), notes)
        options.notes.write_text(json.dumps(notes))
        print(f"{len(notes['seconds'])} tests; left out, as they fail: {notes['failed']}")


if __name__ == "__main__":
    main()
