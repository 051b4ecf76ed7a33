"""`train`: from images, a method and a network, by name or as objects, to a run with its encoder."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from torch import nn

from aag import data, nets
from aag.data import TrainTestSets
from aag.data.early import load_early
from aag.distributed import check_same, first_per_machine, is_main, on_main, process_group, read_launch
from aag.errors import AAGError, describe
from aag.evaluate.health import verdict
from aag.methods import Method, register_method
from aag.nets import Encoder
from aag.nets.pretrained import Normalisation
from aag.runs import Run, RunSummary, summarize
from aag.settings import Range, Settings, option
from aag.text import pluralize
from aag.training.callbacks import KNN, Callback, Health, ListSkipped
from aag.training.checkpoints import Checkpoints
from aag.training.checks import CheckpointMinutes, ImagesOn, KeepCheckpoints, OnNaN, check_same_images
from aag.training.defaults import (
    Choice,
    Plan,
    epochs_reason,
    epochs_within,
    evaluation_interval,
    has_image_files,
    plan_run,
    slow_network_warning,
    with_epochs,
)
from aag.training.deterministic import prepare_deterministic
from aag.training.encoders import build_encoder, check_encoder
from aag.training.recipes import check_unused, choose_recipe, find_recipe, recipe_settings
from aag.training.runtime import choose_threads, find_device
from aag.training.settings import RunSettings
from aag.training.speed import measure_speed
from aag.training.trackers import TrackerName, make_trackers
from aag.training.trainer import Trainer


@dataclass(frozen=True)
class Execution(Settings):
    """Where a run is computed, watched and saved. Only --on-nan retry can change the results."""

    out: Path | None = None
    """Run folder. Default: runs/ and a name made from the settings."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Triton kernels (or torch.compile, where they do not support a network) and CUDA graphs. auto: on for a GPU."""
    data_root: Path | None = None
    """Where data sets are stored. Default: $AAG_DATA, else the cache folder."""
    knn_every: Annotated[int, Range(at_least=0)] = 5
    """Epochs between evaluations (kNN with labels, health without); 0: only before and after training. They never
    influence training."""
    minutes: Annotated[float, Range(above=0)] | None = None
    """Minutes to train for: measures the speed, and chooses as many epochs as fit, with their evaluations."""
    checkpoint_minutes: CheckpointMinutes = 1.0
    """Minutes between checkpoints; one is also written at the end and on Ctrl-C."""
    keep_checkpoints: KeepCheckpoints = 2
    """Number of checkpoints to keep. If the newest is damaged, the run resumes from the one before it."""
    on_nan: OnNaN = "stop"
    """What to do if the loss is NaN or infinite. retry: resume once from the last checkpoint at half the learning
    rate."""
    deterministic: bool = False
    """Make runs with the same seed equal bit by bit on one GPU; slower. CPU runs always are, with the same number of
    threads."""
    images_on: ImagesOn = "auto"
    """device: images are copied to the GPU before training; host: read ahead from memory or disk while training.
    auto: host where they take more than a third of the GPU's free memory."""
    track: TrackerName | None = None
    """Experiment tracker to log to as well: tensorboard (in the run folder), wandb or trackio."""

    @classmethod
    def for_recipe(cls, recipe: str, settings: RunSettings, *, knn_every: int | None = None, **options: Any) -> Self:
        """Return how to execute a run, with the recipe's `knn_every` if None is given."""
        name, method = choose_recipe(recipe, settings.data.source, settings.method)
        return cls(knn_every=find_recipe(name, method).knn_every if knn_every is None else knn_every, **options)


@dataclass(frozen=True)
class TrainResult:
    """The result of training: the run, its encoder and its numbers."""

    run: Run
    encoder: Encoder = field(repr=False)
    summary: RunSummary
    complete: bool  # False: stopped on request, and saved
    verdict: str = ""  # one sentence on the encoder's label-free health, and what to do


