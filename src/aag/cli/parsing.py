"""Command-line options from settings dataclasses, with errors of one line."""

import ast
import contextlib
import inspect
import io
import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from aag.data.datasets import DATASETS
from aag.errors import AAGError, unknown_name
from aag.settings import describe_type, option

T = TypeVar("T")
SHORT_NAMES = {"--from": "--start-from", "--with": "--classifier"}  # Python reserves these words
ALIASES = {"--norm-images": "--bn-group-size"} | SHORT_NAMES  # the first until version 0.3
METAVARS = {str: "STR", int: "INT", float: "FLOAT", Path: "PATH"}


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings below a dataclass's fields; where a subclass gives none, its parent's."""
    classes: list[Any] = [*reversed(cls.__mro__[:-1])]
    return {name: doc for each in classes for name, doc in _own_docs(each).items()}


@cache
def _own_docs(cls: Any) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):  # made in an interpreter
        return {}
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, doc in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
            docs[ast.unparse(field.target)] = " ".join(str(doc.value.value).split())
    return docs


def tyro_fields(cls: type, defaults: Any, leave_out: Sequence[str] = ()) -> list[Any]:
    """Return the fields of a settings class as (name, annotation for tyro, default); required ones without default."""
    docs, hints = field_docs(cls), get_type_hints(cls, include_extras=True)
    found: list[Any] = []
    for field in fields(cls):
        if field.name in leave_out:
            continue
        default = getattr(defaults, field.name, MISSING)
        given: dict[str, Any] = {"help": docs.get(field.name, "")}
        if short := [name for name, full in SHORT_NAMES.items() if full == option(field.name)]:
            given["aliases"] = short
        hint = hints[field.name]
        args = get_args(get_args(hint)[0] if hasattr(hint, "__metadata__") else hint)
        plain = [each for each in args if each is not type(None)]
        if type(None) in args:  # or tyro writes {None}|PATH
            inner = get_args(plain[0])[0] if hasattr(plain[0], "__metadata__") else plain[0]
            choices = get_args(inner) if get_origin(inner) is Literal else ()
            given["metavar"] = "{" + ",".join(choices) + "}" if choices else METAVARS.get(inner, "VALUE")
        if any(get_origin(each) is tuple for each in plain):  # or tyro writes FLOAT|{[FLOAT [FLOAT ...]]}
            given["metavar"] = f"{METAVARS[plain[0]]} [{METAVARS[plain[0]]} ...]"
        if default in (None, (), ""):
            given["help_behavior_hint"] = ""
        elif default is MISSING and Ellipsis in args:  # or tyro writes (default: )
            given["help_behavior_hint"] = "(required)"
        declared = (field.name, Annotated[hints[field.name], tyro.conf.arg(**given)])
        found.append(declared if default is MISSING else (*declared, default))
    return found


def parse(cls: type[T], command: str, arguments: Sequence[str]) -> T:
    """Parse the arguments of a command into its dataclass. A mistake raises an AAGError of one line."""
    options = make_dataclass(cls.__name__, tyro_fields(cls, cls), frozen=True)
    return cls(**vars(parse_sections(options, command, arguments, inspect.getdoc(cls) or "")))


def collect(cls: type[T], parsed: Any) -> T:
    """Build a settings dataclass from the fields of the same names of a parsed command or section."""
    return cls(**{field.name: getattr(parsed, field.name) for field in fields(cls)})  # type: ignore[arg-type]


def parse_sections(cls: type[T], command: str, arguments: Sequence[str], about: str) -> T:
    """Parse arguments into a dataclass whose fields are options or sections of them."""
    arguments = [_unalias(word) for word in arguments]
    known = option_types(cls)
    for word in arguments:
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name != "--help" and name not in known:
            raise unknown_name("option", name, known, f"aag {command} --help lists them")
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.PositionalRequiredArgs)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(cls, prog=f"aag {command}", args=arguments, config=config, description=about)
    except SystemExit as stop:
        if stop.code:
            raise AAGError(f"{_one_line(errors.getvalue(), known)}; see aag {command} --help") from None
        raise


def given_options(arguments: Sequence[str]) -> frozenset[str]:
    """Return the names of the options that a command line gives, as Python spells them."""
    names = (_unalias(word).partition("=")[0] for word in arguments if word.startswith("--"))
    return frozenset(name.removeprefix("--").removeprefix("no-").replace("-", "_") for name in names)


def _unalias(word: str) -> str:
    name, equals, value = word.partition("=")
    name = name.replace("_", "-")
    for old, new in ALIASES.items():
        if name in (old, old.replace("--", "--no-", 1)):
            return name.replace(old[2:], new[2:], 1) + equals + value
    return word


def option_types(cls: type) -> dict[str, Any]:
    """Return all option words of a nested dataclass, with their types."""
    found: dict[str, Any] = {}
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        hint = hints[field.name]
        inner = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        if hasattr(inner, "__dataclass_fields__"):
            found |= option_types(inner)
        elif not is_positional(field, hint):
            found[option(field.name)] = hint
            if inner is bool:
                found[option(f"no_{field.name}")] = hint
    return found


def is_positional(field: Field[Any], hint: Any) -> bool:
    """Return whether the value of a field is written without an option: always if it has no default."""
    is_required = field.default is MISSING and field.default_factory is MISSING
    return is_required or tyro.conf.Positional in get_args(hint)[1:]


def tidy_source(source: str) -> str:
    """Return one spelling of a path: photos for photos/ and ./photos. But ./sample stays, for sample is a data set."""
    tidy = os.path.normpath(source)
    return tidy if os.path.exists(os.path.expanduser(source)) and tidy not in DATASETS else source


def _one_line(box: str, known: dict[str, Any]) -> str:
    """Return the message of tyro's error box. Its frame is of dashes on a terminal without Unicode."""
    lines = [line.strip("│╭╮╰╯ \n") for line in box.splitlines()[1:]]
    rules = [number for number, line in enumerate(lines) if set(line) <= {"─", "-"}]
    start = 1 if rules[:1] == [0] else 0
    message = " ".join(lines[start : next((number for number in rules if number >= start), None)])
    value = re.search(r"'([^']*)'\W*$|invalid choice '([^']*)'", message)
    name = next((word for word in re.findall(r"--[\w-]+", message) if word in known), None)
    if name and value and "Missing" not in message:
        return f"{name} takes {describe_type(known[name])}, not {value[1] or value[2]!r}"
    if unexpected := re.match(r"Unrecognized options: (.*)", message):
        hint = "; name the images with --data" if "--data" in known else ""
        return f"unexpected argument {unexpected[1].rstrip('.')!r}{hint}"
    if name and "Missing" in message:
        return f"{name} needs a value: {describe_type(known[name])}"
    if missing := re.match(r"Missing from .*?: \S+ (.*?)\.? \(required\)", message):
        return f"an argument is missing: {missing[1]}"
    return message[:1].lower() + message[1:].rstrip(".") or "wrong arguments"
