"""The hooks of one run: the functions of its method, inside the functions of its wrappers."""

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedloom.hooks import hookspecs
from fedloom.hooks.discovery import PluginManifest
from fedloom.hooks.plugin_code import run_plugin_code

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.common.trees import Tree
    from fedloom.data.batch import Batch
    from fedloom.data.federation import Federation
    from fedloom.federated.state import PersonalStates
    from fedloom.federated.task import Answers, Cohort, History, Task, Update

HOOKS = tuple(name for name, f in vars(hookspecs).items() if hasattr(f, "fedloom_spec"))


@dataclass(frozen=True)
class _HookFunction:
    """A function of a plugin, and the names of its arguments. It may leave out some of a hook's."""

    function: Callable[..., object]
    arguments: tuple[str, ...]

    @classmethod
    def from_function(cls, function: Callable[..., object]) -> "_HookFunction":
        """Return the function with the names of its arguments."""
        return cls(function, tuple(inspect.signature(function).parameters))

    def __call__(self, given: dict[str, object]) -> Any:
        """Call the function with those of the given arguments that it takes."""
        return self.function(**{name: given[name] for name in self.arguments})


def _marked_functions(module: object) -> dict[str, _HookFunction]:
    """Return the functions of a module that are marked as hooks, by name."""
    found = {}
    for name in HOOKS:
        function: Any = getattr(module, name, None)
        if hasattr(function, "fedloom_impl"):
            found[name] = _HookFunction.from_function(function)
    return found


