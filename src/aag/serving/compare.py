"""Compare runs: the settings that differ, their numbers and their curves, as rows and as one HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.files import write_bytes
from aag.pages import document as doc
from aag.pages.html import render_html
from aag.runs import Run, flatten, run_status
from aag.serving.curves import make_charts
from aag.text import column_texts, duration, keep_end

MAX_LINES = 10  # in a chart; there are no more colours
NAMED_LINES = 4  # with more runs, the legend shows only their numbers in the table


def compare_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per run: its name, the settings that differ, epochs, accuracies, health and seconds.

    Accuracies and agreement are in percent. All rows have the same keys; a number that a run does not have is None.
    """
    if len(runs) < 2:
        raise AAGError(f"a comparison needs at least two runs, not {len(runs)}")
    settings = [flatten(run.settings()) for run in runs]
    names = dict.fromkeys(name for flat in settings for name in flat)
    differing = [name for name in names if any(flat.get(name) != settings[0].get(name) for flat in settings)]
    evaluations = [_evaluation(run) for run in runs]
    measured = dict.fromkeys(name for found in evaluations for name in found)
    rows = []
    for run, name, flat, accuracy in zip(runs, _names(runs), settings, evaluations, strict=True):
        status = run_status(run)
        last = {row["kind"]: row for row in run.metrics()}
        health = last.get("health", {})
        row = {"run": name, **{option: _plain(flat.get(option)) for option in differing}, "last_epoch": status.epoch}
        row["kNN"] = status.knn
        row |= {name: accuracy.get(name) for name in measured}
        row["rank"] = health.get("rank")
        row["agreement"] = round(100 * health["agreement"], 3) if "agreement" in health else None
        row |= {key: health.get(key) for key in ("alignment", "uniformity")}
        rows.append({**row, "seconds": status.seconds, "status": status.state})
    unused = [key for key in rows[0] if all(row[key] is None for row in rows)]
    return [{key: value for key, value in row.items() if key not in unused} for row in rows]


def write_comparison(runs: Sequence[Run], out: str | Path) -> Path:
    """Write one HTML page with the numbers and curves of several runs, and return its path."""
    path = Path(out)
    if path.is_dir():
        raise AAGError(f"cannot write {path}: it is a folder; give the name of a file")
    rows = compare_runs(runs)
    lines = numbers = [str(number) for number in range(1, len(rows) + 1)]
    if len(rows) <= NAMED_LINES:
        lines = [f"{number}: {keep_end(row['run'], 30)}" for number, row in zip(numbers, rows, strict=True)]
    charts = make_charts({name: run.metrics() for name, run in list(zip(lines, runs, strict=True))[:MAX_LINES]})
    columns = {column_title(key): _texts(key, [row[key] for row in rows]) for key in rows[0]}
    caption = "Settings that differ between the runs, and their last numbers; accuracies and agreement in percent."
    if len(rows) < len(columns):  # a column per run is narrower
        heads, table = ["", *numbers], [[name, *texts] for name, texts in columns.items()]
    else:
        heads, table = ["", *columns], [list(texts) for texts in zip(numbers, *columns.values(), strict=True)]
    cells = [[doc.Cell([text]) for text in line] for line in table]
    sections = [
        doc.Section(
            "numbers", "Settings and numbers", [doc.Table("Runs", heads, cells, caption, "list compact")], "Numbers"
        )
    ]
    blocks: list[doc.Block] = [doc.Charts(charts)] if charts else [doc.Paragraph("Nothing is logged yet.")]
    if len(runs) > MAX_LINES:
        blocks.append(doc.Paragraph(f"The curves show the first {MAX_LINES} of {len(runs)} runs.", "protocol"))
    sections.append(doc.Section("curves", "How training went", blocks, "Curves"))
    title = f"{len(runs)} runs compared"
    document = doc.Document(title, [], sections, "Written by aag compare.", "Sections")
    write_bytes(path, render_html(document, path).encode(errors="replace"))
    return path


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the folders' names, or their paths where two names are the same."""
    names = [run.folder.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _evaluation(run: Run) -> dict[str, float]:
    """Return the accuracies that `aag evaluate` saved, by name; empty without them."""
    try:
        return {row["name"]: float(row["accuracy"]) for row in run.evaluation()["results"]}
    except (AAGError, KeyError, TypeError, ValueError):
        return {}


def _plain(value: Any) -> Any:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else value


def column_title(key: str) -> str:
    return {"seconds": "time", "kNN": "kNN %", "agreement": "agree %"}.get(key, key.replace("_", " "))


def _texts(key: str, values: Sequence[Any]) -> list[str]:
    if key == "seconds":
        values = [None if value is None else duration(value) for value in values]
    return column_texts(values)
