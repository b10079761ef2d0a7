"""Tell a plugin that was written for an earlier FedLoom the new name of what it uses."""

from collections.abc import Callable, Mapping


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a module, which says the new name for each of the old `names`.

    Such a name is an ImportError, which Python also shows for `from module import name`.
    """

    def new_name(name: str) -> object:
        if name in names:
            raise ImportError(f"{module}.{name} is now {names[name]}; use that")
        raise AttributeError(f"{module} has no '{name}'")

    return new_name
