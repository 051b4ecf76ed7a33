"""Choose defaults for a folder of images and a device: image size, network, batch size and epochs, with reasons."""

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aag.data import survey
from aag.data.datasets import DATASETS
from aag.data.shard_files import is_remote, is_sharded
from aag.errors import AAGError
from aag.nets import EncoderSpec, build
from aag.nets.spec import SOBEL
from aag.runs import Run, flatten
from aag.settings import to_json
from aag.text import duration, pluralize
from aag.training.recipes import recipe_settings, run_name
from aag.training.runtime import choose_precision
from aag.training.settings import RunSettings

LENGTH_OPTIONS = ("epochs", "warmup_epochs")  # chosen for --minutes
FOLDER_OPTIONS = ("image_size", "resize_size", "network", "batch_size", "bn_group_size", *LENGTH_OPTIONS)
CPU_MINUTES = 10.0  # the default of --minutes for a folder on a CPU
SMALL_STEM_SIZE = 64  # above it, a stem that does not halve the image costs too much
IMAGES_SEEN = 4_000_000  # over all epochs, by default
MAX_EPOCHS = 2000  # that --minutes chooses


class Choice(NamedTuple):
    """A value that was chosen, and why."""

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' '):<11} {self.value!s:<14} {self.reason}"


class Plan(NamedTuple):
    """A run, its name, and the settings chosen for it."""

    run: Run
    name: str
    settings: RunSettings
    minutes: float | None  # to choose the epochs by, once the images are loaded
    choices: list[Choice]


def plan_run(
    settings: RunSettings,
    recipe: str,
    given: Collection[str],
    out: Path | None,
    minutes: float | None,
    device: torch.device,
    *,
    for_folder: bool,
) -> Plan:
    """Find the run folder, and choose the options that were not `given`: for a folder of images or for minutes.

    A run that exists supplies what it chose at its start.
    """
    if minutes and "epochs" in given:
        raise AAGError("--minutes chooses the epochs; leave out --epochs or --minutes")
    choosable = folder_options(settings) if for_folder else {*LENGTH_OPTIONS} if minutes else set()
    name = run_name(settings, recipe, choosable=choosable, given=given, minutes=minutes)
    run = Run(out or Path("runs") / name)
    choices: list[Choice] = []
    if run.exists():
        settings, minutes = stored_choices(settings, run, choosable - {*given}), None
    elif for_folder:
        settings, choices = choose_for_folder(settings, given, device)
        if device.type == "cpu" and "epochs" not in given:
            minutes = minutes or CPU_MINUTES
    chooses_warmup = settings.train.warmup_epochs is None
    settings = settings.resolve(choose_precision(device, settings.train.precision))
    if device.type == "cuda" and any(each.name == "batch_size" for each in choices):
        batch = fit_batch(settings, device)
        if batch < settings.train.batch_size:
            settings = with_batch_size(settings, batch, given)
            choices = [each for each in choices if each.name != "batch_size"]
            choices.append(Choice("batch_size", batch, "what fits into the GPU's memory"))
    if minutes:
        choices = [each for each in choices if each.name != "epochs"]
        if chooses_warmup:
            settings = settings.replace(warmup_epochs=None)  # it depends on the epochs
    return Plan(run, name, settings, minutes, choices)


def has_image_files(source: str) -> bool:
    """Return whether a source is image files of any size (a folder, a URL or shards), for which options are chosen."""
    if source in DATASETS:
        return False
    return os.path.isdir(os.path.expanduser(source)) or is_remote(source) or is_sharded(source)


def folder_options(settings: RunSettings) -> set[str]:
    """Return the options that may be chosen for a folder. On a CPU they include those that the demo changes."""
    demo, auto = (
        recipe_settings(recipe, settings.data.source, settings.method).options() for recipe in ("demo", "auto")
    )
    return {*FOLDER_OPTIONS, *(name for name, value in demo.items() if value != auto[name])}


def stored_choices(settings: RunSettings, run: Run, options: Collection[str]) -> RunSettings:
    """Return the settings with the options that were chosen when an existing run started."""
    stored, own = flatten(run.settings()), settings.options()
    return settings.replace(**{name: stored[name] for name in options if name in stored and name in own})


