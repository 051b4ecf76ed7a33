"""The report of a run: one HTML page with its curves, views, map of embeddings, neighbours and classes."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aag import nets
from aag.cluster import kmeans
from aag.data import ImageSet
from aag.errors import AAGError
from aag.files import write_bytes
from aag.nets import Encoder
from aag.pages import document as doc
from aag.pages.html import render_html
from aag.pages.map import Colouring, Map, pack_pictures
from aag.rng import keys, permutation
from aag.runs import SECTIONS, Run, summarize
from aag.serving.classes import Classification, classify
from aag.serving.curves import make_charts
from aag.serving.gallery import Gallery, encode_picture, make_gallery, to_pictures
from aag.serving.neighbours import neighbour_graph
from aag.serving.projection import project
from aag.text import duration, pluralize
from aag.training.api import load_sets
from aag.training.runtime import choose_precision, choose_threads, find_device
from aag.training.settings import RunSettings

POINTS, SECONDS = 10_000, 30.0  # of the map; of encoding, beyond which fewer points are taken
SAMPLES, NEIGHBOURS = 8, 8  # rows of pictures
CLUSTERS = 12
LARGEST_HEAT_TABLE = 20  # classes; more are listed by their most confused pairs
VIEW_SIDE = 160  # pixels, at most

Sets = tuple[ImageSet, ImageSet | None]


def write_report(
    run: Run | str | Path,
    out: str | Path | None = None,
    *,
    sets: Sets | None = None,
    points: int = POINTS,
    seconds: float = SECONDS,
    data_root: Path | None = None,
    device: str = "auto",
) -> Path:
    """Write the report of a run to `out` (default: report.html in its folder) and return its path.

    sets: the run's images, where they are loaded already. points: images on the map, at most. seconds: time for
    encoding them; a slow machine shows fewer. Without images or an encoder the page has the curves alone and says why.
    """
    run = Run.open(run) if not isinstance(run, Run) else run
    path = Path(out) if out else run.report_file
    if path.is_dir():
        raise AAGError(f"cannot write {path}: it is a folder; give the name of a file")
    document = make_report(run, sets=sets, points=points, seconds=seconds, data_root=data_root, device=device)
    write_bytes(path, render_html(document, path).encode())
    return path


def make_report(
    run: Run, *, sets: Sets | None, points: int, seconds: float, data_root: Path | None, device: str
) -> doc.Document:
    """Return the report of a run as a document."""
    settings, rows = run.settings(), run.metrics()
    sections = [doc.Section("curves", "How training went", _curves(rows), "Curves")]
    introduction = _introduction(run, settings, rows)
    try:
        encoder, dtype = _load_encoder(run, device)
        parsed = RunSettings.from_json(settings)
        sets = sets or load_sets(parsed, data_root)
    except AAGError as error:  # data that moved, or an encoder that was never saved
        introduction.append(doc.Paragraph(f"The pictures are missing: {error}.", "sum"))
    else:
        gallery = make_gallery(encoder, sets, points=points, seconds=seconds, dtype=dtype)
        graph = neighbour_graph(gallery.embeddings)[0].cpu() if len(gallery) > 1 else torch.zeros(1, 0).long()
        sections += [
            doc.Section("map", "A map of the images", _map(gallery, graph), "Map"),
            doc.Section("views", "What the network sees", _views(encoder, parsed, sets[0]), "Views"),
            doc.Section("neighbours", "Nearest neighbours", _neighbours(gallery, graph), "Neighbours"),
        ]
        if found := classify(gallery):
            sections.append(doc.Section("classes", "Which classes it tells apart", _classes(gallery, found), "Classes"))
    sections.append(doc.Section("settings", "Settings and provenance", _settings(settings, rows), "Settings"))
    return doc.Document(f"Report of {run.name}", introduction, sections, "Written by aag report.", "Sections")


def _load_encoder(run: Run, device_name: str) -> tuple[Encoder, torch.dtype | None]:
    if not os.path.exists(run.encoder_file):
        raise AAGError(f"{run.folder} has no encoder yet: its training has not started or was never saved")
    device = find_device(device_name)
    choose_threads(device)
    dtype = torch.bfloat16 if choose_precision(device, "auto") == "bf16" else None
    return nets.load(run.encoder_file, device=device), dtype


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
        untrained = "" if summary.knn_untrained is None else f" (untrained {summary.knn_untrained:.2f} %)"
        facts.append(f"kNN {summary.knn_last:.2f} %{untrained}")
    blocks: list[doc.Block] = [doc.Paragraph(" · ".join(facts), "lead")]
    if sentence := _verdict(rows):
        blocks.append(doc.Paragraph(sentence, "sum"))
    return blocks


def _verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Return one sentence on the encoder's health; empty where the run logged none."""
    if not any(row["kind"] == "health" for row in rows):
        return ""
    from aag.evaluate.health import verdict

    return verdict(list(rows))


