"""Recipes: named settings to start from. A recipe only abbreviates settings; it does not identify a run."""

import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from aag.data.datasets import DATASETS
from aag.errors import AAGError, describe, unknown_name
from aag.methods import Recipe, load_method, methods
from aag.nets import NetworkSettings
from aag.settings import TrainSettings, option
from aag.training.settings import DataSettings, RunSettings

DEMO = Recipe(
    about="a narrow ResNet-18 on the bundled sample, for a CPU",
    expect="kNN from 24 to 40, in a minute on two cores",
    options={"width": 8, "epochs": 9, "batch_size": 32, "lr": 0.12},
    knn_every=3,
)


def recipes() -> dict[str, tuple[str, Recipe]]:
    """Return all recipes by name, each with the name of its method."""
    found = {name: (method, recipe) for method, cls in methods().items() for name, recipe in cls.recipes.items()}
    return {**found, "demo": ("aag", DEMO)}


def choose_recipe(recipe: str, data: str, method: str | None) -> tuple[str, str]:
    """Return the names of a recipe and its method. auto: demo on the bundled sample, else the method's first."""
    if not isinstance(recipe, str):
        raise AAGError(f"recipe must be a name such as paper, not {describe(recipe)}")
    if method and ":" in method:
        method = os.path.normpath(method)  # ./mine.py:Mine is mine.py:Mine
    if recipe == "auto":
        method = method or "aag"
        bundled = data in DATASETS and DATASETS[data].bundled
        return ("demo" if bundled else next(iter(load_method(method).recipes))), method
    known = recipes()
    if recipe in known:
        return recipe, method or known[recipe][0]
    if method and recipe in load_method(method).recipes:
        return recipe, method
    raise unknown_name("recipe", recipe, ["auto", *known])


def find_recipe(recipe: str, method: str) -> Recipe:
    """Return a recipe by name: the method's own, or another method's, whose training settings it then uses."""
    return load_method(method).recipes.get(recipe) or recipes()[recipe][1]


def recipe_settings(recipe: str = "auto", data: str = DataSettings.source, method: str | None = None) -> RunSettings:
    """Return a recipe's settings, with automatic values left to resolve."""
    recipe, method = choose_recipe(recipe, data, method)
    cls = load_method(method)
    method_default = next(iter(cls.recipes.values()))
    changes = dict(find_recipe(recipe, method).options)
    if recipe == "demo":
        changes = {**method_default.options, **changes, **method_default.demo}
    base = RunSettings(DataSettings(data), NetworkSettings(), method, cls.settings_type(), TrainSettings())
    return base.replace(**changes)


def check_unused(settings: RunSettings, recipe: str) -> None:
    """Raise if the user changed an option that has no effect with the other settings."""
    base, train = recipe_settings(recipe, settings.data.source, settings.method).train, settings.train
    if train.nesterov and not base.nesterov and train.optimizer != "sgd":
        raise AAGError(f"--nesterov has no effect with --optimizer {train.optimizer}; leave it out")
    for name in ("decay_at", "decay_by"):
        if getattr(train, name) != getattr(base, name) and train.schedule != "step":
            raise AAGError(f"{option(name)} has no effect with --schedule {train.schedule}; leave it out")


def run_name(
    settings: RunSettings,
    recipe: str = "auto",
    *,
    choosable: Collection[str] = (),
    given: Collection[str] = (),
    minutes: float | None = None,
) -> str:
    """Return a run's name: its data, network, recipe, seed, and each option that differs from the recipe's.

    Options that are `choosable`, for a folder or for --minutes, are in the name only if they are `given`. So the same
    command gives the same name, whatever is chosen.
    """
    chosen_recipe, _ = choose_recipe(recipe, settings.data.source, settings.method)
    base = recipe_settings(chosen_recipe, settings.data.source, settings.method).options()
    usual = recipes().get(chosen_recipe, (settings.method, None))[0]
    data = Path(settings.data.source).name.removesuffix(".npz") or "images"
    method = re.sub(r".*:", "", settings.method)
    if "network" in choosable:
        chosen_recipe, usual = "auto", "aag"
    recipe_part = chosen_recipe if settings.method == usual else f"{chosen_recipe}-{method}"
    network = (
        [settings.encoder.network.replace("/", "-")] if "network" in {*given} or "network" not in choosable else []
    )
    name = [data, *network, recipe_part, f"seed{settings.train.seed}"]
    for field, value in settings.options().items():
        is_unused = field in ("width", "depth") and getattr(settings.encoder.resolve(), field) is None
        is_named = field in given if field in choosable else value != base[field]
        if field not in ("data", "network", "method", "seed") and is_named and not is_unused:
            name.append(f"{field.replace('_', '-')}={list(value) if isinstance(value, tuple) else value}")
    if minutes:
        name.append(f"minutes={minutes:g}")
    whole = re.sub(r"[^\w.=+-]", "_", "-".join(name))
    if len(whole.encode()) <= 200:
        return whole
    # File systems take 255 bytes per name, and files are named after runs: a hash keeps long names unique.
    return whole.encode()[:190].decode(errors="ignore") + "-" + hashlib.sha256(whole.encode()).hexdigest()[:8]
