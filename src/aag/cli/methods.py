"""aag methods"""

import inspect

from aag.cli.output import Printer
from aag.cli.parsing import field_docs
from aag.errors import unknown
from aag.methods import methods
from aag.methods.base import MethodSettings
from aag.settings import option


def run(arguments: list[str]) -> int:
    if arguments and arguments[0] not in ("-h", "--help"):
        raise unknown("option of aag methods", arguments[0], ["--help"])
    say = Printer()
    for name, kind in methods().items():
        module = inspect.getmodule(kind)
        about, *reference = [line for line in (module.__doc__ or "").splitlines() if line.strip()]
        say(f"{name}\n  {about}\n  {reference[0].strip() if reference else ''}")
        for field, text in field_docs(kind.settings_type).items():
            if field not in field_docs(MethodSettings):
                say(f"    {option(field):<18} {text} (default: {getattr(kind.settings_type(), field)})")
        say()
    say("A method of your own is one file: aag train --method FILE.py:CLASS; see docs/add-a-method.md")
    return 0
