"""The parts of a report with pictures: the map, the views, nearest neighbours and classes."""

from typing import Any

import torch

from aag.cluster import kmeans
from aag.data import ImageSet
from aag.methods import Method, MethodContext
from aag.methods.base import augmentation_name
from aag.nets import Encoder
from aag.pages import document as doc
from aag.pages.map import Colouring, Map, pack_pictures
from aag.rng import keys, permutation
from aag.serving.classes import Classification
from aag.serving.gallery import Gallery, encode_picture, to_pictures
from aag.serving.projection import project
from aag.text import keep_end
from aag.training.settings import RunSettings

SAMPLES, NEIGHBOURS = 8, 8  # rows of pictures; neighbours in each
CLUSTERS = 12
MAX_CONFUSION_CLASSES = 20  # classes; more are listed by their most confused pairs
VIEW_SIDE = 160  # pixels, at most
NAME_CHARACTERS = 40  # of a file's name in a table


def map_blocks(gallery: Gallery, graph: torch.Tensor) -> list[doc.Block]:
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
    note = "t-SNE of cosine neighbours: near points are similar; distances between far groups mean little."
    name = f"Map of {len(gallery):,} images"
    sheets = pack_pictures(gallery.pictures)
    return [
        doc.Paragraph(how),
        Map(name, plane.numpy(), gallery.names, colourings, sheets),
        doc.Paragraph(note, "protocol"),
    ]


def views_blocks(encoder: Encoder, settings: RunSettings, images: ImageSet) -> list[doc.Block]:
    """Show sample images and their views in the first epoch, as training made them."""
    index = permutation(1, 0, len(images))[: min(SAMPLES, settings.train.batch_size)].sort().values
    chosen = images.images[index.to(images.images.device)].cpu()
    method = settings.method_type(settings.method_settings)
    augmentations = method.augmentations()
    size = encoder.spec.image_size
    if size != images.image_size:
        augmentations = tuple(augmentation.at_size(size) for augmentation in augmentations)
    seed = settings.train.seed
    drawn = torch.stack([
        augmentation(chosen, key=keys(seed, 0, index, view)) for view, augmentation in enumerate(augmentations)
    ])  # fmt: skip
    seen = drawn
    if type(method).prepare_views is not Method.prepare_views:
        method.setup(MethodContext(encoder, len(images), settings.train))
        seen = method.prepare_views(drawn, index)
    columns = {"image": chosen}
    for view, augmentation in enumerate(augmentations):
        changed = "" if seen[view].equal(drawn[view]) else f", then changed by {method.name}"
        columns[f"view {view + 1} ({augmentation_name(augmentation)}{changed})"] = seen[view]
    pictures = {name: to_pictures(batch, min(VIEW_SIDE, batch.shape[2])) for name, batch in columns.items()}
    side = max(72, min(VIEW_SIDE, size))
    rows = []
    for position, number in enumerate(index.tolist()):
        name = images.names[number] if images.names else f"image {number:,}"
        cells = [_picture(pixels[position], f"{name}, {column}", side) for column, pixels in pictures.items()]
        rows.append([doc.Cell([keep_end(name, NAME_CHARACTERS)]), *cells])
    caption = f"Images drawn at random, and their views in the first epoch with seed {seed}."
    return [doc.Table("Images and their views", ["", *columns], rows, caption, "views")]


def neighbours_blocks(gallery: Gallery, graph: torch.Tensor) -> list[doc.Block]:
    order = permutation(2, 0, len(gallery))
    if gallery.is_test.any():  # images that training has not seen
        order = order[gallery.is_test[order]]
    rows = []
    for row in order[:SAMPLES].tolist():
        others = graph[row, :NEIGHBOURS].tolist()
        cosines = (gallery.embeddings[others] @ gallery.embeddings[row]).tolist() if others else []
        rows.append([
            doc.Cell([keep_end(gallery.names[row], NAME_CHARACTERS), gallery.label(row)]),
            _picture(gallery.pictures[row], gallery.names[row]),
            *(_neighbour(gallery, row, other, cosine) for other, cosine in zip(others, cosines, strict=True)),
        ])  # fmt: skip
    columns = ["", "image", *(f"{position}" for position in range(1, len(rows[0]) - 1))]
    caption = "Images drawn at random and the nearest others of the map, with the cosine of their embeddings."
    return [doc.Table("Nearest neighbours", columns, rows, caption, "views")]


def _neighbour(gallery: Gallery, row: int, other: int, cosine: float) -> doc.Cell:
    label = gallery.label(other)
    same = "near" if not (label and gallery.label(row)) else "up" if label == gallery.label(row) else "down"
    lines: list[doc.Text] = [[_image(gallery.pictures[other], gallery.names[other])], f"{cosine:.2f}"]
    return doc.Cell([*lines, [doc.Span(label, same)]] if label else lines)


def _picture(pixels: Any, about: str, side: int = 72) -> doc.Cell:
    return doc.Cell([[_image(pixels, about, side)]])


def _image(pixels: Any, about: str, side: int = 72) -> doc.Image:
    return doc.Image(encode_picture(pixels), about, side)


def classes_blocks(gallery: Gallery, found: Classification) -> list[doc.Block]:
    worst = found.accuracy_by_class()
    listed = worst if len(worst) <= 10 else [*worst[:5], *worst[-5:]]
    title = "Accuracy by class, worst first" if listed is worst else "The five worst and the five best classes"
    rows = [[doc.Cell([name]), doc.Cell([f"{share:.1f} %"]), doc.Cell([f"{total:,}"])] for name, share, total in listed]
    accuracies = doc.Table(title, ["class", "accuracy", "images"], rows, style="list compact")
    right: list[doc.Block]
    if len(worst) <= MAX_CONFUSION_CLASSES:
        right = [doc.heading("Confusion"), _confusion_table(found)]
    else:
        pairs = [
            [doc.Cell([actual]), doc.Cell([predicted]), doc.Cell([f"{number:,}"]), doc.Cell([f"{share:.0f} %"])]
            for actual, predicted, number, share in found.confused_pairs()
        ]
        heads = ["class", "taken for", "images", "of the class"]
        right = [
            doc.heading("Most confused pairs"),
            doc.Table("Most confused pairs", heads, pairs, style="list compact"),
        ]
    blocks: list[doc.Block] = [
        doc.Paragraph(f"The kNN classifies {found.accuracy:.2f} % of {len(found.rows):,} images correctly."),
        doc.Columns([[doc.heading(title), accuracies], right]),
    ]
    if mistakes := found.mistakes():
        columns, note = (
            ["", "image", "taken for", "share of votes"],
            "Wrong answers with the largest share of the votes.",
        )
        rows = []
        for position in mistakes:
            row = int(found.rows[position])
            cells = [f"{found.classes[int(found.predicted[position])]}", f"{100 * float(found.share[position]):.0f} %"]
            head = doc.Cell([keep_end(gallery.names[row], NAME_CHARACTERS), gallery.label(row)])
            rows.append(
                [head, _picture(gallery.pictures[row], gallery.names[row]), *(doc.Cell([text]) for text in cells)]
            )
        blocks += [
            doc.heading("Most confident mistakes"),
            doc.Table("Most confident mistakes", columns, rows, note, "views"),
        ]
    return [*blocks, doc.Paragraph(found.protocol, "protocol")]


def _confusion_table(found: Classification) -> doc.Table:
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
