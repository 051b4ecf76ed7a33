"""The base class of methods: their settings, augmentations, loss and state."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from aag.augment import Augmentation, BasicAugment
from aag.data.datasets import Dataset
from aag.distributed import gather_batch, is_distributed
from aag.errors import AAGError
from aag.nets import Encoder
from aag.settings import AddedLater, Range, Settings, TrainSettings, option
from aag.text import describe_loss, pluralize

Embeddings = Tensor | tuple[Tensor, ...]  # dim 1 of every tensor is the batch: [views, n, …]
Extract = Callable[[], tuple[Tensor, Tensor]]  # returns features and embeddings, see `Method.before_epoch`
BasicPreset = Literal["paper", "isif", "simclr", "crop", "amdim"]


@dataclass(frozen=True)
class MethodSettings(Settings):
    """A method's own settings. A method's file subclasses this; each field becomes an option of `aag train`."""

    basic: BasicPreset = "paper"
    """Preset of the basic augmentation. paper: AAG's; isif, simclr, amdim: these methods'; crop: crop and flip."""
    flip: bool = True
    """Flip images left to right at random. Turn off for digits and text."""
    min_crop: Annotated[Annotated[float, Range(above=0, at_most=1)] | None, AddedLater] = None
    """Smallest crop of a basic view, as a fraction of the image's area. Default: the preset's."""
    jitter_strength: Annotated[Annotated[float, Range(at_least=0, at_most=2.5)] | None, AddedLater] = None
    """SimCLR's strength s of the colour jitter in basic views: brightness, contrast and saturation by up to 0.8 s, hue
    by 0.2 s. Default: the preset's; 0.5 in paper and simclr."""
    grayscale: Annotated[Annotated[float, Range(at_least=0, at_most=1)] | None, AddedLater] = None
    """Probability that a basic view is grey. Default: the preset's; 0.2 in paper and simclr."""
    blur: Annotated[Annotated[float, Range(at_least=0, at_most=1)] | None, AddedLater] = None
    """Probability that a basic view is blurred. Default: the preset's; 0.5 in paper, 0 in the others."""
    blur_kernel: Annotated[Annotated[int, Range(at_least=1)] | None, AddedLater] = None
    """Width of the blur's kernel in basic views, in pixels, odd. Default: 3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blur_kernel is not None and self.blur_kernel % 2 == 0:
            raise AAGError(f"--blur-kernel must be odd, not {self.blur_kernel}; use {self.blur_kernel + 1}")
        augmentation = self.basic_augmentation()
        for name, step in (("jitter_strength", "jitter"), ("blur_kernel", "blur")):
            if getattr(self, name) is not None and not getattr(augmentation, step):
                cause = "--blur 0" if step == "blur" and self.blur == 0 else f"--basic {self.basic}"
                raise AAGError(f"{option(name)} has no effect with {cause}; leave it out")

    def resolve(self, dataset: Dataset | None) -> Self:
        """Return the settings with `auto` replaced by the values for a data set; None: the user's own images."""
        return self

    def basic_augmentation(self) -> BasicAugment:
        """Return the augmentation of a basic view: the preset with the changes that the settings make."""
        changes: dict[str, object] = {"flip": 0.5 if self.flip else 0.0}
        if self.min_crop is not None:
            changes["scale"] = (self.min_crop, 1.0)
        if self.jitter_strength is not None:
            amount = 0.8 * self.jitter_strength
            changes |= {"brightness": amount, "contrast": amount, "saturation": amount, "hue": amount / 4}
        for name, step in (("grayscale", "gray"), ("blur", "blur"), ("blur_kernel", "blur_kernel")):
            if getattr(self, name) is not None:
                changes[step] = getattr(self, name)
        return BasicAugment.preset(self.basic, **changes)


@dataclass(frozen=True)
class MultiViewSettings(MethodSettings):
    """Settings of methods that pass several views through the encoder."""

    forward: Literal["joint", "per-view"] = "joint"
    """joint: all views in one forward pass, batch norm sees them together; per-view: one pass each."""


@dataclass(frozen=True)
class Recipe:
    """A named set of settings: what differs from the defaults of training, network and method."""

    about: str  # one line, for `aag recipes` and the documentation
    expect: str  # one line: the accuracy in the paper and here
    options: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from the defaults
    demo: Mapping[str, Any] = field(default_factory=dict)  # further changes for the bundled sample on a CPU
    knn_every: int = 5  # epochs between kNN evaluations


class MethodContext(NamedTuple):
    """The arguments of `Method.setup`."""

    encoder: Encoder  # to be trained; still on the CPU
    images: int  # number of training images
    train: TrainSettings


class StepOutput(NamedTuple):
    """The result of `Method.loss` for a batch."""

    loss: Tensor  # scalar, to be minimized
    log: tuple[Tensor, ...] = ()  # scalars, in the order of `Method.log_names`
    carry: tuple[Tensor, ...] = ()  # handed to `after_step`