def _curves(rows: Sequence[dict[str, Any]]) -> list[doc.Block]:
    charts = make_charts({"run": rows})
    return [doc.Charts(charts)] if charts else [doc.Paragraph("Nothing is logged yet: no epoch is complete.")]


# --- pictures ---------------------------------------------------------------------------------------------------------


def _map(gallery: Gallery, graph: torch.Tensor) -> list[doc.Block]:
    plane = project(gallery.embeddings, graph=graph.to(gallery.embeddings.device))
    colourings = []
    if gallery.classes:
        unlabelled = bool((gallery.labels < 0).any())
        classes = [*gallery.classes, *(["no label"] if unlabelled else [])]
        index = torch.where(gallery.labels < 0, len(gallery.classes), gallery.labels)
        colourings.append(Colouring("label", classes, index.tolist()))
    count = min(CLUSTERS, len(gallery))
    cluster, _ = kmeans(gallery.embeddings, count)
    colourings.append(Colouring("cluster", [f"cluster {n + 1}" for n in range(count)], cluster.tolist()))
    if gallery.is_test.any() and not gallery.is_test.all():
        colourings.append(Colouring("split", ["train", "test"], gallery.is_test.long().tolist()))
    shown = f"{len(gallery):,} of {gallery.total:,} images, chosen at random" if len(gallery) < gallery.total else (
        f"all {gallery.total:,} images"
    )  # fmt: skip
    how = (
        f"Each point is an image ({shown}); near points have similar embeddings. "
        "Point at one or tap it to see it. Drag to move, scroll or pinch to zoom, choose classes in the legend."
    )
    note = "t-SNE of cosine neighbours: which points are near means something, distances between far groups little."
    name = f"Map of {len(gallery):,} images"
    sheets = pack_pictures(gallery.pictures)
    return [
        doc.Paragraph(how),
        Map(name, plane.numpy(), gallery.names, colourings, sheets),
        doc.Paragraph(note, "protocol"),
    ]


def _views(encoder: Encoder, settings: RunSettings, images: ImageSet) -> list[doc.Block]:
    """Show sample images and their views in the first epoch, as training made them."""
    index = permutation(1, 0, len(images))[:SAMPLES].sort().values
    chosen = images.images[index.to(images.images.device)].cpu()
    augmentations = settings.method_type(settings.method_settings).augmentations()
    size = encoder.spec.image_size
    if size != images.image_size:
        augmentations = tuple(augmentation.at_size(size) for augmentation in augmentations)
    seed = settings.train.seed
    columns = {"image": chosen}
    for view, augmentation in enumerate(augmentations):
        views = augmentation(chosen, key=keys(seed, 0, index, view))
        columns[f"view {view + 1}, {type(augmentation).__name__}"] = views
    pictures = {name: to_pictures(batch, min(VIEW_SIDE, batch.shape[2])) for name, batch in columns.items()}
    side = max(72, min(VIEW_SIDE, size))
    rows = []
    for place, number in enumerate(index.tolist()):
        name = images.names[number] if images.names else f"image {number:,}"
        cells = [_picture(pixels[place], f"{name}, {column}", side) for column, pixels in pictures.items()]
        rows.append([doc.Cell([_short(name)]), *cells])
    caption = f"Images drawn at random, and their views in the first epoch with seed {seed}."
    return [doc.Table("Images and their views", ["", *columns], rows, caption, "views")]


def _neighbours(gallery: Gallery, graph: torch.Tensor) -> list[doc.Block]:
    order = permutation(2, 0, len(gallery))
    if gallery.is_test.any():  # images that training has not seen
        order = order[gallery.is_test[order]]
    rows = []
    for row in order[:SAMPLES].tolist():
        others = graph[row, :NEIGHBOURS].tolist()
        cosines = (gallery.embeddings[others] @ gallery.embeddings[row]).tolist() if others else []
        rows.append([
            doc.Cell([_short(gallery.names[row]), gallery.label(row)]),
            _picture(gallery.pictures[row], gallery.names[row]),
            *(_neighbour(gallery, row, other, cosine) for other, cosine in zip(others, cosines, strict=True)),
        ])  # fmt: skip
    columns = ["", "image", *(f"{place}" for place in range(1, len(rows[0]) - 1))]
    caption = "Images drawn at random and the nearest others of the map, with the cosine of their embeddings."
    return [doc.Table("Nearest neighbours", columns, rows, caption, "views")]


