"""AAG and its rivals, one file each: settings, recipes, augmentations, loss and state.

A `Method` with a `name` in any file of this package is registered automatically. `load_method("my_method.py:MyMethod")`
loads a class from a user's own file.
"""

import importlib.util
import inspect
import os
import pkgutil
import shlex
import sys
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from aag.errors import AAGError, describe, unknown_name
from aag.methods.base import (
    BasicPreset,
    Embeddings,
    Extract,
    Method,
    MethodContext,
    MethodSettings,
    MultiViewSettings,
    Recipe,
    StepOutput,
)

__all__ = [
    "BasicPreset", "Embeddings", "Extract", "Method", "MethodContext", "MethodSettings", "MultiViewSettings", "Recipe",
    "StepOutput", "load_method", "methods", "register_method",
]  # fmt: skip


@cache
def methods() -> dict[str, type[Method]]:
    """Return the methods of this package by name, AAG first."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        for cls in vars(import_module(f"{__name__}.{module.name}")).values():
            if inspect.isclass(cls) and issubclass(cls, Method) and "name" in vars(cls):
                found[cls.name] = cls
    return dict(sorted(found.items(), key=lambda item: (item[0] != "aag", item[0])))


def load_method(name: str, *, run_file: bool = True) -> type[Method]:
    """Return the method of this name, or the class of `path/to/file.py:Class`.

    run_file: if False, raise for a file that this process has not imported yet. Use it for names that were read from a
    run folder, which may point to untrusted code.
    """
    if not isinstance(name, str) or "\0" in name:
        raise AAGError(f"a method is a name or FILE.py:CLASS, not {describe(name)}")
    if name in _registered:
        return _registered[name]
    path, colon, class_name = name.rpartition(":")
    if not colon:
        if name.endswith(".py"):
            raise AAGError(f"--method {name} names a file; add its class, as in {name}:MyMethod")
        if name not in methods():
            raise unknown_name("method", name, methods(), "or FILE.py:CLASS for a method of your own")
        return methods()[name]
    file = Path(os.path.expanduser(path))  # pathlib raises for an unknown user, and for long names
    if not run_file and not _is_loaded(file):
        raise AAGError(
            f"the run's method is a Python file, {name}, and aag runs no file that a run folder names; "
            f"if you trust it, add --method {shlex.quote(name)}"
        )
    module = _load_file(file)
    cls = getattr(module, class_name, None)
    if not (inspect.isclass(cls) and issubclass(cls, Method)):
        classes = {each: value for each, value in vars(module).items() if inspect.isclass(value)}
        known = [each for each, value in classes.items() if issubclass(value, Method) and value is not Method]
        raise AAGError(f"{path} defines no Method named {class_name!r}; it has {', '.join(known) or 'none'}")
    return cls


def register_method(cls: type[Method]) -> str:
    """Register a method class by its name in this process, and return the name."""
    if not (inspect.isclass(cls) and issubclass(cls, Method)):
        raise AAGError(f"a method is a name, FILE.py:CLASS, or a subclass of Method, not {cls!r:.60}")
    own = methods().get(cls.name)
    if own is not None and own is not cls:
        raise AAGError(
            f"{cls.__name__} has the name of a method of aag, {cls.name!r}, so their runs would be mixed up; "
            f'give it another one: name = "my-{cls.name}"'
        )
    if own is None:
        _registered[cls.name] = cls
    return cls.name


_registered: dict[str, type[Method]] = {}


def _module_name(path: Path) -> str:
    """Return a name of its own for each file: two files of one name are two modules."""
    return f"aag_user_{path.stem}_{sha256(os.path.realpath(path).encode()).hexdigest()[:8]}"


def _is_loaded(path: Path) -> bool:
    return getattr(sys.modules.get(_module_name(path)), "__file__", None) == os.path.realpath(path)


def _load_file(path: Path) -> object:
    """Import a Python file by its path, once."""
    if not os.path.isfile(path):
        raise AAGError(f"no such file: {path}; --method takes a name or FILE.py:CLASS")
    name = _module_name(path)
    if _is_loaded(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise AAGError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    return module
