"""aag recipes"""

from aag.errors import unknown
from aag.training import recipes


def run(arguments: list[str]) -> int:
    if arguments and arguments[0] not in ("-h", "--help"):
        raise unknown("option of aag recipes", arguments[0], ["--help"])
    for name, (method, recipe) in recipes().items():
        chosen = f"--method {method}" if name == method else f"--recipe {name}"
        command = f"aag train --data {'sample' if name == 'demo' else 'cifar10'} {chosen}"
        print(f"{name}\n  {recipe.about}\n  {command}\n  {recipe.expect}\n")
    return 0
