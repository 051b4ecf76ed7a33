"""aag methods"""

import inspect
from dataclasses import dataclass, fields
from typing import Any

from aag.cli.output import Printer, print_rows
from aag.cli.parsing import field_docs, parse
from aag.methods import methods
from aag.methods.base import MethodSettings
from aag.settings import option


@dataclass(frozen=True)
class Methods:
    """List the methods, with their settings and references."""

    json: bool = False
    """Print JSON instead of text."""


def run(arguments: list[str]) -> int:
    options = parse(Methods, "methods", arguments)
    rows: list[dict[str, Any]] = []
    for name, cls in methods().items():
        module = inspect.getmodule(cls)
        about, reference, *_ = [" ".join(part.split()) for part in (module.__doc__ or "").split("\n\n")] + [""]
        docs, shared = field_docs(cls.settings_type), {field.name for field in fields(MethodSettings)}
        settings = [
            {"option": option(field), "about": text, "default": getattr(cls.settings_type(), field)}
            for field, text in docs.items()
            if field not in shared
        ]
        row: dict[str, Any] = {"method": name, "about": about, "reference": reference}
        rows.append({**row, "settings": settings})
    if options.json:
        print_rows(rows, as_json=True)
        return 0
    say = Printer()
    listed = {row["method"]: row["settings"] for row in rows}
    for row in rows:
        say(f"{row['method']}\n  {row['about']}\n  {row['reference']}")
        parent = _parent(row["method"])
        own = [setting for setting in row["settings"] if parent is None or setting not in listed[parent]]
        width = max((len(setting["option"]) for setting in own), default=0)
        for setting in own:
            default = "" if setting["default"] is None else f" (default: {setting['default']})"
            say(f"    {setting['option']:<{width}}  {setting['about']}{default}")
        if parent:
            say(f"    and the options of {parent}")
        say()
    say("A method of your own is one file: aag train --method FILE.py:CLASS; see docs/add-a-method.md")
    return 0


def _parent(name: str) -> str | None:
    """Return the method whose settings this method extends."""
    bases = methods()[name].settings_type.__mro__[1:]
    return next((other for other, cls in methods().items() if cls.settings_type in bases), None)
