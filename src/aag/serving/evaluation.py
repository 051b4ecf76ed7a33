"""Evaluate the encoder of a run folder, on its own data or on another set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aag import data, nets
from aag.data import TrainTestSets
from aag.distributed import first_per_machine, process_group
from aag.errors import AAGError
from aag.evaluate.protocols import evaluate_encoder
from aag.evaluate.tsne import project
from aag.files import explain_write_errors, is_missing, write_json
from aag.nets import Encoder
from aag.provenance import provenance
from aag.runs import Run, projection_file
from aag.settings import Precision
from aag.training.checks import check_same_images
from aag.training.runtime import choose_precision, choose_threads, find_device


@dataclass(frozen=True)
class Evaluation:
    """The accuracies of an encoder."""

    results: list[dict[str, Any]]  # one per protocol, as evaluate_encoder gives them
    data: str  # name of the set
    epoch: int  # the encoder's: fewer than the run's where that is unfinished
    file: Path  # where `save_evaluation` writes
    content: dict[str, Any]


@dataclass(frozen=True)
class _Loaded:
    encoder: Encoder
    sets: TrainTestSets
    device: torch.device
    dtype: torch.dtype | None

    @property
    def epoch(self) -> int:
        found = self.encoder.extra.get("epoch", "")
        if not (found.isdecimal() and found.isascii() and len(found) < 10):
            raise AAGError("the encoder's file does not say after which epoch it was saved; run aag train again")
        return int(found)


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
    precision: Precision = "auto",
    sets: TrainTestSets | None = None,
    holdout: float | None = None,
    decoding_progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a run's encoder by weighted kNN and a linear layer, on the run's data or on `data`.

    `holdout` is the fraction of the labelled training images of `data` that is used as test images.
    `decoding_progress(done, total)` is called while files of a folder are decoded. Processes that torchrun started
    share the work.
    """
    settings = run.settings()
    own = settings["data"]["source"], _label_options(settings)
    source, options = (data, {"labels": "known", "holdout": holdout}) if data else own
    if holdout and not data:
        raise AAGError("--holdout is for other data, given with --data; to hold out images of a run, train with it")
    with process_group(find_device(device)):
        loaded = first_per_machine(
            lambda: _load(run, source, data_root, device, precision, sets, progress=decoding_progress, **options)
        )
        check_same_images(*loaded.sets)
        results = evaluate_encoder(
            loaded.encoder,
            *loaded.sets,
            k=k,
            temperature=temperature,
            linear=linear,
            linear_epochs=linear_epochs,
            seed=settings["train"]["seed"],
            dtype=loaded.dtype,
        )
    name = loaded.sets[0].name
    # Numbers on another data set, or another split of the same, are saved next to the run's own, not over them.
    other = (source, options) != own
    held_out = {"holdout": holdout} if holdout else {}
    suffix = f"-holdout={holdout:g}" if holdout else ""
    file = run.folder / f"evaluation-{name}{suffix}.json" if other else run.evaluation_file
    content = {"data": source, **held_out, "epoch": loaded.epoch, "results": results, **provenance(str(loaded.device))}
    return Evaluation(results, name, loaded.epoch, file, content)


def save_evaluation(evaluation: Evaluation) -> None:
    write_json(evaluation.file, evaluation.content)


def write_projection(
    run: Run,
    folder: Path,
    *,
    data_root: Path | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    sets: TrainTestSets | None = None,
) -> Path:
    """Write a t-SNE of a finished run's test images to FOLDER/tsne/NAME.json, next to its record."""
    settings = run.settings()
    epochs = settings["train"]["epochs"]
    options = _label_options(settings)
    loaded = _load(run, settings["data"]["source"], data_root, device, precision, sets, **options)
    if loaded.epoch < epochs:
        raise AAGError(f"{run.folder} is not finished (epoch {loaded.epoch} of {epochs}): resume its aag train first")
    test = loaded.sets[1]
    if test is None or test.labels is None:
        raise AAGError(
            f"{loaded.sets[0].name} has no labelled test images, which t-SNE colours by class; leave out --tsne"
        )
    _, embeddings = loaded.encoder.encode(test.images, dtype=loaded.dtype)
    labelled = test.labelled()
    projection = project(embeddings[labelled.to(embeddings.device)], test.labels[labelled], classes=test.classes)
    path = projection_file(folder, run.name)
    with explain_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"name": run.name, "settings": settings, **projection, **provenance(str(loaded.device))})
    return path


def load_encoder(run: Run, device: str = "auto", precision: Precision = "auto") -> tuple[Encoder, torch.dtype | None]:
    """Return a run's encoder on a device, and the dtype that it computes in: bfloat16, or None for float32."""
    if is_missing(run.encoder_file):
        raise AAGError(f"{run.folder} has no encoder yet; start or resume its aag train")
    chosen = find_device(device)
    choose_threads(chosen)
    dtype = torch.bfloat16 if choose_precision(chosen, precision) == "bf16" else None
    encoder = nets.load(run.encoder_file, device=chosen)
    run.check_encoder(encoder.extra)
    return encoder, dtype


def _label_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return how the run's own data are labelled and split."""
    found = settings["data"]
    return {"labels": found.get("labels") or "known", "holdout": found.get("holdout")}


def _load(
    run: Run,
    source: str,
    data_root: Path | None,
    device: str,
    precision: Precision,
    sets: TrainTestSets | None,
    **options: Any,
) -> _Loaded:
    encoder, dtype = load_encoder(run, device, precision)
    if sets is None:
        sets = data.load_pair(source, root=data_root, image_size=encoder.spec.source_size, **options)
    return _Loaded(encoder, sets, encoder.mean.device, dtype)
