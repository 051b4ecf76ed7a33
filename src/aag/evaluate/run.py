"""Evaluation of a run folder: its encoder on its own data or on another set, saved beside it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aag import data, nets
from aag.data import ImageSet
from aag.errors import AAGError
from aag.evaluate.protocols import evaluate_encoder
from aag.evaluate.tsne import project
from aag.files import explain_write_errors, projection_file, write_json
from aag.nets import Encoder
from aag.provenance import provenance
from aag.training.run import Run
from aag.training.runtime import Runtime, decide


@dataclass(frozen=True)
class Evaluation:
    """What an encoder reached, and where that was saved."""

    results: list[dict[str, Any]]  # one for each protocol, as evaluate_encoder gives them
    data: str  # the set's name
    epoch: int  # the encoder's: fewer than the run's where that is unfinished
    file: Path


def evaluate_run(
    run: Run,
    *,
    data: str | None = None,
    data_root: Path | None = None,
    k: int = 200,
    temperature: float = 0.1,
    linear: bool = True,
    linear_epochs: int = 50,
    device: str = "auto",
    precision: str = "auto",
) -> Evaluation:
    """Weighted kNN and linear evaluation of a run's encoder. `data` and `data_root` are the run's where not given."""
    config = run.config()
    source = data or config.data
    encoder, runtime, train_set, test_set = _opened(run, source, data_root, device, precision)
    results = evaluate_encoder(
        encoder, train_set, test_set, k=k, temperature=temperature, linear=linear, linear_epochs=linear_epochs,
        seed=config.seed, dtype=_dtype(runtime),
    )  # fmt: skip
    epoch = int(encoder.extra["epoch"])
    # Another data set's numbers stand beside the run's own, not in their place.
    other = source != config.data
    file = run.folder / f"evaluation-{train_set.name}.json" if other else run.evaluation_file
    write_json(file, {"data": source, "epoch": epoch, "results": results, **provenance(str(runtime.device))})
    return Evaluation(results, train_set.name, epoch, file)


def write_projection(
    run: Run, folder: Path, *, data_root: Path | None = None, device: str = "auto", precision: str = "auto"
) -> Path:
    """t-SNE of a finished run's test images, as FOLDER/tsne/NAME.json beside its record."""
    config = run.config()
    encoder, runtime, _, test_set = _opened(run, config.data, data_root, device, precision)
    if (epoch := int(encoder.extra["epoch"])) < config.epochs:
        raise AAGError(f"{run.folder} is not finished (epoch {epoch} of {config.epochs}): run its aag train first")
    if test_set is None or test_set.labels is None:
        raise AAGError(f"{config.data} has no labelled test part, and t-SNE shows its images by class")
    _, embeddings = encoder.encode(test_set.images, dtype=_dtype(runtime))
    projection = project(embeddings, test_set.labels, classes=test_set.classes)
    path = projection_file(folder, config.run_name())
    with explain_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {"name": config.run_name(), "settings": config.identity(), **projection, **provenance(str(runtime.device))},
    )
    return path


def _opened(
    run: Run, source: str, data_root: Path | None, device: str, precision: str
) -> tuple[Encoder, Runtime, ImageSet, ImageSet | None]:
    config = run.config()
    if not run.encoder_file.exists():
        raise AAGError(f"{run.folder} has no encoder yet: its training has not finished or been stopped")
    runtime = decide(replace(config, device=device, precision=precision).validate())
    # A run may come from another machine, with a folder that is not here.
    trained_on = config.data_root if config.data_root and config.data_root.is_dir() else None
    encoder = nets.load(run.encoder_file, device=runtime.device)
    pair = data.load_pair(source, root=data_root or trained_on, image_size=encoder.spec.image_size)
    return encoder, runtime, *pair


def _dtype(runtime: Runtime) -> torch.dtype | None:
    return torch.bfloat16 if runtime.dtype == torch.bfloat16 else None
