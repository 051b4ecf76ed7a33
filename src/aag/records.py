"""Records: one JSON file for a run, from which tables are made. A number carries what made it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.files import explain_write_errors, write_json
from aag.training.result import summarise
from aag.training.run import Run


def make_record(run: Run) -> dict[str, Any]:
    """Settings, curve, evaluation, speed and provenance of a finished and evaluated run."""
    rows = run.metrics()
    config = run.config()
    epochs = [row for row in rows if row["kind"] == "epoch"]
    knn = [(row["epoch"], round(row["knn"], 2)) for row in rows if row["kind"] == "knn"]
    if not epochs or epochs[-1]["epoch"] < config.epochs:
        raise AAGError(f"{run.folder} is not finished: run its aag train command again, then record it")
    if not run.evaluation_file.exists():
        raise AAGError(f"{run.folder} is not evaluated: run aag evaluate {run.folder} first")
    evaluation = json.loads(run.evaluation_file.read_text())
    if evaluation.get("epoch", config.epochs) < config.epochs:
        raise AAGError(f"{run.folder} was evaluated before it was finished: run aag evaluate {run.folder} again")
    result = summarise(run)
    starts = [row for row in rows if row["kind"] == "start"]
    return {
        "name": config.run_name(),
        "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
        "settings": config.identity(),
        "knn": {
            "last": _rounded(result.knn_last),
            "best": _rounded(result.knn_best),
            "best_epoch": result.knn_best_epoch,
            "reported": "last",
        },
        "evaluation": evaluation["results"],
        "knn_by_epoch": knn,
        "loss_by_epoch": [
            (row["epoch"], round(row["loss"], 4)) for row in epochs if _shown(row["epoch"], config.epochs)
        ],
        "curves": _curves([row for row in rows if row["kind"] == "steps"]),
        "seconds": result.seconds,
        "views_per_second": result.views_per_second,
        "peak_memory": epochs[-1].get("peak_memory"),
        "sessions": [{k: v for k, v in row.items() if k != "kind"} for row in starts],
    }


def _rounded(accuracy: float | None) -> float | None:
    return None if accuracy is None else round(accuracy, 2)


def _shown(epoch: int, epochs: int) -> bool:
    """Fifty to a hundred points of a curve, the first and the last among them."""
    return epoch in (1, epochs) or epoch % max(1, epochs // 50) == 0


POINTS = 200  # of a curve over the steps, at most: more than a figure can show, and a few kB


def _curves(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """What was logged over the steps, in means of equal windows; "step" is the last of each window."""
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
    record = make_record(run)
    path = folder / f"{record['name']}.json"
    if (there := _data_of(path)) not in (None, record["settings"]["data"]):
        raise AAGError(f"{path} is the record of a run on other data ({there}); record this one into another folder")
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return path


def _data_of(path: Path) -> str | None:
    """What an existing record was trained on: a file named cifar10.npz gives a run the name that cifar10 does."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["settings"]["data"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # none, or none that is worth keeping
        return None
    return found if isinstance(found, str) else None
