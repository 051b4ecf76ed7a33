"""torchvision's transforms, image by image, in as many processes as we use threads."""

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

FAMILIES: dict[str, Augmentation] = {
    "basic, paper": BasicAugment.preset("paper"),
    "basic, isif": BasicAugment.preset("isif"),
    "basic, simclr": BasicAugment.preset("simclr"),
    "AutoAugment": AutoAugment("cifar10"),
    "RandAugment": RandAugment(2, 10),
    "auxiliary: crop, AutoAugment": AuxiliaryAugment(AutoAugment("cifar10")),
}
KINDS: dict[str, ModuleType] = {"pil": transforms, "tensor": v2}  # PIL images, or uint8 tensors with the v2 transforms
FILL = 128
TASK = 64  # images of one message to a process


def equivalent(family: Augmentation, t: ModuleType, size: int = 32) -> list[Callable[[Any], Any]]:
    """The transforms of module `t` (torchvision.transforms or its v2) that do what `family` does to one image."""
    if isinstance(family, AutoAugment):
        return [t.AutoAugment(transforms.AutoAugmentPolicy(family.policy), fill=FILL)]
    if isinstance(family, RandAugment):
        return [t.RandAugment(family.n, family.magnitude, family.bins, fill=FILL)]
    if isinstance(family, AuxiliaryAugment):
        crop = t.RandomResizedCrop(size, family.scale, family.ratio)
        return [crop, t.RandomHorizontalFlip(family.flip), *equivalent(family.policy, t, size)]
    assert isinstance(family, BasicAugment)
    jitter = t.ColorJitter(family.brightness, family.contrast, family.saturation, family.hue)
    steps = [
        t.RandomResizedCrop(size, family.scale, family.ratio),
        jitter if family.jitter == 1 else t.RandomApply([jitter], family.jitter),
        t.RandomGrayscale(family.gray),
        t.RandomHorizontalFlip(family.flip),
    ]
    if family.blur:
        steps.append(t.RandomApply([t.GaussianBlur(family.blur_kernel, family.blur_sigma)], family.blur))
    return steps


class Torchvision:
    """Processes that hold the images and write the transformed ones into shared memory.

    That is less than a DataLoader does (no sampler, no collation, no queue of batches), so torchvision is shown at
    its best: the images are PIL images beforehand, and the processes run before the clock does.
    """

    def __init__(self, images: Tensor, processes: int) -> None:
        # A fork where there is one, as in DataLoader: it has all modules loaded. An executor gives up when a process
        # dies; a multiprocessing.Pool would start another for ever.
        forks = "fork" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("fork" if forks else "spawn")
        self.out = torch.zeros_like(images).share_memory_()
        given = (images.share_memory_(), self.out, context.Barrier(processes))
        self.pool = ProcessPoolExecutor(processes, context, _start, given)
        self._all([self.pool.submit(int) for _ in range(processes)])  # no process takes one before all have started

    def __enter__(self) -> "Torchvision":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def __call__(self, family: str, kind: str) -> None:
        """Every image once through the family's transforms."""
        self._all([self.pool.submit(_work, family, kind, start) for start in range(0, len(self.out), TASK)])

    @staticmethod
    def _all(futures: list[Future]) -> None:
        for future in futures:
            future.result()


_held: dict[str, Any] = {}  # by a process, for its lifetime


def _start(images: Tensor, out: Tensor, ready: Any) -> None:
    torch.set_num_threads(1)
    _held.update(tensor=list(images), pil=[transforms.functional.to_pil_image(image) for image in images], out=out)
    ready.wait(timeout=300)


def _work(family: str, kind: str, start: int) -> None:
    out = _held["out"]
    transform = _transform(family, kind, out.shape[-1])
    for place in range(start, min(start + TASK, len(out))):
        out[place] = transform(_held[kind][place])


@cache
def _transform(family: str, kind: str, size: int) -> Callable[[Any], Tensor]:
    module = KINDS[kind]
    ending = [module.PILToTensor()] if kind == "pil" else []
    return module.Compose(equivalent(FAMILIES[family], module, size) + ending)