def _neighbour(gallery: Gallery, row: int, other: int, cosine: float) -> doc.Cell:
    label = gallery.label(other)
    same = "near" if not (label and gallery.label(row)) else "up" if label == gallery.label(row) else "down"
    lines: list[doc.Text] = [[_image(gallery.pictures[other], gallery.names[other])], f"{cosine:.2f}"]
    return doc.Cell([*lines, [doc.Styled(label, same)]] if label else lines)


def _picture(pixels: Any, about: str, side: int = 72) -> doc.Cell:
    return doc.Cell([[_image(pixels, about, side)]])


def _image(pixels: Any, about: str, side: int = 72) -> doc.Image:
    return doc.Image(encode_picture(pixels), about, side)


def _short(name: str, most: int = 40) -> str:
    """Return the end of a long path, which tells more than its start."""
    return name if len(name) <= most else f"…{name[1 - most:]}"


# --- classes and settings ---------------------------------------------------------------------------------------------


def _classes(gallery: Gallery, found: Classification) -> list[doc.Block]:
    worst = found.by_class()
    listed = worst if len(worst) <= 10 else [*worst[:5], *worst[-5:]]
    title = "Accuracy by class, worst first" if listed is worst else "The five worst and the five best classes"
    rows = [[doc.Cell([name]), doc.Cell([f"{share:.1f} %"]), doc.Cell([f"{total:,}"])] for name, share, total in listed]
    by_class = doc.Table(title, ["class", "accuracy", "images"], rows, style="list")
    right: list[doc.Block]
    if len(worst) <= LARGEST_HEAT_TABLE:
        right = [doc.heading("Confusion"), _heat_table(found)]
    else:
        pairs = [
            [doc.Cell([actual]), doc.Cell([predicted]), doc.Cell([f"{number:,}"]), doc.Cell([f"{share:.0f} %"])]
            for actual, predicted, number, share in found.confused_pairs()
        ]
        heads = ["class", "taken for", "images", "of the class"]
        right = [doc.heading("Most confused pairs"), doc.Table("Most confused pairs", heads, pairs, style="list")]
    blocks: list[doc.Block] = [
        doc.Paragraph(f"The kNN is right for {found.accuracy:.2f} % of {len(found.rows):,} images."),
        doc.Columns([[doc.heading(title), by_class], right]),
    ]
    if mistakes := found.mistakes():
        columns = ["", "image", "taken for", "share of votes"]
        rows = []
        for place in mistakes:
            row = int(found.rows[place])
            cells = [f"{found.classes[int(found.predicted[place])]}", f"{100 * float(found.share[place]):.0f} %"]
            head = doc.Cell([_short(gallery.names[row]), gallery.label(row)])
            rows.append([head, _picture(gallery.pictures[row], gallery.names[row]), *(doc.Cell([text]) for text in cells)])
        blocks += [doc.heading("Surest mistakes"), doc.Table("Surest mistakes", columns, rows, style="views")]
    return [*blocks, doc.Paragraph(found.protocol, "protocol")]


def _heat_table(found: Classification) -> doc.Table:
    counts = found.confusion()
    present = [n for n in range(len(found.classes)) if int(counts[n].sum())]
    rows = []
    for actual in present:
        total = int(counts[actual].sum())
        shares = [100 * int(counts[actual, predicted]) / total for predicted in present]
        cells = [doc.Cell([f"{share:.0f}" if share else ""], f"heat{min(9, int(share / 10))}") for share in shares]
        rows.append([doc.Cell([found.classes[actual]]), *cells])
    caption = "Rows: the actual class; columns: the kNN's answer, in percent of the row."
    return doc.Table("Confusion of the kNN", ["", *(found.classes[n] for n in present)], rows, caption, "heat")


def _settings(settings: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[doc.Block]:
    titles = {"data": "Images", "encoder": "Network", "method": "Method", "train": "Training"}
    tables = {titles[name]: settings[name] for name in SECTIONS}
    sessions = [row for row in rows if row["kind"] == "start"]
    if sessions:
        hidden = ("kind", "epoch", "step")
        tables["Where it ran last"] = {name: value for name, value in sessions[-1].items() if name not in hidden}
    groups: list[Sequence[doc.Block]] = [
        [doc.heading(title), doc.Table(title, ["setting", "value"], [_setting(*one) for one in values.items()], style="list")]
        for title, values in tables.items()
    ]
    return [doc.Columns(groups)]


def _setting(name: str, value: Any) -> list[doc.Cell]:
    shown = "none" if value in (None, [], "") else "yes" if value is True else "no" if value is False else (
        " ".join(map(str, value)) if isinstance(value, list) else str(value)
    )  # fmt: skip
    return [doc.Cell([name.replace("_", " ")]), doc.Cell([shown])]