class Method(nn.Module):
    """A self-supervised method: subclass it in one file, with its settings, its recipe and its reference.

    Its buffers and parameters are its state: they are moved to the device and saved in checkpoints. Change them in
    place only, because a step may be replayed as a CUDA graph. For the same reason, no Python branch in a step may
    depend on a tensor's value, and random numbers are counter-based (`aag.rng`). Parameters that require a gradient are
    trained together with the encoder's.
    """

    name: ClassVar[str]
    recipes: ClassVar[Mapping[str, Recipe]]  # the first is the default
    settings_type: ClassVar[type[MethodSettings]] = MethodSettings
    log_names: tuple[str, ...] = ()  # scalars that are logged besides the loss
    settings: Any  # of settings_type

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        if not hasattr(cls, "recipes"):  # a subclass of another method inherits them
            about = ((cls.__doc__ or "").strip() or cls.name).splitlines()[0]
            cls.recipes = {cls.name: Recipe(about, "no results yet")}

    def __init__(self, settings: MethodSettings | None = None) -> None:
        super().__init__()
        self.settings = self.settings_type() if settings is None else settings
        if not isinstance(self.settings, self.settings_type):
            found = type(settings).__name__
            raise AAGError(f"{type(self).__name__} takes {self.settings_type.__name__}, not {found}")

    def augmentations(self) -> tuple[Augmentation, ...]:
        """Return one augmentation per view; two basic ones unless overridden."""
        return (self.settings.basic_augmentation(),) * 2

    def setup(self, context: MethodContext) -> None:
        """Create the state that depends on encoder, images or training settings. Called once, on the CPU."""

    def forward(self, encoder: Encoder, views: Tensor, index: Tensor) -> StepOutput:
        """Compute the loss of views uint8 [V, n, 3, H, W] of the images with these indices, int64 [n].

        `embed` runs under autocast if training does. `loss` never does, and gets embeddings in the network's precision.
        With several processes, `embed` gets this process's images; `loss` and `after_step` get those of all processes.
        """
        embeddings = self.embed(encoder, self.prepare_views(views, index))
        with torch.autocast(views.device.type, enabled=False):
            if is_distributed():
                return self.distributed_loss(embeddings, index)
            return self.loss(embeddings, index)

    def prepare_views(self, views: Tensor, index: Tensor) -> Tensor:
        """Return the views after a change that all views of an image share, such as one flip.

        `augmentations` draw each view separately.
        """
        return views

    def embed(self, encoder: Encoder, views: Tensor) -> Embeddings:
        """Return embeddings [V, n, d] of views [V, n, 3, H, W]: in one pass, or one per view (--forward per-view)."""
        if getattr(self.settings, "forward", "joint") == "joint":
            return encoder(views.flatten(0, 1))[1].unflatten(0, views.shape[:2])
        return torch.stack([encoder(view)[1] for view in views])

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        """Return the loss of what `embed` returned, for the images with these indices, int64 [n]."""
        raise NotImplementedError

    def distributed_loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        """Compute the loss of the whole batch, the same in each process, from this process's embeddings and indices."""
        parts = embeddings if isinstance(embeddings, tuple) else (embeddings,)
        for part in parts:
            if part.ndim < 2 or part.shape[1] != len(index):
                raise AAGError(
                    f"{type(self).__name__}.embed returned a tensor of shape {list(part.shape)}; "
                    f"with several processes its dim 1 must be the batch of {len(index)} images"
                )
        gathered = tuple(gather_batch(part, dim=1) for part in parts)
        whole = gathered if isinstance(embeddings, tuple) else gathered[0]
        return self.loss(whole, gather_batch(index, dim=0))

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        """Prepare epoch 0, 1, …, before its first step and outside of any CUDA graph.

        `extract()` returns features [N, F] and L2-normalised embeddings [N, d] of all training images, not augmented.
        """

    def epoch_order(self, epoch: int) -> Tensor | None:
        """Return the indices of the images of an epoch in order, int64 [N]. None: all images, shuffled."""
        return None

    def reinitialized_parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters that `before_epoch` re-initialized: their optimizer state is cleared."""
        return ()

    def momenta(self) -> Mapping[Tensor, float]:
        """Return the momentum of those parameters of the method that do not use --momentum (SGD only)."""
        return {}

    def after_step(self, encoder: Encoder, *carry: Tensor) -> None:
        """Update the state after each batch, without gradients and inside the graph."""

    def describe_views(self) -> str:
        """Return the views in words, for the lines that training prints at its start."""
        counts = Counter(map(augmentation_name, self.augmentations()))
        return " + ".join(pluralize(count, f"{name} view") for name, count in counts.items())

    def describe_loss(self) -> str:
        """Return the loss in words, for the same lines: the settings `loss` and `temperature`, where there are any."""
        temperature = getattr(self.settings, "temperature", None)
        return describe_loss(getattr(self.settings, "loss", None)) + (f", τ {temperature}" if temperature else "")


def augmentation_name(augmentation: Augmentation) -> str:
    """Return the name of an augmentation for users: basic, auxiliary, or that of its class."""
    name = type(augmentation).__name__
    return {"BasicAugment": "basic", "AuxiliaryAugment": "auxiliary"}.get(name, name)


def check_no_head(method: Method, encoder: Encoder) -> None:
    """Raise if the encoder has a head: this method would leave it untrained, but kNN would evaluate its output."""
    if not isinstance(encoder.head, nn.Identity):
        raise AAGError(f"--method {method.name} trains no head; use --head none")