def choose_for_folder(
    settings: RunSettings, given: Collection[str], device: torch.device
) -> tuple[RunSettings, list[Choice]]:
    """Choose image size, network, batch size and, on a GPU, epochs for a folder; what the user gave is kept."""
    found = survey(settings.data.source)
    cpu = device.type == "cpu"
    if cpu:  # a narrow network, and small batches: many steps in a short time
        demo = recipe_settings("demo", settings.data.source, settings.method).options()
        settings = settings.replace(**{name: demo[name] for name in folder_options(settings) - {*given}})
    choices = []

    def choose(name: str, value: Any, reason: str) -> None:
        nonlocal settings
        if name not in given:
            settings = settings.replace(**{name: value})
            choices.append(Choice(name, value, reason))

    network = settings.encoder.network
    choose("image_size", *choose_image_size(found.shorter_side, found.count, cpu, network))
    size = settings.data.image_size or 32
    if size >= 128:
        choose("resize_size", round(size * 8 / 7), "the images are stored at this size, and views cropped from it")
    if network.startswith("resnet18"):
        if cpu:
            choose("network", network, f"width {settings.encoder.width}: narrow, for a CPU")
        elif size <= SMALL_STEM_SIZE:
            choose("network", network, f"its stem keeps the resolution of images up to {SMALL_STEM_SIZE} px")
        else:
            choose("network", f"timm/{network}", "its stem halves the resolution twice, for larger images")
    batch = recipe_batch = settings.train.batch_size
    while batch > max(2, found.count // 4):
        batch = max(2, batch // 2)
    if "batch_size" not in given:
        settings = with_batch_size(settings, batch, given)
        reason = "the recipe's" if batch == recipe_batch else f"at least 4 steps for {pluralize(found.count, 'image')}"
        choices.append(Choice("batch_size", batch, reason))
    if "epochs" not in given:
        settings = with_epochs(settings, min(max(IMAGES_SEEN // found.count, 100), 1000))
        if not cpu:
            reason = f"for {found.count:,} images; --minutes M fits a time instead"
            choices.append(Choice("epochs", settings.train.epochs, reason))
    return settings, choices


def choose_image_size(shorter_side: int, count: int, cpu: bool, network: str = "") -> tuple[int, str]:
    """Return the side of the views in pixels, by the median shorter side of the images, and the reason."""
    if network == "amdim":
        return 32, "the only size of the network amdim"
    size = next((size for limit, size in ((48, 32), (96, 64), (192, 128)) if shorter_side < limit), 224)
    reason = f"the images' median shorter side is {shorter_side} px"
    largest = 32 if count > 2000 else 64
    return (largest, f"{reason}; larger views are slow on a CPU") if cpu and size > largest else (size, reason)


def with_batch_size(settings: RunSettings, batch: int, given: Collection[str] = ()) -> RunSettings:
    """Set the batch size, with groups of ghost batch norm that divide it."""
    group = settings.encoder.bn_group_size
    while group and batch % group and "bn_group_size" not in given:
        group //= 2
    return settings.replace(batch_size=batch, bn_group_size=group)


def with_epochs(settings: RunSettings, epochs: int) -> RunSettings:
    """Set the epochs, as a multiple of the rounds, with a warm-up of at most half a round."""
    train = settings.train
    epochs = max(1, epochs // train.rounds) * train.rounds
    warmup = train.warmup_epochs
    if warmup is not None:
        warmup = min(warmup, epochs // train.rounds // 2)
    return settings.replace(epochs=epochs, warmup_epochs=warmup)


def epochs_reason(start: float, epoch: float, minutes: float) -> str:
    """Return why --minutes chose this number of epochs; one is the minimum. start, epoch: seconds."""
    each, length = duration(epoch) if epoch >= 10 else f"{epoch:.2g} s", pluralize(minutes, "minute")
    if start + epoch > 60 * minutes:
        return f"the minimum: one takes {each}, more than {length}"
    return f"fit into {length}, at {each} each"


def epochs_within(
    seconds: float, epoch_seconds: float, evaluation_seconds: float, every: int, *, adapt: bool = True
) -> int:
    """Return the epochs that fit into `seconds`, with evaluations before, after and every `every` epochs (0: none).

    adapt: `every` will be reduced by `evaluation_interval`.
    """
    while True:
        share = evaluation_seconds / every if every else 0.0
        epochs = max(1, min(MAX_EPOCHS, int((seconds - 2 * evaluation_seconds) / (epoch_seconds + share))))
        shorter = evaluation_interval(every, epochs)
        if not adapt or shorter == every:
            return epochs
        every = shorter


def evaluation_interval(every: int, epochs: int) -> int:
    """Return the epochs between evaluations, reduced so that a short run still has ten evaluations."""
    return max(1, min(every, epochs // 10)) if every else 0


def fit_batch(settings: RunSettings, device: torch.device) -> int:
    """Return the batch size, halved until a forward and backward pass fit into 80 % of the GPU's free memory.

    It trains a new encoder with plain PyTorch, which needs more memory than kernels or torch.compile.
    """
    if settings.encoder.is_custom:
        return settings.train.batch_size
    views = len(settings.new_method().augmentations())
    spec = EncoderSpec(**to_json(settings.encoder), image_size=settings.data.image_size or 32)
    return halve_until_it_fits(
        settings.train.batch_size, lambda batch: _fits(spec, settings.train.precision, views * batch, device)
    )


def halve_until_it_fits(batch: int, fits: Callable[[int], bool]) -> int:
    """Halve the batch size until it fits, and return it; raise if even 8 images do not fit."""
    while not fits(batch):
        batch //= 2
        if batch < 8:
            raise AAGError("the GPU has too little memory for a batch of 8; use a smaller --image-size or --network")
    return batch


def _fits(spec: EncoderSpec, precision: str, images: int, device: torch.device) -> bool:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        _try_pass(spec, precision, images, device)
        return torch.cuda.max_memory_allocated(device) - before < 0.8 * free
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()


def _try_pass(spec: EncoderSpec, precision: str, images: int, device: torch.device) -> None:
    """Run a new encoder forward and backward."""
    encoder = build(spec).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels = torch.zeros(images, spec.channels, spec.image_size, spec.image_size, dtype=torch.uint8, device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        embedding = encoder(pixels)[1]
    embedding.float().square().sum().backward()


def slow_network_warning(settings: RunSettings, size: int, device: torch.device) -> str:
    """Return a warning if a network for small images is used on large ones; else an empty string."""
    network = settings.encoder.base_network.removesuffix(SOBEL)
    if size <= SMALL_STEM_SIZE or network not in ("resnet18", "resnet50"):
        return ""
    where = " on a CPU" if device.type == "cpu" else ""
    return (
        f"{network} keeps the full resolution of small images and is slow at {size}×{size}{where}; "
        f"use --network timm/{network}, whose stem halves images twice"
    )
