"""A DataLoader pipeline, end to end: workers that augment image by image, and an eager step.

Written as a careful user would: images in memory, persistent workers, pinned memory, non-blocking transfers, bfloat16
autocast on a GPU, channels last, cuDNN's benchmark mode. The network is ours in plain PyTorch, without its own
normalisation.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from aag import kernels, losses, nets
from aag.augment import Augmentation
from aag.bench.peers import torchvision_transforms
from aag.bench.plan import Plan
from aag.bench.timing import Timing, peak_memory, reset_memory, time_once
from aag.text import pluralize
from aag.training import build_encoder

PREFETCH = 2  # batches that each worker prepares ahead: DataLoader's default
WINDOWS = 4  # parts of a measurement, which show its spread
COMPARED_OPTIONS = ("network", "width", "batch_size")  # options that must be equal to compare


class MemoryDataset(Dataset):
    """Images in memory, each made a PIL image when it is asked for, as in torchvision's CIFAR10."""

    def __init__(self, images: Tensor, transform: Callable[[Any], Any]) -> None:
        self.images: np.ndarray = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.fromarray(self.images[index])), 0


class MultiView:
    """Makes a normalised float tensor for each view of a PIL image."""

    def __init__(self, augmentations: tuple[Augmentation, ...], spec: nets.EncoderSpec) -> None:
        ending = [transforms.ToTensor(), transforms.Normalize(spec.mean, spec.std)]
        self.transforms = [
            transforms.Compose(torchvision_transforms(augmentation, transforms, spec.image_size) + ending)
            for augmentation in augmentations
        ]

    def __call__(self, image: Image.Image) -> list[Tensor]:
        return [transform(image) for transform in self.transforms]


@dataclass(frozen=True)
class Pipeline:
    """Data, network and loss of a batch's views."""

    name: str
    views: int
    dataset: Any
    network: nn.Module
    loss: Callable[[nn.Module, list[Tensor]], Tensor]


def run(plan: Plan) -> dict[str, Any]:
    rows = [_measure(plan, _torchvision(plan))]
    name = "lightly: SimCLR, two views"
    try:
        rows.append(_measure(plan, _lightly(plan, name)) | {"version": version("lightly")})
    except ImportError as error:
        missing = "is not installed" if error.name == "lightly" else f"cannot be imported: {error}"
        rows.append({"name": name, "missing": f"lightly {missing}"})
    return {
        **plan.training[0].options(*COMPARED_OPTIONS),
        "images": plan.training_images,
        "workers": plan.workers,
        "protocol": (
            f"DataLoader with {pluralize(plan.workers, 'persistent worker')}{', pinned memory' * plan.cuda}, PIL "
            f"images made from memory; eager, {'bf16 autocast' if plan.autocast_dtype else 'fp32'}, channels last, "
            "SGD; timed after the prefetched batches are used up; loader alone: batches are fetched and dropped; "
            "memory: peak reserved by PyTorch's allocator on the GPU"
        ),
        "rows": rows,
    }


def compare(section: dict[str, Any], training: dict[str, Any]) -> None:
    """Add our views/s, from the training row with the same network and batch size, and our speed divided by each."""
    for ours in training["rows"]:
        if "missing" not in ours and all(ours[name] == section[name] for name in COMPARED_OPTIONS):
            section["ours_views_per_second"] = ours["views_per_second"]["per_second"]
    for row in section["rows"]:
        if "views_per_second" in row and "ours_views_per_second" in section:
            row["ours_over"] = section["ours_views_per_second"] / row["views_per_second"]["per_second"]


