"""torchvision's transforms, image by image, in as many processes as our code has threads."""

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import v2

from aag.augment import Augmentation, AutoAugment, AuxiliaryAugment, BasicAugment, RandAugment

AUGMENTATIONS: dict[str, Augmentation] = {
    "basic, paper": BasicAugment.preset("paper"),
    "basic, isif": BasicAugment.preset("isif"),
    "basic, simclr": BasicAugment.preset("simclr"),
    "AutoAugment": AutoAugment("cifar10"),
    "RandAugment": RandAugment(2, 10),
    "auxiliary: crop, AutoAugment": AuxiliaryAugment(AutoAugment("cifar10")),
}
KINDS: dict[str, ModuleType] = {"pil": transforms, "tensor": v2}  # PIL images, or uint8 tensors with the v2 transforms
FILL = 128
TASK = 64  # images per task of a process
OURS, OUR_TASK = "ours", 256  # a batch of ours per task


def torchvision_transforms(augmentation: Augmentation, t: ModuleType, size: int = 32) -> list[Callable[[Any], Any]]:
    """Return transforms of module `t` (torchvision.transforms or its v2) that do the same to one image."""
    if isinstance(augmentation, AutoAugment):
        return [t.AutoAugment(transforms.AutoAugmentPolicy(augmentation.policy), fill=FILL)]
    if isinstance(augmentation, RandAugment):
        return [t.RandAugment(augmentation.n, augmentation.magnitude, augmentation.bins, fill=FILL)]
    if isinstance(augmentation, AuxiliaryAugment):
        crop = t.RandomResizedCrop(size, augmentation.scale, augmentation.ratio)
        return [crop, t.RandomHorizontalFlip(augmentation.flip), *torchvision_transforms(augmentation.policy, t, size)]
    assert isinstance(augmentation, BasicAugment)
    jitter = t.ColorJitter(augmentation.brightness, augmentation.contrast, augmentation.saturation, augmentation.hue)
    steps = [
        t.RandomResizedCrop(size, augmentation.scale, augmentation.ratio),
        jitter if augmentation.jitter == 1 else t.RandomApply([jitter], augmentation.jitter),
        t.RandomGrayscale(augmentation.gray),
        t.RandomHorizontalFlip(augmentation.flip),
    ]
    if augmentation.blur:
        steps.append(
            t.RandomApply([t.GaussianBlur(augmentation.blur_kernel, augmentation.blur_sigma)], augmentation.blur)
        )
    return steps


class TransformProcesses:
    """Processes that hold the images and write the transformed ones into shared memory.

    They do less than a DataLoader, in torchvision's favour: there is no sampler, no collation and no queue of batches.
    PIL images are made, and processes started, before the clock starts.
    """

    def __init__(self, images: Tensor, processes: int) -> None:
        # fork where it exists, as in DataLoader: all modules are loaded already. An executor raises when a process
        # dies; a multiprocessing.Pool would restart it forever.
        forks = "fork" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("fork" if forks else "spawn")
        self.out = torch.zeros_like(images).share_memory_()
        arguments = (images.share_memory_(), self.out, context.Barrier(processes))
        self.pool = ProcessPoolExecutor(processes, context, _start, arguments)
        self._wait([self.pool.submit(int) for _ in range(processes)])  # each waits until all have started

    def __enter__(self) -> "TransformProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def __call__(self, name: str, kind: str) -> None:
        """Transform every image once: by torchvision's transforms of a kind, or with OURS by our augmentation."""
        task = OUR_TASK if kind == OURS else TASK
        self._wait([self.pool.submit(_work, name, kind, start) for start in range(0, len(self.out), task)])

    @staticmethod
    def _wait(futures: list[Future]) -> None:
        for future in futures:
            future.result()


_state: dict[str, Any] = {}  # of a process


def _start(images: Tensor, out: Tensor, ready: Any) -> None:
    torch.set_num_threads(1)
    _state.update(
        images=images, tensor=list(images), pil=[transforms.functional.to_pil_image(image) for image in images], out=out
    )
    ready.wait(timeout=300)


def _work(name: str, kind: str, start: int) -> None:
    out = _state["out"]
    if kind == OURS:
        rows = slice(start, start + OUR_TASK)
        out[rows] = AUGMENTATIONS[name](_state["images"][rows], seed=start)
        return
    transform = _transform(name, kind, out.shape[-1])
    for place in range(start, min(start + TASK, len(out))):
        out[place] = transform(_state[kind][place])


@cache
def _transform(name: str, kind: str, size: int) -> Callable[[Any], Tensor]:
    module = KINDS[kind]
    ending = [module.PILToTensor()] if kind == "pil" else []
    return module.Compose(torchvision_transforms(AUGMENTATIONS[name], module, size) + ending)
