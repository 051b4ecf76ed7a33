"""Records: one JSON file for a run, from which tables are made. A number carries what made it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.files import write_json, writing
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
    trained = [(epoch, accuracy) for epoch, accuracy in knn if epoch > 0]
    best = max(trained, key=lambda point: point[1], default=None)
    speeds = sorted(row["views_per_second"] for row in epochs)
    starts = [row for row in rows if row["kind"] == "start"]
    return {
        "name": config.run_name(),
        "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
        "settings": config.identity(),
        "knn": {
            "last": trained[-1][1] if trained else None,
            "best": best[1] if best else None,
            "best_epoch": best[0] if best else None,
            "reported": "last",
        },
        "evaluation": json.loads(run.evaluation_file.read_text())["results"],
        "knn_by_epoch": knn,
        "loss_by_epoch": [
            (row["epoch"], round(row["loss"], 4)) for row in epochs if _shown(row["epoch"], config.epochs)
        ],
        "seconds": epochs[-1]["seconds"],
        "views_per_second": speeds[len(speeds) // 2],
        "peak_memory": epochs[-1].get("peak_memory"),
        "sessions": [{k: v for k, v in row.items() if k != "kind"} for row in starts],
    }


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