class Hooks:
    """The hooks of one run, as methods with keyword arguments.

    `hooks.predict(task=..., received=..., clients=..., batch=...)` runs:

    1. The code before `yield` of each wrapper that has the hook, from the outermost wrapper to the
       innermost.
    2. The method's function. If it is missing or returns None, the default of hooks/hookspecs.py
       runs. (A method's `aggregate` that returns None has no default.)
    3. The code after `yield` of each wrapper, from the innermost wrapper to the outermost.

    The first wrapper is the innermost. Only for `receive` and `deliver`, the last wrapper is the
    innermost, because it unpacks first. `run_plugin_code` says what becomes of exceptions.
    """

    def __init__(
        self,
        method: ModuleType,
        wrappers: Sequence[ModuleType] = (),
        plugins: Sequence[PluginManifest] = (),
    ):
        """Take the modules of the method and of its wrappers, and all manifests (for errors)."""
        self._plugins = tuple(plugins)

        # the method's functions, and the defaults that stand in for them
        own = _marked_functions(method)
        defaults = _marked_functions(hookspecs)
        # an `aggregate` that lacks its `return` must not be replaced by the default
        if "aggregate" in own:
            del defaults["aggregate"]

        # for each hook: functions, of which the first result that is not None counts, and wrappers
        self._functions: dict[str, list[_HookFunction]] = {}
        self._wrappers: dict[str, list[_HookFunction]] = {}
        wrapper_functions = [_marked_functions(wrapper) for wrapper in wrappers]
        for name in HOOKS:
            self._functions[name] = [each[name] for each in (own, defaults) if name in each]
            self._wrappers[name] = [each[name] for each in wrapper_functions if name in each]
        for name in hookspecs.UNPACKING:
            self._wrappers[name].reverse()

    def takes(self, hook: str, argument: str) -> bool:
        """Return True if any function for `hook` takes this argument; hooks may leave some out."""
        functions = self._functions[hook] + self._wrappers[hook]
        return any(argument in each.arguments for each in functions)

    def _call(self, hook: str, **given: object) -> Any:
        """Call a hook with all of its arguments."""
        return run_plugin_code(
            lambda: self._wrapped(hook, self._wrappers[hook], given), self._plugins, hook, given
        )

    def _wrapped(
        self, hook: str, wrappers: list[_HookFunction], given: dict[str, object]
    ) -> object:
        """Call a hook inside of these wrappers; the last one is the outermost."""
        if not wrappers:
            return self._first_result(hook, given)
        *inner, outermost = wrappers

        # run the outermost wrapper up to its `yield`
        generator: Generator[None, object, object] = outermost(given)
        try:
            next(generator)
        except StopIteration:
            raise RuntimeError(
                f"the wrapper's hook '{hook}' must yield exactly once, but it does not yield; add "
                "`result = yield`"
            ) from None

        # run what it wraps, and then its rest: `yield` gives it the result, or raises the exception
        try:
            result = self._wrapped(hook, inner, given)
        except BaseException as error:
            return _finish(partial(generator.throw, error), generator, hook)
        return _finish(partial(generator.send, result), generator, hook)

    def _first_result(self, hook: str, given: dict[str, object]) -> object:
        """Return the method's result, or else the default's; None if both return None."""
        for function in self._functions[hook]:
            result = function(given)
            if result is not None:
                return result
        return None

    # ---- the hooks, which hooks/hookspecs.py describes ---------------------------------------

    def init_server(self, *, task: "Task") -> "Tree":
        return self._call("init_server", task=task)

    def init_client(self, *, task: "Task", client: int) -> "Tree":
        return self._call("init_client", task=task, client=client)

    def unseen_client_state(
        self, *, task: "Task", client: int, states: "PersonalStates", received: "Tree"
    ) -> "Tree | None":
        return self._call(
            "unseen_client_state", task=task, client=client, states=states, received=received
        )

    def available_clients(self, *, task: "Task") -> list[int]:
        return self._call("available_clients", task=task)

    def select_clients(
        self, *, task: "Task", available: list[int], history: "History"
    ) -> list[int]:
        return self._call("select_clients", task=task, available=available, history=history)

    def local_work(self, *, task: "Task", client: int) -> float:
        return self._call("local_work", task=task, client=client)

    def attackers(self, *, task: "Task") -> list[int]:
        return self._call("attackers", task=task)

    def training_data(self, *, task: "Task") -> "Federation":
        return self._call("training_data", task=task)

    def triggered(self, *, task: "Task") -> "Federation | None":
        return self._call("triggered", task=task)

    def download(self, *, task: "Task", server: "Tree", client: int) -> "Tree":
        return self._call("download", task=task, server=server, client=client)

    def deliver(self, *, task: "Task", sent: "Tree", client: int) -> "Tree":
        return self._call("deliver", task=task, sent=sent, client=client)

    def client_update(self, *, task: "Task", received: "Tree", clients: "Cohort") -> "list[Update]":
        return self._call("client_update", task=task, received=received, clients=clients)

    def training_offsets(self, *, task: "Task", clients: "Cohort") -> "Tensor | None":
        return self._call("training_offsets", task=task, clients=clients)

    def answer_offsets(self, *, task: "Task", clients: "Cohort") -> "Tensor | None":
        return self._call("answer_offsets", task=task, clients=clients)

    def receive(self, *, task: "Task", server: "Tree", updates: "list[Update]") -> "list[Update]":
        return self._call("receive", task=task, server=server, updates=updates)

    def aggregate(self, *, task: "Task", server: "Tree", updates: "list[Update]") -> "Tree":
        return self._call("aggregate", task=task, server=server, updates=updates)

    def personalize(self, *, task: "Task", received: "Tree", clients: "Cohort") -> "Tree | None":
        return self._call("personalize", task=task, received=received, clients=clients)

    def predict(
        self, *, task: "Task", received: "Tree", clients: "Cohort", batch: "Batch"
    ) -> "Tensor | None":
        return self._call("predict", task=task, received=received, clients=clients, batch=batch)

    def artefact(
        self,
        *,
        task: "Task",
        server: "Tree",
        cohorts: "Iterator[tuple[Tree, Cohort, Batch]]",
        name: str,
    ) -> dict[str, list]:
        return self._call("artefact", task=task, server=server, cohorts=cohorts, name=name)

    def audit_table(self, *, task: "Task", answers: "Answers", name: str) -> dict[str, list] | None:
        return self._call("audit_table", task=task, answers=answers, name=name)


def _finish(
    resume: Callable[[], object], generator: Generator[None, object, object], hook: str
) -> object:
    """Run a wrapper's hook from its `yield` to its end, and return its result.

    Raises:
        RuntimeError: the hook yields a second time.
    """
    try:
        resume()
    except StopIteration as end:
        return end.value
    generator.close()
    raise RuntimeError(
        f"the wrapper's hook '{hook}' must yield exactly once, but it yields a second time; remove "
        "the second `yield`"
    )
