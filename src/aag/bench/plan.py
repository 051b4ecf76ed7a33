"""What is measured on which machine: all sizes in one place, so that a record can state them."""

import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aag import data
from aag.config import TrainConfig, recipe_config
from aag.data import ImageSet

MEASURED = ("isif", "aag", "instance", "simclr", "moco", "and", "deepcluster")  # isif is the plain method of two views


@dataclass(frozen=True)
class Plan:
    """Sizes of a run. Every timing is the median of `repeats`, after `warm_up` calls that don't count."""

    device: torch.device
    data: str  # whose images are used, from the start again where they are too few
    data_root: Path | None
    threads: int  # of our work on the CPU, and the number of torchvision's processes
    quick: bool
    repeats: int
    warm_up: int

    augment_images: int  # a multiple of the chunk that training augments at once: 512 on a CPU, 4,096 on a GPU
    training: tuple[TrainConfig, ...]  # the first one is also trained in the usual way
    training_images: int
    pass_seconds: float  # of a timed pass of training, about, in whole chunks; an epoch at most
    matmul_size: int  # of the square matrices whose product gives the ceiling
    copy_bytes: int

    workers: int  # of the usual way's DataLoader
    loader_steps: int
    usual_steps: int

    methods: tuple[TrainConfig, ...]  # the first one is what the others are compared with
    methods_seconds: float  # as pass_seconds
    methods_repeats: int
    kmeans: tuple[int, int, int]  # rows, their width, clusters
    whitening: tuple[int, int, int]  # rows, their width before and after
    bank: tuple[int, int]  # images, width

    knn_test: int
    knn_train: int
    linear_train: int
    linear_test: int
    linear_epochs: int
    linear_repeats: int
    widths: tuple[tuple[int, int], ...]  # (width of a ResNet-18, images to extract features of)
    evaluated: tuple[int, int, int]  # width of the ResNet-18, training and test images of a whole evaluation

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def photographs(self, count: int) -> Tensor:
        """uint8 [count, 3, S, S]."""
        return self.image_set(count).images

    def image_set(self, count: int) -> ImageSet:
        found = _load(self.data, self.data_root)
        return replace(found, images=found.images[torch.arange(count) % len(found)], labels=None)


@cache
def _load(name: str, root: Path | None) -> ImageSet:
    return data.load(name, root=root)


def make_plan(device: torch.device, quick: bool = False, name: str = "sample", root: Path | None = None) -> Plan:
    """Full on a GPU, smaller on a CPU, tiny for a test of the benchmark itself."""
    paper, demo = recipe_config("paper", name), recipe_config("demo", name)
    larger = recipe_config("paper-resnet50", name)
    networks = (paper, replace(paper, batch_size=512), replace(paper, network="alexnet"), larger)
    plan = Plan(
        device=device,
        data=name,
        data_root=root,
        threads=torch.get_num_threads(),  # the cores, or OMP_NUM_THREADS
        quick=quick,
        repeats=5,
        warm_up=1,
        augment_images=4096,
        training=tuple(replace(config, device=str(device)) for config in networks),
        training_images=50_000,
        pass_seconds=2.0,
        matmul_size=8192,
        copy_bytes=2**31,
        workers=min(16, cores()),
        loader_steps=100,  # with the warm-ups of both, less than an epoch
        usual_steps=150,
        methods=tuple(replace(_method(method, name), device=str(device)) for method in MEASURED),
        methods_seconds=0.5,
        methods_repeats=3,
        kmeans=(50_000, 256, 1000),
        whitening=(50_000, 512, 256),
        bank=(50_000, 128),
        knn_test=10_000,
        knn_train=50_000,
        linear_train=50_000,
        linear_test=10_000,
        linear_epochs=50,
        linear_repeats=3,
        widths=((64, 50_000),),
        evaluated=(64, 50_000, 10_000),
    )
    if device.type == "cpu":
        small = replace(demo, device="cpu")
        plan = replace(
            plan,
            repeats=3,
            augment_images=2048,
            training=(small, replace(small, batch_size=128)),
            training_images=3000,
            matmul_size=1536,
            copy_bytes=2**28,
            loader_steps=24,
            usual_steps=24,
            methods=tuple(replace(recipe_config("demo", name, method), device="cpu") for method in MEASURED),
            kmeans=(3000, 64, 50),
            whitening=(3000, 64, 32),
            bank=(3000, 128),
            widths=((16, 1024), (64, 256)),
            evaluated=(small.width, 3000, 1000),
        )
    if quick:
        scale: dict[str, Any] = {"width": 4, "batch_size": 32, "compile": "off", "device": str(device)}
        tiny = replace(demo, **scale)
        plan = replace(
            plan, repeats=1, warm_up=0, augment_images=64,
            training=(tiny,), training_images=128, pass_seconds=0.1, matmul_size=256, copy_bytes=2**20,
            workers=min(1, plan.workers), loader_steps=2, usual_steps=2,
            methods=tuple(_tiny(method, name, **scale) for method in MEASURED),
            methods_seconds=0.05, methods_repeats=1, kmeans=(200, 8, 5), whitening=(200, 8, 4), bank=(200, 8),
            knn_test=50, knn_train=500, linear_train=500, linear_test=50, linear_epochs=2, linear_repeats=1,
            widths=((4, 64),), evaluated=(4, 256, 64),
        )  # fmt: skip
    return plan


def _method(method: str, data: str) -> TrainConfig:
    """Its recipe at the paper's batch. The learning rate does not change the time."""
    changes: dict[str, dict[str, Any]] = {"simclr": {"optimizer": "sgd", "lr": 0.03}}  # LARS is for large batches
    config = recipe_config("paper" if method == "aag" else method, data, method)
    return replace(config, batch_size=128, **changes.get(method, {}))


def _tiny(method: str, data: str, **scale: Any) -> TrainConfig:
    if method == "deepcluster":
        scale = {**scale, "clusters": 10}
    return replace(recipe_config("demo", data, method), **scale)


def cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
