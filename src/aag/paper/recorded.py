"""The command-line options of records: the nearest recipe, and the options that differ from it."""

from collections.abc import Iterator
from typing import Any

from aag.errors import AAGError
from aag.paper.experiments import Experiment
from aag.paper.results import Result, Results
from aag.training import RunSettings, recipe_settings

AUTOMATIC_OPTIONS = ("width",)  # besides options whose value is None or auto: it follows the network


def recorded_experiment(result: Result) -> Experiment | None:
    """Return the run of a record as the options of its nearest recipe. None: settings of another version."""
    try:
        settings = RunSettings.from_json(result.record["settings"])
        found = [_from_recipe(recipe, settings) for recipe in (*settings.method_type.recipes, "demo")]
        return min(found, key=lambda experiment: len(changed_options(experiment)))
    except AAGError:
        return None


def recorded_experiments(results: Results) -> Iterator[tuple[Result, Experiment]]:
    for result in results.all:
        if experiment := recorded_experiment(result):
            yield result, experiment


def changed_options(experiment: Experiment) -> dict[str, Any]:
    """Return the options that differ from the recipe's, without epochs and seed."""
    settings = experiment.settings
    base = recipe_settings(experiment.recipe, settings.data.source, settings.method).options()
    return {
        name: value
        for name, value in settings.options().items()
        if value != base[name] and name not in ("epochs", "seed")
    }


def _from_recipe(recipe: str, settings: RunSettings) -> Experiment:
    """Return the settings as options of a recipe, without automatic values that resolve to the same."""
    base, wanted = recipe_settings(recipe, settings.data.source, settings.method), settings.options()
    usual = base.options()
    automatic = {name for name, value in usual.items() if value in (None, "auto") or name in AUTOMATIC_OPTIONS}
    changed = {name: value for name, value in wanted.items() if name not in automatic and value != usual[name]}
    written = base.replace(**changed)
    resolved = written.resolve(settings.train.precision).options()
    rest = {name: wanted[name] for name in automatic if wanted[name] != resolved[name]}
    return Experiment(written.replace(**rest), recipe)
