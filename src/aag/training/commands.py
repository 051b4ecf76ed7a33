"""Write the commands that train and evaluate a run."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from aag.settings import option
from aag.training.api import Execution
from aag.training.recipes import choose_recipe, recipe_settings
from aag.training.settings import RunSettings


def train_options(settings: RunSettings, recipe: str, execution: Execution, given: Collection[str] = ()) -> list[str]:
    """Return the words after `aag train` that start exactly this run.

    Options that equal the recipe's are left out, unless they are `given`: for a folder, others would be chosen.
    """
    data, method = settings.data.source, settings.method
    words = {"data": data} if recipe == "auto" else {"data": data, "recipe": recipe}
    if choose_recipe(recipe, data, None)[1] != method:
        words["method"] = method
    base = recipe_settings(recipe, data, method).options()
    for name, value in settings.options().items():
        if value != base[name] or (name in given and value is not None and name not in ("data", "method")):
            words[name] = value
    usual = Execution.for_recipe(recipe, settings)
    for field in fields(Execution):
        if (value := getattr(execution, field.name)) != getattr(usual, field.name):
            words[field.name] = value
    return [word for option_words in spell_options(words) for word in option_words]


def train_command(settings: RunSettings, recipe: str, execution: Execution, given: Collection[str] = ()) -> str:
    """Return the shell command that starts exactly this run."""
    return shlex.join(["aag", "train", *train_options(settings, recipe, execution, given)])


def evaluate_command(folder: Path, execution: Execution, *more: str) -> str:
    """Return the shell command that evaluates a run with the device and data root of its training."""
    words = {"device": execution.device} if execution.device != Execution.device else {}
    if execution.data_root:
        words["data_root"] = str(execution.data_root)
    options = [word for option_words in spell_options(words) for word in option_words]
    return shlex.join(["aag", "evaluate", str(folder), *more, *options])


def spell_options(settings: Mapping[str, Any]) -> list[list[str]]:
    """Return the command-line words of each option: ["--lr", "0.1"], ["--no-flip"]."""
    return [
        [option(name if value else f"no_{name}")]
        if isinstance(value, bool)
        else [option(name), *map(str, value if isinstance(value, list | tuple) else (value,))]
        for name, value in settings.items()
    ]
