"""The settings of a whole run: data, encoder, method and training. They determine its numbers and identify it."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, Self

from aag.data import ImageSet
from aag.data.datasets import DATASETS
from aag.errors import AAGError, unknown_name
from aag.methods import Method, MethodSettings, load_method
from aag.nets import Encoder, NetworkSettings
from aag.settings import AddedLater, Precision, Range, Settings, TrainSettings, from_json, to_json


@dataclass(frozen=True)
class DataSettings(Settings):
    """The images of a run."""

    source: str = "sample"
    """A known data set (aag data lists them), a folder of images, shards, a URL, hf:OWNER/NAME, or an .npz file."""
    image_size: Annotated[int, Range(at_least=8, at_most=4096)] | None = None
    """Side of the views, and of the images that are evaluated. Default: chosen for a folder (32 with
    --recipe), else the images' own."""
    resize_size: Annotated[int, Range(at_least=8, at_most=4096)] | None = None
    """Side that images are resized to; views are cropped from that, as in 224 from 256. Default: --image-size."""
    labels: Annotated[Literal["known", "none"], AddedLater] = "known"
    """known: the subfolders of a folder, or the data set's own; for evaluation only. none: ignore labels."""
    holdout: Annotated[float, Range(above=0, at_most=0.5)] | None = None
    """Fraction of the labelled training images to hold out for evaluation, in place of the test split if there is
    one."""
    start_early: Annotated[bool, AddedLater] = False
    """Start training when the first 8,192 images are decoded, and decode the rest meanwhile. Needs --labels none. The
    first epoch takes images in the order of their files, shuffled within blocks of 8,192."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize_size and not self.image_size:
            raise AAGError(f"--resize-size {self.resize_size} needs the --image-size that views are cropped to")
        if self.resize_size and self.image_size and self.resize_size < self.image_size:
            raise AAGError(f"--resize-size {self.resize_size} is smaller than --image-size {self.image_size}")
        if self.start_early and self.holdout:
            raise AAGError("--start-early cannot hold out images before they are decoded; leave out --holdout")
        if self.start_early and self.labels != "none":
            raise AAGError("--start-early trains before labels are known; add --labels none")

    @property
    def source_size(self) -> int | None:
        """Side that images are loaded with."""
        return self.resize_size or self.image_size


@dataclass(frozen=True)
class RunSettings:
    """All settings that determine the numbers of a run.

    Automatic values are replaced by `resolve`. Two runs are the same run if their resolved settings are equal.
    """

    data: DataSettings
    encoder: NetworkSettings
    method: str  # a name, or file.py:Class
    method_settings: MethodSettings
    train: TrainSettings

    def __post_init__(self) -> None:
        others = {field.name for part in (self.data, self.encoder, self.train) for field in fields(part)}
        if taken := [field.name for field in fields(self.method_settings) if field.name in {"data", "method", *others}]:
            raise AAGError(
                f"--method {self.method} has settings with the names of other options: {', '.join(taken)}; rename them"
            )

    @property
    def method_type(self) -> type[Method]:
        return load_method(self.method)

    def new_method(self) -> Method:
        return self.method_type(self.method_settings)

    def resolve(self, precision: Precision = "auto") -> Self:
        """Replace automatic values; `precision` is what the device runs where none is chosen."""
        dataset = DATASETS.get(self.data.source)
        size = self.data.image_size or (dataset.size if dataset else None)
        train = self.train.resolve(precision)
        if self.encoder.has_pretrained_tag and not train.start_from and not train.pretrained:
            train = replace(train, pretrained="timm")
        resolved = replace(
            self,
            data=replace(self.data, image_size=size),
            encoder=self.encoder.resolve(),
            method_settings=self.method_settings.resolve(dataset),
            train=train,
        )
        group, batch = resolved.encoder.bn_group_size, resolved.train.batch_size
        if group and batch % group:
            raise AAGError(f"batch size {batch} is not a multiple of --bn-group-size {group}; 0 is the whole batch")
        return resolved

    def options(self) -> dict[str, Any]:
        """Return all settings by option name: data, method, network, …"""
        flat = {"data": self.data.source, "method": self.method}
        for part in (self.data, self.encoder, self.train, self.method_settings):
            flat |= {field.name: getattr(part, field.name) for field in fields(part) if field.name != "source"}
        return flat

    def replace(self, **options: Any) -> Self:
        """Return a copy with some options changed, whichever section they belong to."""
        sections: dict[str, dict[str, Any]] = {}
        own = {name: section for section in ("method_settings", "train", "encoder", "data")
               for name in (field.name for field in fields(getattr(self, section)))}  # fmt: skip
        for name, value in options.items():
            if name == "data":
                sections.setdefault("data", {})["source"] = value
            elif name in own and name != "source":
                sections.setdefault(own[name], {})[name] = value
            else:
                raise unknown_name(f"option of --method {self.method}", name, ["data", *own])
        return replace(self, **{name: replace(getattr(self, name), **values) for name, values in sections.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the settings by section, as config.json and records hold them."""
        return {
            "data": to_json(self.data),
            "encoder": to_json(self.encoder),
            "method": {"name": self.method, **to_json(self.method_settings)},
            "train": to_json(self.train),
        }

    @classmethod
    def from_json(cls, settings: Any) -> Self:
        """Build settings from a run's config.json. A Python file that it names as its method is not run."""
        try:
            method = dict(settings["method"])
            name = method.pop("name")
            return cls(
                from_json(DataSettings, settings["data"]),
                from_json(NetworkSettings, settings["encoder"]),
                name,
                from_json(load_method(name, run_file=False).settings_type, method),
                from_json(TrainSettings, settings["train"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise AAGError(f"these are not the settings of a run: {error}") from error


def settings_of_parts(encoder: Encoder, method: Method, images: ImageSet, train: TrainSettings) -> dict[str, Any]:
    """Return the settings of a run whose parts were made by hand, as JSON by section."""
    spec, kind = to_json(encoder.spec), type(method)
    sizes = {name: spec[name] for name in ("image_size", "resize_size") if spec[name] is not None}
    return {
        "data": {"source": images.name, **sizes},
        "encoder": {field.name: spec[field.name] for field in fields(NetworkSettings) if field.name in spec},
        "method": {"name": getattr(kind, "name", kind.__qualname__), **to_json(method.settings)},
        "train": to_json(train),
    }
