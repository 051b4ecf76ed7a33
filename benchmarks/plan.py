"""What is measured on which machine: all sizes in one place, so that a record can state them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aag import data
from aag.config import TrainConfig, recipe_config


@dataclass(frozen=True)
class Plan:
    """Sizes of a run. Every timing is the median of `repeats`, after `warm_up` calls that don't count."""

    device: torch.device
    threads: int  # of our work on the CPU, and the number of torchvision's processes
    quick: bool
    repeats: int
    warm_up: int

    augment_images: int  # a multiple of the chunk that training augments at once: 512 on a CPU, 4,096 on a GPU
    training: tuple[TrainConfig, ...]
    training_images: int
    training_chunks: int | None  # of a timed pass, each as many batches as are augmented at once; None: an epoch

    knn_test: int
    knn_train: int
    linear_train: int
    linear_test: int
    linear_epochs: int
    linear_repeats: int
    widths: tuple[tuple[int, int], ...]  # (width of a ResNet-18, images to extract features of)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


def make_plan(device: torch.device, quick: bool) -> Plan:
    """Full on a GPU, smaller on a CPU, tiny for a test of the benchmark itself."""
    paper, demo = recipe_config("paper", "cifar10"), recipe_config("demo", "sample")
    plan = Plan(
        device=device,
        threads=torch.get_num_threads(),  # the cores, or OMP_NUM_THREADS
        quick=quick,
        repeats=5,
        warm_up=1,
        augment_images=4096,
        training=tuple(replace(paper, batch_size=batch, device="cuda") for batch in (128, 512)),
        training_images=50_000,
        training_chunks=None,
        knn_test=10_000,
        knn_train=50_000,
        linear_train=50_000,
        linear_test=10_000,
        linear_epochs=50,
        linear_repeats=3,
        widths=((64, 50_000),),
    )
    if device.type == "cpu":
        plan = replace(
            plan,
            repeats=3,
            augment_images=2048,
            training=tuple(dict.fromkeys(replace(demo, batch_size=n, device="cpu") for n in (demo.batch_size, 128))),
            training_images=3000,
            training_chunks=2,
            widths=((16, 1024), (64, 256)),
        )
    if quick:
        tiny = replace(demo, width=4, batch_size=256, compile="off", device=device.type)
        plan = replace(
            plan, repeats=1, warm_up=0, augment_images=64,
            training=(tiny,), training_images=512, training_chunks=1,
            knn_test=50, knn_train=500, linear_train=500, linear_test=50, linear_epochs=2, linear_repeats=1,
            widths=((4, 64),),
        )  # fmt: skip
    return plan


def photographs(count: int) -> Tensor:
    """uint8 [count, 3, 32, 32]: the bundled sample, from its start again where it ends."""
    images = data.load("sample").images
    return images[torch.arange(count) % len(images)]
