"""Settings: frozen dataclasses that validate their fields and convert to JSON.

A field's annotation declares its type, choices (`Literal`) and range (`Annotated[..., Range(...)]`). The command line,
its help and validation read these annotations. Nothing here imports torch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from operator import ge, gt, le, lt
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from aag.errors import AAGError, describe, unknown_name
from aag.text import pluralize

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The values that a numeric setting accepts."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        tests = {"at_least": ge, "above": gt, "at_most": le, "below": lt}
        return all(test(value, vars(self)[name]) for name, test in tests.items() if vars(self)[name] is not None)

    def __str__(self) -> str:
        limits = (f"{name.replace('_', ' ')} {limit:g}" for name, limit in vars(self).items() if limit is not None)
        return " and ".join(limits)


class AddedLater:
    """Marks an option that older records do not have. Its default must be their behaviour.

    The default is not written to JSON, so that old records equal new runs with the same settings.
    """


Temperature = Annotated[float, Range(at_least=0.001, at_most=1000)]
Momentum = Annotated[float, Range(at_least=0, below=1)]
Precision = Literal["auto", "bf16", "fp32"]
Seed = Annotated[int, Range(at_least=0, below=2**63)]


class Settings:
    """Base of all settings. Building one with a value that a field does not accept raises an AAGError."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TrainSettings(Settings):
    """How to train, whatever the method, the network and the images."""

    epochs: Annotated[int, Range(at_least=1, at_most=10**7)] = 200
    """Passes over the images."""
    batch_size: Annotated[int, Range(at_least=2)] = 128
    """Images per step; each is seen in every view."""
    lr: Annotated[float, Range(at_least=0, at_most=1e6)] = 0.03
    """Learning rate for a batch of 128. Scaled by batch size / 128 (times --accumulate)."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """cosine: to zero over the run; step: drops, see --decay-at; or constant."""
    decay_at: tuple[float, ...] = (0.6, 0.8)
    """Fractions of the epochs after which the learning rate drops (--schedule step)."""
    decay_by: float | tuple[float, ...] = 0.1
    """Factor of each drop, or one factor per drop: 0.1 0.5 is a tenth, then half of that (--schedule step)."""
    rounds: Annotated[int, Range(at_least=1)] = 1
    """Rounds that the epochs are divided into; the learning rate schedule restarts in each."""
    warmup_epochs: Annotated[int, Range(at_least=0)] | None = None
    """Epochs of linear warm-up. Default: 10 (at most half of a round) above a batch of 256 or with LARS, else none."""
    optimizer: Literal["sgd", "lars", "adam"] = "sgd"
    """sgd; lars: SGD with a step size per layer, for large batches; or adam."""
    momentum: Momentum = 0.9
    """Momentum of SGD and LARS; β₁ of Adam."""
    nesterov: bool = False
    """Nesterov momentum (--optimizer sgd)."""
    weight_decay: Annotated[float, Range(at_least=0)] = 5e-4
    """Weight decay on all parameters; LARS excludes biases and batch norms."""
    clip_grad: Annotated[float, Range(at_least=0)] = 0.0
    """Largest norm of the gradient; larger ones are scaled down to it. 0: no clipping."""
    accumulate: Annotated[int, Range(at_least=1)] = 1
    """Batches whose gradients are averaged before each optimizer step. Negatives come from one batch only."""
    freeze: tuple[str, ...] = ()
    """Encoder parameters that are not trained, by name or part, e.g. backbone.stem backbone.blocks.0"""
    start_from: str | None = None
    """Run folder or encoder file whose weights to start from."""
    pretrained: str | None = None
    """Weights of a timm network to start from: timm (those it publishes), a weight file (.safetensors, .pth, .bin) or
    hf-hub:OWNER/NAME. A network name with a tag, as in resnet18.a1_in1k, means timm."""
    zero_init_residual: Annotated[bool, AddedLater] = False
    """Start each residual block as the identity: the scale of its last batch norm is 0 (our ResNets)."""
    low_res_size: Annotated[Annotated[int, Range(at_least=8)] | None, AddedLater] = None
    """Side in pixels of the views in the first epochs, below --image-size to save time."""
    low_res_until: Annotated[float, Range(above=0, below=1), AddedLater] = 0.5
    """Fraction of the epochs that have views of --low-res-size."""
    seed: Seed = 0
    """Seed of the weights, the order of the images and all augmentations."""
    precision: Precision = "auto"
    """Precision of the network. auto: bf16 on a GPU that supports it, else fp32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained and self.start_from:
            raise AAGError("--pretrained and --from both give the weights to start from; leave one out")
        if self.zero_init_residual and (self.pretrained or self.start_from):
            raise AAGError("--zero-init-residual would change the weights to start from; leave it out")
        if self.low_res_size is None and self.low_res_until != type(self).low_res_until:
            raise AAGError("--low-res-until has no effect without --low-res-size; leave it out")
        if self.low_res_size and not 0 < self.low_res_epochs < self.epochs:
            raise AAGError(
                f"--low-res-until {self.low_res_until:g} is {self.low_res_epochs} of "
                f"{pluralize(self.epochs, 'epoch')}; train for more, or leave out --low-res-size"
            )
        self._check_decay()
        if self.epochs % self.rounds:
            nearest = self.rounds * max(1, round(self.epochs / self.rounds))
            raise AAGError(f"{self.epochs} epochs cannot be divided into {self.rounds} rounds; use --epochs {nearest}")
        if self.warmup_epochs and self.warmup_epochs >= self.round_epochs:
            raise AAGError(
                f"a warm-up of {pluralize(self.warmup_epochs, 'epoch')} (the recipe's, if you set none) leaves none of "
                f"{pluralize(self.round_epochs, 'epoch')} to train; use --warmup-epochs {self.round_epochs // 2}"
            )

    def _check_decay(self) -> None:
        if any(not 0 < fraction <= 1 for fraction in self.decay_at):
            raise AAGError(
                f"--decay-at takes fractions of the epochs, above 0 and at most 1, not {_list(self.decay_at)}"
            )
        if isinstance(self.decay_by, tuple) and len(self.decay_by) == 1:
            object.__setattr__(self, "decay_by", self.decay_by[0])  # the same settings, however they are written
        given = self.decay_by if isinstance(self.decay_by, tuple) else (self.decay_by,)
        if any(not 0 <= factor < math.inf for factor in given):
            raise AAGError(f"--decay-by takes factors of at least 0, not {_list(given)}")
        if len(self.decay_factors) != len(self.decay_at):
            raise AAGError(
                f"--decay-by has {pluralize(len(given), 'factor')} for {pluralize(len(self.decay_at), 'drop')} "
                f"(--decay-at {_list(self.decay_at)}); give one factor, or one per drop"
            )

    @property
    def decay_factors(self) -> tuple[float, ...]:
        """The factor of each drop."""
        return self.decay_by if isinstance(self.decay_by, tuple) else (self.decay_by,) * len(self.decay_at)

    @property
    def round_epochs(self) -> int:
        return self.epochs // self.rounds

    @property
    def low_res_epochs(self) -> int:
        """The number of epochs, from the first, that have smaller views."""
        return round(self.low_res_until * self.epochs) if self.low_res_size else 0

    def resolve(self, precision: Precision = "auto") -> Self:
        """Replace automatic values; `precision` is what the device runs where none is chosen."""
        warmup = self.warmup_epochs
        if warmup is None:
            # SimCLR's authors, for whom LARS is here, always warm up.
            warmup = min(10, self.round_epochs // 2) if self.batch_size > 256 or self.optimizer == "lars" else 0
        return replace(self, warmup_epochs=warmup, precision=precision if self.precision == "auto" else self.precision)


def _list(numbers: tuple[float, ...]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


# --- fields -----------------------------------------------------------------------------------------------------------


def option(name: str) -> str:
    """Return a setting's option on the command line: --batch-size for batch_size."""
    return f"--{name.replace('_', '-')}"


def check_fields(settings: Any, spell: Callable[[str], str] = option) -> None:
    """Raise an AAGError for a value that its field does not accept. `spell` formats the field's name in the message."""
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, list):
            value = tuple(value)
            object.__setattr__(settings, field.name, value)
        _check(field.name, value, hints[field.name], spell)


def check_value(name: str, value: Any, annotation: Any) -> Any:
    """Return a function's argument, with NumPy numbers as Python's; raise if its annotation does not accept it."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)
    elif isinstance(value, Real) and not isinstance(value, bool):
        value = float(value)
    _check(name, value, annotation, str)
    return value


def _check(name: str, value: Any, annotation: Any, spell: Callable[[str], str]) -> None:
    if not _accepts(annotation, value):
        choices = get_args(annotation) if get_origin(annotation) is Literal else None
        if choices and isinstance(value, str):
            raise unknown_name(name.replace("_", " "), value, choices)
        raise AAGError(f"{spell(name)} must be {describe_type(annotation)}, not {describe(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise AAGError(f"{spell(name)} must be a finite number, not {value}")
    for limits in _ranges(annotation):
        if value is not None and value not in limits:
            given = f"{value:g}" if abs(value) < 1e300 else describe(value)  # some integers are no float
            raise AAGError(f"{spell(name)} must be {limits}, not {given}")
    if isinstance(value, int) and abs(value) > 2**63:  # as a float or a tensor's size it would fail
        raise AAGError(f"{spell(name)} must be a number below 2^63, not {describe(value)}")


def _accepts(annotation: Any, value: Any) -> bool:
    """Return whether a value has the annotated type. Ranges are checked separately."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _accepts(args[0], value)
    if origin is Literal:
        return type(value) in {type(arg) for arg in args} and value in args
    if origin in (Union, UnionType):
        return any(_accepts(arg, value) for arg in args)
    if origin is tuple:
        return isinstance(value, tuple) and all(_accepts(args[0], each) for each in value)
    if isinstance(value, bool):  # an int to isinstance
        return annotation is bool
    if annotation is float:
        return isinstance(value, int | float)
    return annotation is Any or isinstance(value, annotation)


def _ranges(annotation: Any) -> list[Range]:
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return [*(each for each in marks if isinstance(each, Range)), *_ranges(inner)]
    if get_origin(annotation) in (Union, UnionType):
        return [limits for arg in get_args(annotation) for limits in _ranges(arg)]
    return []


def describe_type(annotation: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "nothing"}
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_type(args[0])
    if origin in (Union, UnionType):
        return " or ".join(describe_type(arg) for arg in args if arg is not type(None))
    if origin is tuple:
        return f"a list, each {describe_type(args[0])}"
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    return names.get(annotation, str(annotation))


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON has them: lists for tuples, strings for paths; see `AddedLater`."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        return list(value) if isinstance(value, tuple) else value

    hints = get_type_hints(type(settings), include_extras=True)
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    omitted = {
        field.name
        for field in fields(settings)
        if AddedLater in getattr(hints[field.name], "__metadata__", ()) and values[field.name] == field.default
    }
    return {name: plain(value) for name, value in values.items() if name not in omitted}


def from_json(cls: type[T], values: Any) -> T:
    """Build a settings dataclass from JSON; fields that are missing keep their defaults, unknown ones are an error."""
    if not isinstance(values, Mapping):
        raise AAGError(f"expected settings by name, not {describe(values)}")
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    if unexpected := sorted(set(values) - known):
        raise AAGError(f"unknown settings {', '.join(unexpected)} (from another version?)")
    return cls(**values)
