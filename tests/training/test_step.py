"""Steps with clipped, accumulated and frozen gradients, and a trainer of objects made by hand."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import assert_same, state, stop_after
from torch.nn.utils import clip_grad_norm_

import aag
from aag import AAGError
from aag.data import ImageSet
from aag.errors import KernelsUnsupportedError
from aag.methods import Method, load_method
from aag.nets import Encoder
from aag.runs import Run
from aag.settings import TrainSettings
from aag.training import Callback, Trainer
from aag.training.schedule import learning_rate
from aag.training.step import Step


@pytest.fixture
def images(photographs) -> ImageSet:
    return ImageSet("photographs", photographs[:80])


def make(images: ImageSet, run: Run | None = None, method: str = "simclr", **changes: Any) -> Trainer:
    """Five steps per epoch."""
    settings = TrainSettings(**{"epochs": 1, "batch_size": 16, "lr": 0.5, "schedule": "constant"} | changes)
    encoder = aag.nets.build(aag.nets.EncoderSpec(width=4))
    return Trainer(encoder, load_method(method)(), images, settings, run=run, device="cpu", checkpoint_minutes=0)


def by_hand(trainer: Trainer, accumulate: int = 1, clip: float = 0.0) -> tuple[Encoder, list[float]]:
    """Train a copy with torch's SGD and clipping; return it with the gradient's norm before each step."""
    encoder, method, settings = deepcopy(trainer.encoder), deepcopy(trainer.method), trainer.settings
    trainer.prepare()
    trainer.close()
    optimizer = torch.optim.SGD(
        encoder.parameters(), 1.0, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    steps, norms = trainer.steps_per_epoch, []
    for start in range(0, steps, accumulate):
        window = range(start, start + accumulate)
        optimizer.param_groups[0]["lr"] = learning_rate(settings, window[-1], steps)
        optimizer.zero_grad()
        for step in window:
            (method(encoder, *trainer.batches.batch(0, step)).loss / accumulate).backward()
        norms.append(clip_grad_norm_(encoder.parameters(), clip or torch.inf).item())
        optimizer.step()
    return encoder, norms


def assert_close(encoder: Encoder, expected: Encoder) -> None:
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(encoder.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_gradients_are_clipped_as_torch_clips_them(images, clip):
    trainer = make(images, clip_grad=clip)
    expected, norms = by_hand(trainer, clip=clip)
    assert min(norms) > 0.3  # all are clipped
    assert trainer.fit()
    assert_close(trainer.encoder, expected)


def test_gradients_of_a_window_are_averaged_and_batches_that_fill_none_are_dropped(images):
    """Five batches are two windows of two."""
    trainer = make(images, accumulate=2, lr=0.2)
    expected, norms = by_hand(trainer, accumulate=2)
    assert len(norms) == 2
    assert trainer.fit()
    assert_close(trainer.encoder, expected)
    assert not torch.allclose(trainer.encoder.head.weight, make(images).encoder.head.weight)


def test_a_run_that_accumulates_stops_between_windows_and_resumes(images, tmp_path):
    options = {"accumulate": 2, "clip_grad": 0.5, "epochs": 2}
    whole = make(images, Run(tmp_path / "whole"), **options)
    assert whole.fit()
    run = Run(tmp_path / "run")
    for stop, expected in ((1, (0, 2)), (2, (1, 2))):
        trainer = make(images, run, **options)
        trainer.should_stop = stop_after(stop)
        assert not trainer.fit()
        rest = state(run)[1]
        assert (rest["epoch"], rest["step"]) == expected  # inside an epoch, and after a whole window
    assert make(images, run, **options).fit()
    assert_same(whole.run, run)
    with pytest.raises(AAGError, match=r"batch size 16 times --accumulate 6 exceeds the 80 .* use --batch-size 8"):
        make(images, accumulate=6)


# --- frozen parameters ------------------------------------------------------------------------------------------------


def test_frozen_weights_stay_and_have_no_optimizer_state(images, tmp_path):
    trainer = make(images, Run(tmp_path / "run"), freeze=("backbone.stem", "head.bias"))
    before = {name: value.clone() for name, value in trainer.encoder.named_parameters()}
    assert trainer.fit()
    after = dict(trainer.encoder.named_parameters())
    frozen = {name for name in before if name.startswith("backbone.stem.") or name == "head.bias"}
    assert len(frozen) > 2
    assert {name for name in before if torch.equal(before[name], after[name])} == frozen
    momentum = {name.removeprefix("momentum.") for name in state(trainer.run)[0] if name.startswith("momentum.")}
    assert momentum == before.keys() - frozen


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ("backbone.stm", "--freeze backbone.stm: the encoder has no such parameters; it has backbone.stem, backbone"),
        ("backbone.ste", "no such parameters"),  # a part of a name
        ("", "no such parameters"),
    ],
)
def test_an_unknown_prefix_is_refused_with_what_there_is(images, freeze, message):
    with pytest.raises(AAGError, match=message):
        make(images, freeze=(freeze,))


def test_an_encoder_without_trained_weights_is_refused(images):
    with pytest.raises(AAGError, match="all parameters are frozen"):
        make(images, freeze=("backbone", "head")).fit()


# --- objects made by hand ---------------------------------------------------------------------------------------------


class Events(Callback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_start(self, trainer: Trainer) -> None:
        self.seen.append("start")

    def on_step(self, trainer: Trainer, loss: float) -> None:
        self.seen.append("step")

    def on_epoch(self, trainer: Trainer) -> None:
        self.seen.append(f"epoch {trainer.epoch}")

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        self.seen.append(f"log {row['kind']}")


def test_a_trainer_without_a_run_trains_tells_its_callbacks_and_writes_nothing(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events = Events()
    trainer = make(images)
    trainer.callbacks = (events,)
    before, generator = trainer.encoder.head.weight.clone(), torch.get_rng_state()
    assert trainer.fit()
    assert not torch.equal(trainer.encoder.head.weight, before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert events.seen == ["start", "log start", "epoch 0", *["step"] * 5, "log steps", "log epoch", "epoch 1"]
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_with_a_run_states_its_parts(images, tmp_path):
    run = Run(tmp_path / "mine")
    assert make(images, run, method="moco", epochs=2).fit() is True
    settings = run.settings()
    assert settings["data"] == {"source": "photographs", "image_size": 32}
    assert settings["method"]["name"] == "moco"
    assert settings["encoder"]["width"] == 4
    assert (settings["train"]["epochs"], settings["train"]["precision"]) == (2, "fp32")
    assert run.name == "mine"
    with pytest.raises(AAGError, match=r"other settings \(.*method moco there, simclr here"):
        make(images, run, epochs=2).fit()


def test_a_method_that_draws_its_layers_starts_by_the_seed(images):
    class Drawing(Method):
        def setup(self, context):
            self.layer = torch.nn.Linear(4, 4)

    weights = []
    for seed in (0, 0, 1):
        method = Drawing()
        Trainer(aag.nets.build(aag.nets.EncoderSpec(width=4)), method, images, TrainSettings(batch_size=8, seed=seed))
        weights.append(method.layer.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_trainer_that_was_stopped_goes_on(images):
    whole, stopped = make(images, epochs=2), make(images, epochs=2)
    events = Events()
    stopped.callbacks, stopped.should_stop = (events,), stop_after(2)
    assert not stopped.fit()
    stopped.should_stop = lambda: False
    assert whole.fit()
    assert stopped.fit()
    expected = whole.step.state()
    assert all(torch.equal(value, expected[name]) for name, value in stopped.step.state().items())
    assert events.seen.count("epoch 0") == 1


def test_one_process_does_not_hash_images_to_compare_them(images, monkeypatch):
    monkeypatch.setattr(ImageSet, "fingerprint", lambda images: pytest.fail("hashed"))
    assert make(images).fit()


def test_wrong_parts_are_refused(images, photographs):
    encoder, method, settings = make(images).encoder, make(images).method, TrainSettings(batch_size=16)
    gray = ImageSet("gray", photographs[:80, :1].contiguous())
    small = ImageSet("small", photographs[:80, :, :16, :16].contiguous())
    for parts, message in (
        ((encoder.backbone, method, images), "Trainer takes encoder of type Encoder, not ResNet"),
        ((encoder, "simclr", images), "Trainer takes method of type Method, not str"),
        ((encoder, method, photographs), "Trainer takes images of type ImageSet, not Tensor"),
        ((encoder, method, images, {"epochs": 1}), "Trainer takes settings of type TrainSettings, not dict"),
        ((encoder, method, gray, settings), "training takes images of 3 channels; gray has 1"),
        ((encoder, method, small, settings), "built for images of 32×32; those of small are 16×16"),
    ):
        with pytest.raises(AAGError, match=message):
            Trainer(*parts)
    with pytest.raises(AAGError, match=r"a callback is an object of a subclass of aag.training.Callback, not <class"):
        Trainer(encoder, method, images, callbacks=[Callback])
    with pytest.raises(AAGError, match="Trainer takes run of type Run, not str"):
        make(images, "runs/mine")
    for options, message in (
        ({"keep_checkpoints": 0}, "keep_checkpoints must be at least 1"),  # it would delete every checkpoint
        ({"checkpoint_minutes": "1"}, "checkpoint_minutes must be a number"),
        ({"on_nan": "Retry"}, "unknown on nan 'Retry'; did you mean retry"),
        ({"images_on": "gpu"}, "unknown images on 'gpu'; known: auto, device, host"),
    ):
        with pytest.raises(AAGError, match=message):
            Trainer(encoder, method, images, settings, **options)


@pytest.mark.parametrize(
    "error", [KernelsUnsupportedError("the encoder runs more than once per step"), RuntimeError("x")]
)
def test_what_only_the_kernels_cannot_do_falls_back(images, monkeypatch, error):
    def fail(step: Step, make_batch: object) -> None:
        raise error

    monkeypatch.setattr(Step, "warm_up", fail)
    trainer = make(images)
    trainer.runtime = replace(trainer.runtime, kernels=True, fused_step=True)
    monkeypatch.setattr(Step, "_fuse_encoders", lambda step: [])
    trainer.prepare()
    trainer.warm_up()
    trainer.close()
    assert trainer.runtime.is_plain
    assert str(error) in trainer.runtime.reason


def test_a_mistake_in_the_method_is_raised_and_not_worked_around(images, monkeypatch):
    def fail(step: Step, make_batch: object) -> None:
        raise AAGError("wrong loss")

    monkeypatch.setattr(Step, "warm_up", fail)
    trainer = make(images)
    trainer.runtime = replace(trainer.runtime, compile=True)
    trainer.prepare()
    with pytest.raises(AAGError, match="wrong loss"):
        trainer.warm_up()
    trainer.close()