def _torchvision(plan: Plan) -> Pipeline:
    settings, images = plan.training[0].settings.resolve(), plan.image_set(plan.training_images)
    encoder = build_encoder(settings, images)
    augmentations = settings.method_type(settings.method_settings).augmentations()
    temperature = settings.options()["temperature"]

    def loss(network: nn.Module, views: list[Tensor]) -> Tensor:
        return losses.gnt_xent(*network(torch.cat(views)).chunk(len(views)), temperature=temperature)

    dataset = MemoryDataset(images.images, MultiView(augmentations, encoder.spec))
    network = nn.Sequential(encoder.backbone, encoder.head)
    count = len(augmentations)
    return Pipeline(f"torchvision: AAG's {count} views", count, dataset, network, loss)


def _lightly(plan: Plan, name: str) -> Pipeline:
    """SimCLR as in lightly's documentation, with its transform for CIFAR-10."""
    from lightly.data import LightlyDataset
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform

    images = plan.image_set(plan.training_images)
    encoder = build_encoder(plan.training[0].settings.resolve(), images)
    width = encoder.feature_dim
    network = nn.Sequential(encoder.backbone, SimCLRProjectionHead(width, width, 128))
    criterion = NTXentLoss(temperature=0.5)
    transform = SimCLRTransform(input_size=encoder.spec.image_size, gaussian_blur=0.0)
    dataset = LightlyDataset.from_torch_dataset(MemoryDataset(images.images, transform), transform=transform)
    return Pipeline(name, 2, dataset, network, lambda network, views: criterion(network(views[0]), network(views[1])))


def _measure(plan: Plan, pipeline: Pipeline) -> dict[str, Any]:
    device, train = plan.device, plan.training[0].settings.train
    batch = train.batch_size
    loader: DataLoader = DataLoader(
        pipeline.dataset, batch, shuffle=True, drop_last=True, num_workers=plan.workers, pin_memory=plan.cuda,
        persistent_workers=plan.workers > 0, prefetch_factor=PREFETCH if plan.workers else None,
    )  # fmt: skip
    batches = chain.from_iterable(repeat(loader))
    network = pipeline.network.to(device).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        network.parameters(), train.lr * batch / 128, train.momentum, weight_decay=train.weight_decay
    )
    loss = torch.zeros(())
    reset_memory(device)

    def step() -> None:
        nonlocal loss
        views = [view.to(device, non_blocking=True, memory_format=torch.channels_last) for view in next(batches)[0]]
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.autocast_dtype is not None):
            loss = pipeline.loss(network, views)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    prefetched = 0 if plan.quick else 2 * PREFETCH * plan.workers  # twice as many, to be sure
    with kernels.disabled(), _cudnn_benchmark():
        loading = _time(lambda: next(batches), 1 + prefetched, plan.loader_steps, device)
        training = _time(step, 1 + prefetched, plan.pipeline_steps, device)
    if not torch.isfinite(loss):
        raise RuntimeError(f"{pipeline.name}: the loss is not finite, so the timings mean nothing")
    return {
        "name": pipeline.name,
        "views": pipeline.views,
        "views_per_second": _rate(training, plan.pipeline_steps * batch * pipeline.views),
        "loader_views_per_second": _rate(loading, plan.loader_steps * batch * pipeline.views),
        "end_to_end_ms": 1000 * sum(training.seconds) / plan.pipeline_steps,
        "steps": plan.pipeline_steps,
        "peak_memory": peak_memory(device),
    }


def _time(work: Callable[[], object], warm_up: int, steps: int, device: torch.device) -> Timing:
    """Return the seconds of `steps` calls after a warm-up, in windows."""
    for _ in range(warm_up):
        work()
    windows = min(WINDOWS, steps)
    sizes = [steps // windows + (number < steps % windows) for number in range(windows)]
    return Timing(tuple(time_once(lambda n=size: [work() for _ in range(n)], device) for size in sizes))  # type: ignore[misc]


def _rate(timing: Timing, count: int) -> dict[str, Any]:
    """Return the rate over all windows together: a loader's pauses are part of it."""
    return {"per_second": count / sum(timing.seconds), "count": count, "seconds": list(timing.seconds)}


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
