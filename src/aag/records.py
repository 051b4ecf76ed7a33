"""Records: one JSON file for a run, from which tables are made. A number carries what made it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.files import write_json, writing
from aag.train.result import summarise
from aag.train.run import Run


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
        "seconds": result.seconds,
        "views_per_second": result.views_per_second,
        "peak_memory": epochs[-1].get("peak_memory"),
        "sessions": [{k: v for k, v in row.items() if k != "kind"} for row in starts],
    }


def _rounded(accuracy: float | None) -> float | None:
    return None if accuracy is None else round(accuracy, 2)


def _shown(epoch: int, epochs: int) -> bool:
    """About fifty points of a curve, the first and the last among them."""
    return epoch in (1, epochs) or epoch % max(1, epochs // 50) == 0


def write_record(run: Run, folder: Path) -> Path:
    record = make_record(run)
    path = folder / f"{record['name']}.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return path