def train(
    images: Any = "sample",
    *,
    method: str | Method | type[Method] = "aag",
    network: str | nn.Module | None = None,
    recipe: str = "auto",
    out: str | Path | None = None,
    device: str | torch.device = "auto",
    compile: Literal["auto", "on", "off"] = "auto",
    data_root: str | Path | None = None,
    knn_every: int | None = None,
    minutes: float | None = None,
    checkpoint_minutes: float = 1.0,
    keep_checkpoints: int = 2,
    on_nan: Literal["stop", "retry"] = "stop",
    deterministic: bool = False,
    images_on: Literal["auto", "device", "host"] = "auto",
    track: TrackerName | None = None,
    callbacks: Iterable[Callback] = (),
    should_stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> TrainResult:
    """Train an encoder without labels, or resume the run in `out`.

    `images`: a known data set, a folder, an .npz, a uint8 tensor or array, an `ImageSet`, or a pair (train, test) of
    these. `method`: a name, `file.py:Class`, a subclass of `Method`, or an object of one, with its own settings.
    `network`: a name, or any module that maps images to features [B, F]. `minutes`: choose as many epochs as fit.
    `track`: an experiment tracker. `options`: any option of `aag train`, such as epochs=100 or temperature=0.2. For a
    folder, image size, network, batch size and epochs are chosen where none are given. Processes that torchrun started
    train together; each calls `callbacks` and `should_stop`.
    """
    sets = None
    if not isinstance(images, str | Path):
        chosen = {name: options[name] for name in ("labels", "holdout") if name in options}
        size = options.get("resize_size") or options.get("image_size")
        sets = data.as_image_sets(images, image_size=size, **chosen)
    source = str(images) if sets is None else sets[0].name
    own_method = method if isinstance(method, Method) else None
    cls = type(method) if isinstance(method, Method) else method
    settings = recipe_settings(recipe, source, cls if isinstance(cls, str) else register_method(cls))
    if "data" in options:
        raise AAGError("data is given as the first argument; leave data= out")
    if network is not None:
        if not isinstance(network, str | nn.Module):
            raise AAGError(f"network is a name or an nn.Module object, not {describe(network)}")
        options["network"] = f"custom:{type(network).__name__}" if isinstance(network, nn.Module) else network
    given = set(options)
    if own_method:
        method_options = {field.name for field in fields(own_method.settings)}
        if misplaced := sorted(method_options & given):
            raise AAGError(f"method= is an object with its own settings; set {', '.join(misplaced)} there")
        settings = replace(settings, method_settings=own_method.settings)
        given |= method_options
    if knn_every is not None:
        given.add("knn_every")
    settings = settings.replace(
        **{key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    )
    execution = Execution.for_recipe(
        recipe,
        settings,
        knn_every=knn_every,
        out=Path(out) if out else None,
        device=str(device),
        compile=compile,
        data_root=Path(data_root) if data_root else None,
        minutes=minutes,
        checkpoint_minutes=checkpoint_minutes,
        keep_checkpoints=keep_checkpoints,
        on_nan=on_nan,
        deterministic=deterministic,
        images_on=images_on,
        track=track,
    )
    return train_run(
        settings,
        execution,
        recipe=recipe,
        given=given,
        sets=sets,
        method=own_method,
        backbone=network if isinstance(network, nn.Module) else None,
        callbacks=callbacks,
        should_stop=should_stop,
    )


def train_run(
    settings: RunSettings,
    execution: Execution,
    *,
    recipe: str = "auto",
    given: Collection[str] | None = None,
    sets: TrainTestSets | None = None,
    method: Method | None = None,
    backbone: nn.Module | None = None,
    callbacks: Iterable[Callback] = (),
    should_stop: Callable[[], bool] = lambda: False,
    on_loaded: Callable[[TrainTestSets], None] = lambda sets: None,
    decoding_progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Train by settings: resolve them, check the run folder, load the images if `sets` is None, and train.

    `given`: names of the options that the user chose. With the recipe auto on a folder, the others are chosen for it;
    None: choose none. `say` prints the choices and warnings. `decoding_progress(done, total)` is called while files of
    a folder are decoded. Processes that torchrun started train together.
    """
    check_unused(settings, recipe)
    trackers = make_trackers(execution.track)  # first: a missing package is said before anything slow
    if execution.deterministic:
        prepare_deterministic()  # before CUDA starts
    device = find_device(execution.device)
    with process_group(device), ExitStack() as stack:
        check_same(_command_options(settings, recipe, execution), "start all with the same command")
        for_folder = given is not None and recipe == "auto" and sets is None and has_image_files(settings.data.source)
        given = given or ()
        plan = on_main(
            lambda: plan_run(settings, recipe, given, execution.out, execution.minutes, device, for_folder=for_folder)
        )
        on_main(lambda: _check_plan(plan, sets, backbone))  # before anything slow
        for line in describe_choices(plan.choices):
            say(line)
        run, settings, every = plan.run, plan.settings, execution.knn_every
        adapt = bool(for_folder or execution.minutes) and "knn_every" not in given
        choose_threads(device)  # before other cores decode
        progress = decoding_progress if is_main() else None
        sets = sets or first_per_machine(lambda: _load(plan.settings, execution, progress, stack))
        if not settings.data.resize_size:
            settings = settings.replace(image_size=sets[0].image_size)  # which only the images can tell
        check_same_images(*sets)
        on_loaded(sets)
        if backbone is None and (slow := slow_network_warning(settings, settings.data.image_size or 0, device)):
            say(f"warning: {slow}")
        runtime: dict[str, Any] = {"device": device, "compile": execution.compile, "images_on": execution.images_on}
        if plan.minutes:
            say(f"         measuring the speed, for {pluralize(plan.minutes, 'minute')} of training …")
            settings, choice = _choose_epochs(
                settings, sets, plan.minutes, every, adapt, method=method, backbone=backbone, **runtime
            )
            say(describe_choices([*plan.choices, choice])[-1])
        if adapt:
            every = evaluation_interval(every, settings.train.epochs)
        encoder = build_encoder(settings, sets[0], backbone, on_main(lambda: _stored_normalisation(run, settings)))
        trainer = Trainer(
            encoder,
            method or settings.new_method(),
            sets[0],
            settings.train,
            run=run,
            run_name=plan.name,
            run_settings=settings.to_json(),
            callbacks=(*_logging_callbacks(sets, every), *(trackers if is_main() else ()), *callbacks),
            checkpoint_minutes=execution.checkpoint_minutes,
            keep_checkpoints=execution.keep_checkpoints,
            on_nan=execution.on_nan,
            deterministic=execution.deterministic,
            should_stop=should_stop,
            **runtime,
        )
        complete = trainer.fit()
        summary, health = on_main(lambda: (summarize(run, settings.train.epochs), verdict(run.metrics())))
        return TrainResult(run, encoder, summary, complete, health)


def check_run(run: Run, settings: RunSettings) -> None:
    """Raise unless the settings may be trained in this run folder."""
    known = settings.data.image_size or (run.settings()["data"]["image_size"] if run.exists() else None)
    run.check(settings.replace(image_size=known).to_json())


def _check_plan(plan: Plan, sets: TrainTestSets | None, backbone: nn.Module | None) -> None:
    """Raise if a run cannot be trained as planned. `sets`: None where the images are loaded later."""
    check_run(plan.run, plan.settings)
    if backbone is None and not plan.run.exists():
        check_encoder(plan.settings)
    if plan.settings.data.start_early and sets:
        raise AAGError("start_early is for images that are decoded from files; leave it out")
    if plan.settings.data.start_early and plan.minutes:
        raise AAGError("--minutes cannot measure the speed while --start-early decodes images; give --epochs")


def _command_options(settings: RunSettings, recipe: str, execution: Execution) -> dict[str, Any]:
    """Return the options that all processes must share. Devices and folders may differ; only the main one has a run."""
    options = {"recipe": recipe, **settings.options(), **vars(execution)}
    return {option(name): value for name, value in options.items() if name not in ("out", "device", "data_root")}


def describe_choices(choices: Sequence[Choice]) -> list[str]:
    """Return a line to print for each choice."""
    return [f"{'' if number else 'chosen':<9}{choice}" for number, choice in enumerate(choices)]


def _load(
    settings: RunSettings, execution: Execution, progress: Callable[[int, int], None] | None, stack: ExitStack
) -> TrainTestSets:
    """Load the images of a run. With --start-early, `stack` ends their decoding."""
    if not settings.data.start_early:
        return load_sets(settings, execution.data_root, progress)
    images = load_early(
        settings.data.source,
        root=execution.data_root,
        image_size=settings.data.source_size,
        follow=read_launch().local_rank > 0,
        progress=progress,
    )
    assert images.decoding is not None
    stack.callback(images.decoding.close)
    return images, None


def _choose_epochs(
    settings: RunSettings, sets: TrainTestSets, minutes: float, every: int, adapt: bool, **parts: Any
) -> tuple[RunSettings, Choice]:
    """Measure the speed, and set as many epochs as fit into `minutes`, with one evaluation per `every` epochs.

    adapt: a short run has more evaluations, see `epochs_within`. parts: arguments of `measure_speed`.
    """
    measured = measure_speed(settings, sets, seconds=min(10.0, max(1.0, 3 * minutes)), **parts)
    speed = on_main(lambda: measured)
    epochs = epochs_within(60 * minutes - speed.start, speed.epoch, speed.evaluation, every, adapt=adapt)
    settings = with_epochs(settings, epochs).resolve(settings.train.precision)
    return settings, Choice("epochs", settings.train.epochs, epochs_reason(speed.start, speed.epoch, minutes))


def _stored_normalisation(run: Run, settings: RunSettings) -> Normalisation | None:
    """Return the mean and std of a resumed run that started from pretrained weights; else None."""
    if not settings.train.pretrained or not run.checkpoints():
        return None
    try:
        spec = nets.read_spec(run.encoder_file)
    except AAGError:  # missing or damaged; training writes it again
        stored = Checkpoints(run).load()
        if stored is None:
            return None
        spec = nets.EncoderSpec.from_json(stored.state["spec"])
    return spec.mean, spec.std


def _logging_callbacks(sets: TrainTestSets, every: int) -> tuple[Callback, ...]:
    """Return the callbacks that every run has; `every`: epochs between evaluations."""
    return ListSkipped(*sets), KNN(*sets, every), Health(every)


def load_sets(
    settings: RunSettings, root: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> TrainTestSets:
    """Load the train and the test images of a run. `progress(done, total)` is called while files are decoded."""
    chosen = settings.data
    return data.load_pair(
        chosen.source,
        root=root,
        image_size=chosen.source_size,
        labels=chosen.labels,
        holdout=chosen.holdout,
        progress=progress,
    )
