"""aag label"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aag.cli.output import Printer, embedding_progress, print_rows
from aag.cli.parsing import parse
from aag.errors import AAGError
from aag.signals import hold_stops
from aag.text import pluralize


@dataclass(frozen=True)
class Label:
    """Label all images from a few labelled examples, with confidence."""

    model: Annotated[Path, tyro.conf.arg(metavar="MODEL")]
    """Run folder or .safetensors file."""
    images: Annotated[str, tyro.conf.arg(metavar="IMAGES")]
    """Folder of images, or any other --data of aag train, or an embeddings file of aag embed."""
    labels: Annotated[Path, tyro.conf.arg(metavar="LABELS")]
    """CSV with the columns path,label, or a folder of examples with one subfolder per label."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("labels-all.csv")
    """CSV to write: path, label, confidence, given."""
    classifier: Literal["knn", "linear"] = "knn"
    """knn: votes of the 10 nearest examples. linear: logistic regression on the features."""
    json: bool = False
    """Print JSON."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    data_root: Path | None = None
    """Where data sets and embeddings are stored. Default: $AAG_DATA, else the cache folder."""


def run(arguments: list[str]) -> int:
    options = parse(Label, "label", arguments)
    with hold_stops():
        from aag.serving.embed import Embedder, load_or_embed
        from aag.serving.labels import folder_labels, label_images, read_labels, summarize_labels, write_labels
    if not options.labels.exists():  # found before the images are embedded, which may take long
        raise AAGError(f"cannot read labels from {options.labels}: no such file or folder")
    embedder = Embedder(options.model, device=options.device)
    linear = options.classifier == "linear"
    with embedding_progress() as progress:
        table = load_or_embed(
            embedder, options.images, features=linear, data_root=options.data_root, on_progress=progress
        )
        outside = None
        if options.labels.is_dir():
            examples = load_or_embed(
                embedder,
                options.labels,
                features=table.features is not None,
                data_root=options.data_root,
                on_progress=progress,
            )
            outside = examples, folder_labels(examples, options.labels)
    given = {} if outside else read_labels(options.labels, table)
    found = label_images(table, given, outside=outside, classifier=options.classifier)
    write_labels(options.out, table, found)
    print_rows(summarize_labels(found), as_json=options.json)
    if options.json:
        return 0
    say = Printer()
    if linear and table.features is None:
        say(f"{options.images} has no features, so the classifier saw the embeddings; aag embed --features adds them")
    # Of a folder, images outside the class folders are no examples.
    count = pluralize(sum(map(bool, outside[1])) if outside else len(given), "example")
    if found.accuracy is None:
        say(f"accuracy on the {count} not measured: {found.protocol}")
    else:
        say(f"accuracy on the {count}: {found.accuracy:.1f} % ({found.protocol})")
    say(f"labels of {len(table):,} images: {options.out}")
    return 0
