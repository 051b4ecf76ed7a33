"""The settings that a sweep compares: built from values, checked before anything runs."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aag.data.loading import source_name
from aag.errors import AAGError
from aag.settings import option
from aag.sweeps.grid import Values
from aag.training import Execution, RunSettings, choose_recipe, recipe_settings
from aag.training.defaults import folder_options, has_image_files, with_epochs
from aag.training.recipes import check_unused, run_name

NAME_BYTES = 100  # of a sweep's folder, at most
IMAGE_OPTIONS = ("data", "holdout", "labels", "start_early")  # change what is measured


@dataclass(frozen=True)
class Candidate:
    """One setting to try."""

    values: Values  # of the swept options
    settings: RunSettings  # without a holdout; the first seed's
    recipe: str
    given: frozenset[str]  # names of the options that the user chose; for a folder, others are chosen
    error: str = ""  # why these values cannot be combined

    @property
    def is_for_folder(self) -> bool:
        """Whether options that are not given are chosen for a folder."""
        return self.recipe == "auto" and has_image_files(self.settings.data.source)

    def run_settings(self, epochs: int | None, seed: int) -> RunSettings:
        """Return the settings of one run. epochs: those of a rung; None keeps them."""
        settings = self.settings if epochs is None else with_epochs(self.settings, epochs)
        return settings.replace(seed=seed)

    def folder_name(self, settings: RunSettings) -> str:
        """Return the name of the folder of a run with these settings of this candidate."""
        choosable = folder_options(settings) if self.is_for_folder else ()
        return run_name(settings, self.recipe, choosable=choosable, given=self.given)


def default_folder(candidate: Candidate, names: Iterable[str]) -> Path:
    """Name the folder of a sweep after its data, its recipe, its epochs and the names of the swept options.

    candidate: the first one. The name ends with a hash where other options differ from the recipe's, or where it is
    cut. Adding values to the grid does not change it.
    """
    source, method = candidate.settings.data.source, candidate.settings.method
    recipe, _ = choose_recipe(candidate.recipe, source, method)
    words = [source_name(source)]
    if "recipe" not in candidate.values:
        words.append("auto" if candidate.is_for_folder else recipe)
    if "method" not in candidate.values and choose_recipe(candidate.recipe, source, None)[1] != method:
        words.append(method.rpartition(":")[2])
    options = _shared_options(candidate)
    if "epochs" in options:
        words.append(f"epochs={options.pop('epochs')}")
    name = re.sub(r"[^\w.=+-]", "_", "-".join([*words, *names]))
    if options or len(name.encode()) > NAME_BYTES:
        content = json.dumps([name, options], sort_keys=True, default=str).encode()
        short = name.encode()[: NAME_BYTES - 9].decode(errors="ignore")
        name = f"{short}-{hashlib.sha256(content).hexdigest()[:8]}"
    return Path("sweeps") / name


def _shared_options(candidate: Candidate) -> dict[str, Any]:
    """Return the options that all runs share and that differ from the recipe's.

    Where options are chosen for a folder, or where the recipe itself is swept, return all that the user gave.
    """
    settings = candidate.settings
    base = recipe_settings(candidate.recipe, settings.data.source, settings.method).options()
    has_fixed_base = not candidate.is_for_folder and candidate.values.keys().isdisjoint(("recipe", "method"))
    return {
        name: value
        for name, value in settings.options().items()
        if name not in ("data", "method", *candidate.values)
        and (value != base[name] if has_fixed_base else name in candidate.given)
    }


def check_names(names: Iterable[str]) -> None:
    """Raise for an option that cannot be swept."""
    shared = {field.name for field in fields(Execution)} | {"report"}
    for name in names:
        if name in IMAGE_OPTIONS:
            raise AAGError(f"{name} cannot be swept: it changes the images that are evaluated; leave it out")
        if name == "seed":
            raise AAGError("seed cannot be swept: use --seeds N for N runs of each setting")
        if name in shared:
            raise AAGError(f"{name} cannot be swept: it does not change the result; give {option(name)} once")


def make_candidate(values: Values, data: str, options: Mapping[str, Any]) -> Candidate:
    """Return the settings of values that are swept and options that all share, as `aag.train` takes them."""
    chosen = {**options, **values}
    recipe, method = chosen.pop("recipe", "auto"), chosen.pop("method", None)
    settings = recipe_settings(recipe, data, method).replace(**chosen)
    return Candidate(values, settings, recipe, frozenset(chosen))


def build_candidates(all_values: Sequence[Values], build: Callable[[Values], Candidate]) -> list[Candidate]:
    """Build and check every setting; those that equal an earlier one are left out.

    A value that no combination accepts is refused. Values that only some combinations accept become candidates with an
    error.
    """
    found: list[Candidate] = []
    errors: dict[int, AAGError] = {}
    for position, values in enumerate(all_values):
        try:
            candidate = build(values)
            check_unused(candidate.settings, candidate.recipe)
            candidate.settings.resolve()
        except AAGError as error:
            errors[position] = error
            continue
        if all(candidate.settings != other.settings for other in found):
            found.append(candidate)
    for position, refusal in errors.items():
        for name, value in all_values[position].items():
            using = [number for number, values in enumerate(all_values) if values.get(name) == value]
            if all(number in errors for number in using):
                raise refusal
    if not found:
        raise next(iter(errors.values()))
    first = found[0]
    broken = (
        Candidate(all_values[position], first.settings, first.recipe, first.given, str(refusal))
        for position, refusal in errors.items()
    )
    return [*found, *broken]
