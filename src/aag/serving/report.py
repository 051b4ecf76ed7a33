"""Write the report of a run: one HTML page with curves, views, a map of the images, neighbours and classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aag.data import TrainTestSets
from aag.errors import AAGError
from aag.evaluate.health import verdict
from aag.files import write_bytes
from aag.pages import document as doc
from aag.pages.html import render_html
from aag.runs import SECTIONS, Run, summarize
from aag.serving.classes import classify
from aag.serving.curves import make_charts
from aag.serving.evaluation import load_encoder
from aag.serving.gallery import make_gallery
from aag.serving.neighbours import neighbour_graph
from aag.serving.options import MAP_IMAGES
from aag.serving.report_pictures import classes_blocks, map_blocks, neighbours_blocks, views_blocks
from aag.text import duration, pluralize, readable_value
from aag.training.api import load_sets
from aag.training.settings import RunSettings

SECONDS = 30.0  # for encoding the images on the map


def write_report(
    run: Run | str | Path,
    out: str | Path | None = None,
    *,
    sets: TrainTestSets | None = None,
    points: int = MAP_IMAGES,
    seconds: float = SECONDS,
    data_root: Path | None = None,
    device: str = "auto",
) -> Path:
    """Write the report of a run to `out` (default: report.html in its folder) and return its path.

    sets: the run's images, if they are loaded already. points: the most images on the map. seconds: time for encoding
    them; a slow machine shows fewer. Without images or an encoder, the page has only the curves and says why.
    """
    run = Run.open(run) if not isinstance(run, Run) else run
    path = Path(out) if out else run.report_file
    if path.is_dir():
        raise AAGError(f"cannot write {path}: it is a folder; give the name of a file")
    settings, rows = run.settings(), run.metrics()
    sections = [doc.Section("curves", "How training went", _curves(rows), "Curves")]
    introduction = _introduction(run, settings, rows)
    try:
        sections += _picture_sections(run, RunSettings.from_json(settings), sets, points, seconds, data_root, device)
    except AAGError as error:  # data that moved, an encoder that was never saved, embeddings with NaN
        introduction.append(doc.Paragraph(f"The pictures are missing: {error}.", "sum"))
    sections.append(doc.Section("settings", "Settings and provenance", _settings(settings, rows), "Settings"))
    title = f"Report of {run.folder.resolve().name}"
    document = doc.Document(title, introduction, sections, "Written by aag report.", "Sections")
    write_bytes(path, render_html(document, path).encode(errors="replace"))
    return path


def _picture_sections(
    run: Run,
    settings: RunSettings,
    sets: TrainTestSets | None,
    points: int,
    seconds: float,
    data_root: Path | None,
    device: str,
) -> list[doc.Section]:
    encoder, dtype = load_encoder(run, device)
    sets = sets or load_sets(settings, data_root)
    gallery = make_gallery(encoder, sets, points=points, seconds=seconds, dtype=dtype)
    graph = neighbour_graph(gallery.embeddings)[0].cpu()
    sections = [
        doc.Section("map", "A map of the images", map_blocks(gallery, graph), "Map"),
        doc.Section("views", "What the network sees", views_blocks(encoder, settings, sets[0]), "Views"),
        doc.Section("neighbours", "Nearest neighbours", neighbours_blocks(gallery, graph), "Neighbours"),
    ]
    if found := classify(gallery):
        blocks = classes_blocks(gallery, found)
        sections.append(doc.Section("classes", "Which classes it tells apart", blocks, "Classes"))
    return sections


# --- introduction and curves ------------------------------------------------------------------------------------------


def _introduction(run: Run, settings: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[doc.Block]:
    epochs = settings["train"]["epochs"]
    done = max((row["epoch"] for row in rows if row["kind"] == "epoch"), default=0)
    summary = summarize(run, done)
    facts = [
        f"{settings['method']['name']} with {settings['encoder']['network']} on {settings['data']['source']}",
        f"{pluralize(done, 'epoch')}" + (f" of {epochs}" if done < epochs else ""),
    ]
    if summary.seconds is not None:
        facts.append(f"{duration(summary.seconds)} of training")
    if summary.knn_last is not None:
        untrained = "" if summary.knn_untrained is None else f" (untrained {summary.knn_untrained:.2f}\u00a0%)"
        facts.append(f"kNN {summary.knn_last:.2f}\u00a0%{untrained}")
    blocks: list[doc.Block] = [doc.Paragraph(" · ".join(facts), "lead")]
    if sentence := verdict(rows):
        blocks.append(doc.Paragraph(sentence, "sum"))
    return blocks


def _curves(rows: Sequence[dict[str, Any]]) -> list[doc.Block]:
    charts = make_charts({"run": rows})
    return [doc.Charts(charts)] if charts else [doc.Paragraph("Nothing is logged yet: no epoch is complete.")]


def _settings(settings: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[doc.Block]:
    titles = {"data": "Images", "encoder": "Network", "method": "Method", "train": "Training"}
    tables = {titles[name]: settings[name] for name in SECTIONS}
    sessions = [row for row in rows if row["kind"] == "start"]
    if sessions:
        hidden = ("kind", "epoch", "step")
        tables["Where it ran last"] = {name: value for name, value in sessions[-1].items() if name not in hidden}
    groups: list[Sequence[doc.Block]] = [
        [
            doc.heading(title),
            doc.Table(title, ["setting", "value"], [_setting(*one) for one in values.items()], style="list compact"),
        ]
        for title, values in tables.items()
    ]
    return [doc.Columns(groups)]


def _setting(name: str, value: Any) -> list[doc.Cell]:
    return [doc.Cell([name.replace("_", " ")]), doc.Cell([readable_value(value)])]
