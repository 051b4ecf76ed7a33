"""The sizes of all measurements, by kind of machine, so that a record can state them."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aag import data
from aag.data import ImageSet
from aag.provenance import core_count
from aag.settings import Precision
from aag.training import RunSettings, recipe_settings
from aag.training.runtime import choose_precision

# The others are compared with the first, which has two views and no memory.
METHODS = ("isif", "aag", "instance", "simclr", "moco", "and", "deepcluster")


class Case(NamedTuple):
    """Settings to train with, and the recipe that they come from."""

    recipe: str
    settings: RunSettings

    def options(self, *names: str) -> dict[str, Any]:
        """Return these options as written, without those that the method does not have."""
        options = {**self.settings.options(), "recipe": self.recipe}
        return {name: options[name] for name in names if name in options}


@dataclass(frozen=True)
class Plan:
    """Sizes of a benchmark. Every timing is the median of `repeats`, after `warm_up` calls that do not count."""

    device: torch.device
    data: str  # source of the images, repeated where there are too few
    data_root: Path | None
    threads: int  # CPU threads of our code, and processes of torchvision
    quick: bool
    repeats: int
    warm_up: int

    augment_images: int  # a multiple of the chunk that training augments at once: 512 on a CPU, 4,096 on a GPU
    training: tuple[Case, ...]  # the first is also trained by a DataLoader pipeline
    training_images: int
    pass_seconds: float  # approximate duration of a timed pass: whole chunks, at most an epoch
    matmul_size: int  # side of the square matrices whose product gives the ceiling
    copy_bytes: int

    workers: int  # of the DataLoader
    loader_steps: int
    pipeline_steps: int

    methods: tuple[Case, ...]
    methods_seconds: float  # like pass_seconds
    methods_repeats: int
    kmeans: tuple[int, int, int]  # rows, columns, clusters
    whitening: tuple[int, int, int]  # rows, columns before and after
    bank: tuple[int, int]  # images, dimensions

    knn_test: int
    knn_train: int
    linear_train: int
    linear_test: int
    linear_epochs: int
    linear_repeats: int
    widths: tuple[tuple[int, int], ...]  # (width of a ResNet-18, images to extract features of)
    evaluated: tuple[int, int, int]  # width of the ResNet-18, train and test images of a whole evaluation
    embed_images: int = 2048  # JPEG files to embed
    search_rows: int = 1_000_000
    dedupe_rows: int = 1_000_000
    image_size: int | None = None  # side that the images are resized to; None: their own
    photographs: "Plan | None" = None  # the plan for larger images

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def compile(self) -> str:
        return "off" if self.quick else "auto"

    @property
    def precision(self) -> Precision:
        return choose_precision(self.device)

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The network's reduced precision; None for float32."""
        return torch.bfloat16 if self.precision == "bf16" else None

    def images(self, count: int) -> Tensor:
        """Return uint8 [count, 3, S, S]."""
        return self.image_set(count).images

    def image_set(self, count: int) -> ImageSet:
        loaded = _load(self.data, self.data_root, self.image_size)
        return replace(loaded, images=loaded.images[torch.arange(count) % len(loaded)], labels=None)


@cache
def _load(name: str, root: Path | None, image_size: int | None) -> ImageSet:
    return data.load(name, root=root, image_size=image_size)


def make_plan(device: torch.device, quick: bool = False, name: str = "sample", root: Path | None = None) -> Plan:
    """Return full sizes for a GPU, smaller ones for a CPU, tiny ones to test the benchmark itself."""

    def case(recipe: str, method: str = "aag", **options: Any) -> Case:
        return Case(recipe, recipe_settings(recipe, name, method).replace(**options))

    def method_case(method: str) -> Case:
        """Return a method's recipe at the paper's batch size. The learning rate does not change the time."""
        changes: dict[str, dict[str, Any]] = {
            "simclr": {"optimizer": "sgd", "lr": 0.03},  # LARS is for large batches
            "isif": {"bn_group_size": 0},  # the plain method that the others are compared with
        }
        return case("paper" if method == "aag" else method, method, batch_size=128, **changes.get(method, {}))

    plan = Plan(
        device, name, root, quick=quick, repeats=5, warm_up=1,
        threads=torch.get_num_threads(),  # the cores, or OMP_NUM_THREADS
        augment_images=4096,
        training=(
            case("paper"), case("paper", batch_size=512), case("paper", network="alexnet"), case("paper-resnet50"),
        ),
        training_images=50_000, pass_seconds=2.0, matmul_size=8192, copy_bytes=2**31,
        workers=min(16, core_count()),
        loader_steps=100, pipeline_steps=150,  # with the warm-ups of both, less than an epoch
        methods=tuple(method_case(method) for method in METHODS), methods_seconds=0.5, methods_repeats=3,
        kmeans=(50_000, 256, 1000), whitening=(50_000, 512, 256), bank=(50_000, 128),
        knn_test=10_000, knn_train=50_000,
        linear_train=50_000, linear_test=10_000, linear_epochs=50, linear_repeats=3,
        widths=((64, 50_000),), evaluated=(64, 50_000, 10_000),
    )  # fmt: skip
    if device.type == "cpu":
        plan = replace(
            plan, repeats=3, augment_images=2048,
            training=(case("demo"), case("demo", batch_size=128)), training_images=3000,
            matmul_size=1536, copy_bytes=2**28, loader_steps=24, pipeline_steps=24,
            methods=tuple(case("demo", method) for method in METHODS),
            kmeans=(3000, 64, 50), whitening=(3000, 64, 32), bank=(3000, 128),
            widths=((16, 1024), (64, 256)), evaluated=(8, 3000, 1000), embed_images=64, dedupe_rows=100_000,
        )  # fmt: skip
    if quick:
        tiny: dict[str, Any] = {"width": 4, "batch_size": 32}
        fewer = {"deepcluster": {"clusters": 10}}
        plan = replace(
            plan, repeats=1, warm_up=0, augment_images=64,
            training=(case("demo", **tiny),), training_images=128, pass_seconds=0.1, matmul_size=256, copy_bytes=2**20,
            workers=min(1, plan.workers), loader_steps=2, pipeline_steps=2,
            methods=tuple(case("demo", method, **tiny, **fewer.get(method, {})) for method in METHODS),
            methods_seconds=0.05, methods_repeats=1, kmeans=(200, 8, 5), whitening=(200, 8, 4), bank=(200, 8),
            knn_test=50, knn_train=500, linear_train=500, linear_test=50, linear_epochs=2, linear_repeats=1,
            widths=((4, 64),), evaluated=(4, 256, 64), embed_images=8, search_rows=500, dedupe_rows=500,
        )  # fmt: skip
    return replace(plan, photographs=_photographs(plan))


def _photographs(plan: Plan) -> Plan:
    """Return the plan for larger images: a few of them repeated, since only their size matters for the time."""
    network, size, batch, images = ("timm/resnet50", 224, 256, 2048)
    if not plan.cuda:
        network, size, batch, images = ("timm/resnet18", 112, 16, 64)
    if plan.quick:
        network, size, batch, images = ("timm/test_resnet", 42, 8, 16)
    stored = size * 8 // 7
    settings = recipe_settings("paper", plan.data).replace(
        network=network, image_size=size, resize_size=stored, batch_size=batch
    )
    steps = 2 if plan.quick else 12  # a DataLoader takes a second per step
    return replace(
        plan, training=(Case("paper", settings),), training_images=images, image_size=stored, loader_steps=steps,
        pipeline_steps=steps, pass_seconds=2.0 if plan.cuda else 0.1, repeats=min(3, plan.repeats),
    )  # fmt: skip
