"""Checks of `Trainer`: parts of the wrong type or size, and batches that processes cannot divide."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from aag.augment.base import CentreCropped
from aag.data import ImageSet
from aag.distributed import check_same, is_distributed, world_size
from aag.errors import AAGError, describe
from aag.methods import Method
from aag.nets import Encoder
from aag.runs import Run
from aag.settings import Range, TrainSettings, check_value
from aag.training.callbacks import Callback

CheckpointMinutes = Annotated[float, Range(at_least=0)]
KeepCheckpoints = Annotated[int, Range(at_least=1, at_most=100)]
OnNaN = Literal["stop", "retry"]
ImagesOn = Literal["auto", "device", "host"]


def check_types(
    encoder: object, method: object, images: object, settings: object, run: object, callbacks: Iterable[object]
) -> None:
    """Raise if a part of a run has the wrong type."""
    for name, expected, given in (
        ("encoder", Encoder, encoder), ("method", Method, method), ("images", ImageSet, images),
        ("settings", TrainSettings, settings), ("run", Run | None, run),
    ):  # fmt: skip
        if not isinstance(given, expected):
            expected_name = getattr(expected, "__name__", "Run")
            raise AAGError(f"Trainer takes {name} of type {expected_name}, not {type(given).__name__}")
    for each in callbacks:
        if not isinstance(each, Callback):
            raise AAGError(f"a callback is an object of a subclass of aag.training.Callback, not {describe(each)}")


def check_execution(checkpoint_minutes: Any, keep_checkpoints: Any, on_nan: Any, images_on: Any) -> None:
    """Raise unless Trainer's arguments of these names have values that it knows."""
    check_value("checkpoint_minutes", checkpoint_minutes, CheckpointMinutes)
    check_value("keep_checkpoints", keep_checkpoints, KeepCheckpoints)
    check_value("on_nan", on_nan, OnNaN)
    check_value("images_on", images_on, ImagesOn)


def check_sizes(encoder: Encoder, images: ImageSet, settings: TrainSettings) -> None:
    """Raise if the images do not fit the encoder, or are fewer than a batch."""
    if images.channels != 3:
        raise AAGError(f"training takes images of 3 channels; {images.name} has {images.channels}; convert them to RGB")
    if encoder.spec.source_size != images.image_size:
        size, own = encoder.spec.source_size, images.image_size
        raise AAGError(
            f"the encoder is built for images of {size}×{size}; those of {images.name} are {own}×{own}; resize them"
        )
    if settings.low_res_size:
        if settings.low_res_size >= encoder.spec.image_size:
            raise AAGError(
                f"--low-res-size {settings.low_res_size} is not below the image size of {encoder.spec.image_size}; "
                "use a smaller one"
            )
        if encoder.fixed_size:
            raise AAGError(f"{encoder.spec.network} takes images of one size only; leave out --low-res-size")
    if len(images) < 2:
        raise AAGError(f"{images.name} has one training image; give at least two, since a loss compares images")
    window = settings.accumulate
    if settings.batch_size * window > len(images):
        times = f" times --accumulate {window}" if window > 1 else ""
        raise AAGError(
            f"batch size {settings.batch_size}{times} exceeds the {len(images)} training images; "
            f"use --batch-size {1 << max(0, (len(images) // window).bit_length() - 1)}"
        )


def check_low_res(method: Method, settings: TrainSettings) -> None:
    """Raise if the method's views cannot be made smaller without a centre crop, which would change them."""
    if settings.low_res_size is None:
        return
    for augmentation in method.augmentations():
        if isinstance(augmentation.at_size(settings.low_res_size), CentreCropped):
            raise AAGError(
                f"--low-res-size cannot shrink the views of {type(augmentation).__name__} without a resized crop; "
                "leave it out, or use --auxiliary-crop resized"
            )


def check_same_images(images: ImageSet, test: ImageSet | None = None) -> None:
    """Raise if processes have other images: they would train on different data, or wait for each other forever."""
    if not is_distributed():
        return  # hashing 10,000 images of 224×224 takes 7 s
    found = {"the hash of the training images": images, "the hash of the test images": test}
    hashes = {name: each.fingerprint() if each else "missing" for name, each in found.items()}
    check_same(hashes, "give all processes the same data")


def check_processes(encoder: Encoder, method: Method, settings: TrainSettings) -> None:
    """Raise if a batch cannot be divided among the processes without changing its result."""
    size, batch, group = world_size(), settings.batch_size, encoder.spec.bn_group_size
    if size == 1:
        return
    if batch % size:
        nearest = -(-batch // size) * size
        raise AAGError(f"batch size {batch} cannot be divided among {size} processes; use --batch-size {nearest}")
    if group and batch // size % group:
        raise AAGError(
            f"the {batch // size} images per process cannot be divided into batch norm groups of {group}; "
            "use fewer processes, or another --bn-group-size"
        )
    if type(method).forward is not Method.forward:
        raise AAGError(
            f"{type(method).__name__} overrides forward, so its batches cannot be gathered from {size} "
            "processes; override embed and loss instead"
        )
