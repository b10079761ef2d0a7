"""`fedloom <command>`: the stages that the rules call, and commands for people."""

import argparse
import ast
import errno
import importlib
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

from fedloom.commands import config_schema, data, describe, doctor, plan
from fedloom.common.errors import FedLoomError
from fedloom.common.logs import log_to
from fedloom.study.jobs import from_json

log = logging.getLogger("fedloom")

# errors of files that a person can mend: a full disk, no permission, a file in place of a folder
MENDABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),
}

STAGES = sorted((Path(__file__).parents[1] / "stages").glob("[a-z]*.py"))


def stage(args: argparse.Namespace) -> None:
    """Run a stage on its job."""
    module = importlib.import_module(f"fedloom.stages.{args.command}")
    job = from_json(args.job, get_type_hints(module.run)["job"])
    started = time.perf_counter()
    module.run(job, args.threads)
    used = resource.getrusage(resource.RUSAGE_SELF)
    log.debug(
        "took %.1f s (%.1f s of processor time), and %.0f MB of memory at most",
        time.perf_counter() - started,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1024,
    )


def communication(args: argparse.Namespace) -> None:
    """Print the floats that a method sends one client in one round, by kind; needs no weights."""
    from fedloom.commands.downlink import downlink_floats

    counts = downlink_floats(args.method, args.backbone, args.classes, args.options)
    for name, count in [*sorted(counts.items()), ("total", sum(counts.values()))]:
        print(f"{name:<16}{count:>12,}")


def check(args: argparse.Namespace) -> None:
    """Hold a method to the contract: yours, or every one."""
    from fedloom.common.device import prepare_torch
    from fedloom.contract import driver
    from fedloom.hooks import manifest

    prepare_torch(args.threads)
    known = manifest.discover()
    for name in [args.method] if args.method else sorted(known.keys() | known.broken.keys()):
        done = driver.check(manifest.find(name), list(known.values()))
        log.info("%s keeps the contract (%s)", name, done)


def methods(args: argparse.Namespace) -> None:
    """Print every method in a line, or all facts of one."""
    print(describe.method(args.name) if args.name else describe.methods())


def datasets(_: argparse.Namespace) -> None:
    """Print the recipes and sources of datasets and the schemes of partitions, with their keys."""
    print(describe.datasets())


def studies(_: argparse.Namespace) -> None:
    """Print the studies that ship, with what each shows."""
    print(describe.studies())


def schema(_: argparse.Namespace) -> None:
    """Print the keys of the config as JSON Schema, by which an editor completes and checks them."""
    print(json.dumps(config_schema.config_schema(), indent=2, ensure_ascii=False))


def _positive(text: str) -> int:
    """Return a positive integer; argparse makes one line of its error."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got '{text}'")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Build a subcommand per stage and per command for people."""
    top = argparse.ArgumentParser(prog="fedloom", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command", dest="command")

    def add(function: Callable, name: str, doc: str | None) -> argparse.ArgumentParser:
        about = (doc or "").splitlines()[0]
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(function=function)
        return sub

    people = (methods, datasets, studies, schema, check, communication)
    subs = {function: add(function, function.__name__, function.__doc__) for function in people}
    subs[methods].add_argument("name", nargs="?", help="a method")
    subs[check].add_argument("--method", help="name of a method; default: every one")
    floats = subs[communication]
    floats.add_argument("--method", required=True, help="name of a method")
    floats.add_argument("--backbone", required=True, help="a model of timm, or of open_clip")
    floats.add_argument("--classes", type=_positive, required=True, help="number of classes")
    floats.add_argument("--options", type=json.loads, default={}, help="the method's, as JSON")
    for module in (data, plan, doctor):
        module.add_to(commands)
    jobs = [add(stage, f.stem, ast.get_docstring(ast.parse(f.read_text()))) for f in STAGES]
    for sub in jobs:
        sub.add_argument("--job", required=True, help="canonical JSON, as the rule sends it")
        sub.add_argument("--log", type=Path, help="also write the log to this file")
    for sub in (subs[check], *jobs):
        sub.add_argument("--threads", type=_positive, default=1, help="of torch")
    return top


def main() -> None:
    """Run one command; an error that a person can mend is one line and no traceback."""
    args, out = parser().parse_args(), sys.stdout
    try:
        log_to(getattr(args, "log", None))
        args.function(args)
        if out is not None and not out.closed:  # a plugin may replace it, or close it
            out.flush()
    except KeyboardInterrupt:
        log.error("interrupted")
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # as in `fedloom methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except FedLoomError as error:
        log.error("error: %s", error)
        sys.exit(error.status)
    except OSError as error:
        if error.errno not in MENDABLE or error.filename is None:
            raise
        log.debug("", exc_info=error)
        log.error("error: %s: %s", error.filename, error.strerror)
        sys.exit(2)
