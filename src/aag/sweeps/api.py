"""`sweep`: compare settings from Python."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from torch import nn

from aag.data import as_image_sets
from aag.errors import AAGError, describe
from aag.methods import Method, register_method
from aag.sweeps.candidates import build_candidates, check_names, default_folder, make_candidate
from aag.sweeps.grid import choose_values, describe_grid, read_grid
from aag.sweeps.images import SweepImages
from aag.sweeps.plan import SweepOptions, SweepPlan
from aag.sweeps.results import SweepResult
from aag.sweeps.runner import SweepRunner
from aag.training import Execution


def sweep(
    images: Any = "sample",
    grid: Mapping[str, Any] | None = None,
    *,
    random: int | None = None,
    one_at_a_time: bool = False,
    halving: int | None = None,
    seeds: int = 1,
    rank_by: Literal["auto", "knn", "linear", "agreement"] = "auto",
    out: str | Path | None = None,
    retry_failed: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> SweepResult:
    """Train with several settings, rank them on held-out training images, and return all rows, best first.

    `images`: as for `aag.train`; a test split is never used. `grid`: by option name a list of values or, with `random`,
    a range such as "0.01..0.1". `options`: any option of `aag.train`, shared by all runs, such as epochs=30 or
    holdout=0.2. The other arguments are those of `aag sweep`. The same call resumes the sweep in `out`.
    """
    values = read_grid(grid or {})
    if isinstance(swept := values.get("method"), list):
        values["method"] = [_method_name(each) for each in swept]
    sweep_options = SweepOptions(
        tuple(describe_grid(values)), random, one_at_a_time, halving, seeds, rank_by, retry_failed
    )
    check_names(values)
    if misplaced := sorted({"data", "minutes", "callbacks"} & options.keys()):
        raise AAGError(f"a sweep takes no {misplaced[0]}=; leave it out")
    is_named = isinstance(images, str | Path)
    source = str(images) if is_named else as_image_sets(images)[0].name
    if "method" in options:
        options["method"] = _method_name(options["method"])
    network = options.get("network")
    backbone = network if isinstance(network, nn.Module) else None
    if backbone is not None:
        options["network"] = f"custom:{type(backbone).__name__}"
    execution_options = {
        name: options.pop(name) for name in [each.name for each in fields(Execution)] if name in options
    }
    shared = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    seed = shared.get("seed", 0)
    if not isinstance(seed, int):
        raise AAGError(f"seed must be a whole number, not {describe(seed)}")
    all_values = choose_values(values, draws=random, one_at_a_time=one_at_a_time, seed=seed)
    candidates = build_candidates(all_values, lambda each: make_candidate(each, source, shared))
    if root := execution_options.get("data_root"):
        execution_options["data_root"] = Path(root)
    if "device" in execution_options:
        execution_options["device"] = str(execution_options["device"])
    execution = Execution.for_recipe(candidates[0].recipe, candidates[0].settings, **execution_options)
    plan = SweepPlan(
        candidates,
        sweep_options,
        execution,
        out or default_folder(candidates[0], values),
        SweepImages(None if is_named else images, execution.data_root),
    )
    return SweepRunner(plan, backbone=backbone, should_stop=should_stop, say=say).run()


def _method_name(method: Any) -> str | None:
    """Return the name of a method given by name or as a class; None means the default."""
    if isinstance(method, Method):
        raise AAGError(f"a sweep makes a new method for each run; give the class {type(method).__name__}")
    return method if method is None or isinstance(method, str) else register_method(method)
