"""aag recipes"""

from dataclasses import dataclass
from typing import Any

from aag.cli.output import print_rows
from aag.cli.parsing import parse
from aag.training import recipes


@dataclass(frozen=True)
class Recipes:
    """List the recipes (named settings), with what to expect of each."""

    json: bool = False
    """Print JSON instead of text."""


def run(arguments: list[str]) -> int:
    options = parse(Recipes, "recipes", arguments)
    rows: list[dict[str, Any]] = []
    for name, (method, recipe) in recipes().items():
        chosen = f"--method {method}" if name == method else f"--recipe {name}"
        command = f"aag train --data {'sample' if name == 'demo' else 'cifar10'} {chosen}"
        row: dict[str, Any] = {"recipe": name, "about": recipe.about, "command": command, "expect": recipe.expect}
        rows.append({**row, "settings": dict(recipe.options)})
    if options.json:
        print_rows(rows, as_json=True)
        return 0
    for row in rows:
        print(f"{row['recipe']}\n  {row['about']}\n  {row['command']}\n  {row['expect']}\n")
    return 0
