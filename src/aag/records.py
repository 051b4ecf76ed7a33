"""Records: one JSON file per finished run, with settings, numbers and provenance. All tables are made from them."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.files import explain_write_errors, read_text, write_json
from aag.runs import Run, summarize

POINTS = 200  # of a curve over the steps, at most: more than a figure can show, and a few kB


def make_record(run: Run) -> dict[str, Any]:
    """Collect settings, curves, evaluation, speed and provenance of a finished and evaluated run.

    The final numbers come from the evaluation; the curves come from the metrics, and `missing` says what those lack.
    """
    settings, evaluation, rows = run.settings(), run.evaluation(), run.metrics()
    epochs = settings["train"].get("epochs")
    if type(epochs) is not int:
        raise AAGError(f"{run.config_file} does not say how many epochs to train; train again")
    if evaluation.get("epoch", 0) < epochs:
        raise AAGError(
            f"{run.folder} was evaluated at epoch {evaluation.get('epoch', 0)} of {epochs}: "
            f"finish its training, then run aag evaluate {shlex.quote(str(run.folder))} again"
        )
    summary = summarize(run, epochs)
    by_epoch = [row for row in rows if row["kind"] == "epoch"]
    last = next((row["accuracy"] for row in evaluation["results"] if row["name"] == "kNN (embedding)"), None)
    record = {
        "name": run.name,
        "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
        "settings": settings,
        "knn": {
            "last": last and round(last, 2),
            "best": summary.knn_best and round(summary.knn_best, 2),
            "best_epoch": summary.knn_best_epoch,
            "reported": "last",
        },
        "evaluation": evaluation["results"],
        "knn_by_epoch": [(row["epoch"], round(row["knn"], 2)) for row in rows if row["kind"] == "knn"],
        "loss_by_epoch": [(row["epoch"], round(row["loss"], 4)) for row in by_epoch if _is_shown(row["epoch"], epochs)],
        "curves": _curves([row for row in rows if row["kind"] == "steps"]),
        "seconds": summary.seconds,
        "views_per_second": summary.views_per_second,
        "peak_memory": by_epoch[-1].get("peak_memory") if by_epoch else None,
        "sessions": [{k: v for k, v in row.items() if k != "kind"} for row in rows if row["kind"] == "start"],
    }
    if retries := [{k: v for k, v in row.items() if k != "kind"} for row in rows if row["kind"] == "retry"]:
        record["retries"] = retries  # part of it was trained at a lower rate than the settings say
    if summary.missing:
        record["missing"] = summary.missing
    return record


def _is_shown(epoch: int, epochs: int) -> bool:
    """Return whether a curve of 50 to 100 points, with the first and the last, includes this epoch."""
    return epoch in (1, epochs) or epoch % max(1, epochs // 50) == 0


def _curves(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Average what was logged over the steps in equal windows; "step" is the last of each window."""
    window = max(1, -(-len(rows) // POINTS))
    windows = [rows[start : start + window] for start in range(0, len(rows), window)]
    # A statistic that an older version did not log, for the part of a run that it trained, has no curve.
    names = [name for name in (rows[0] if rows else ()) if all(name in row for row in rows)]
    curves: dict[str, list[float]] = {"step": [part[-1]["step"] for part in windows]}
    for name in names:
        if name not in ("kind", "epoch", "step"):
            means = (sum(row[name] for row in part) / len(part) for part in windows)
            curves[name] = [float(f"{mean:.5g}") for mean in means]
    return curves


def write_record(run: Run, folder: Path) -> Path:
    """Write a run's record into a folder and return its path."""
    record = make_record(run)
    path = folder / f"{record['name']}.json"
    source = record["settings"]["data"]["source"]
    if (there := _recorded_source(path)) not in (None, source):
        raise AAGError(f"{path} is the record of a run on other data ({there}); record this one into another folder")
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return path


def _recorded_source(path: Path) -> str | None:
    """Return the data of an existing record: cifar10.npz gives a run the same name as cifar10. None without one."""
    try:
        return json.loads(read_text(path))["settings"]["data"]["source"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # none, or none that is worth keeping
        return None
