"""Import the names of a package on first use, so that importing the package is fast."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, str], modules: tuple[str, ...] = ()) -> Callable[[str], Any]:
    """Return a package's `__getattr__`. names: the module of each name. modules: submodules of the package."""

    def find(name: str) -> Any:
        if name in names:
            return getattr(import_module(f"{package}.{names[name]}"), name)
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
