"""The usual way to train, end to end: a DataLoader whose workers augment image by image, and an eager step.

Written as a careful user would: in-memory images, workers that stay, pinned memory, transfers that don't wait, autocast
to bfloat16 on a GPU, channels last, cuDNN's benchmark mode. The network is ours in plain PyTorch, without its own
normalisation.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from aag import kernels, losses, methods, nets
from aag.augment import Augmentation
from aag.bench.plan import Plan
from aag.bench.rivals import equivalent
from aag.bench.timing import Timing, fresh_memory, once, peak_memory
from aag.config import TrainConfig
from aag.training.loop import encoder_spec
from aag.training.runtime import Runtime, decide

PREFETCH = 2  # batches a worker has ready: DataLoader's default
WINDOWS = 4  # parts of a measurement, to see how far they differ


class Photographs(Dataset):
    """Images in memory, each made a PIL image when it is asked for: as torchvision's CIFAR10 does."""

    def __init__(self, images: Tensor, transform: Callable[[Any], Any]) -> None:
        self.images: np.ndarray = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        return self.transform(Image.fromarray(self.images[place])), 0


class ManyViews:
    """A float tensor of each view of a PIL image."""

    def __init__(self, families: tuple[Augmentation, ...], spec: nets.EncoderSpec) -> None:
        ending = [transforms.ToTensor(), transforms.Normalize(spec.mean, spec.std)]
        size = spec.image_size
        self.views = [transforms.Compose(equivalent(family, transforms, size) + ending) for family in families]

    def __call__(self, image: Image.Image) -> list[Tensor]:
        return [view(image) for view in self.views]


@dataclass(frozen=True)
class Way:
    """One way to train: what it is called, its data, its network, and the loss of a batch's views."""

    name: str
    views: int
    dataset: Any
    network: nn.Module
    loss: Callable[[nn.Module, list[Tensor]], Tensor]


def run(plan: Plan) -> dict[str, Any]:
    config = plan.training[0]
    runtime = decide(config.validate())
    rows = [_measure(plan, config, runtime, _torchvision(plan, config))]
    name = "lightly: SimCLR, two views"
    missing = _missing()
    if missing:
        rows.append({"name": name, "missing": missing})
    else:
        rows.append(_measure(plan, config, runtime, _lightly(plan, name)) | {"version": version("lightly")})
    return {
        **{name: getattr(config, name) for name in ("network", "width", "batch_size")},
        "images": plan.training_images,
        "workers": plan.workers,
        "protocol": (
            f"DataLoader with {plan.workers} workers that stay{', pinned memory' * plan.cuda}, PIL images made from "
            f"memory; eager, {'bf16 autocast' if runtime.dtype == torch.bfloat16 else 'fp32'}, channels last, SGD; "
            "clocked once the batches made in advance are used up; the loader alone: its batches taken and thrown "
            "away; memory: of PyTorch's allocator on the GPU, peak reserved"
        ),
        "rows": rows,
    }


def compare(section: dict[str, Any], training: dict[str, Any]) -> None:
    """Adds ours ÷ theirs, in views a second: ours is the row of the same network and batch."""
    same = ("network", "width", "batch_size")
    for ours in training["rows"]:
        if "missing" not in ours and all(ours[name] == section[name] for name in same):
            section["ours_views_per_second"] = ours["views_per_second"]["per_second"]
    for row in section["rows"]:
        if "views_per_second" in row and "ours_views_per_second" in section:
            row["ours_over"] = section["ours_views_per_second"] / row["views_per_second"]["per_second"]


def _torchvision(plan: Plan, config: TrainConfig) -> Way:
    found = plan.image_set(plan.training_images)
    spec = encoder_spec(config, found)
    families = methods.families(config)
    encoder = nets.build(spec)

    def loss(network: nn.Module, views: list[Tensor]) -> Tensor:
        embeddings = network(torch.cat(views)).chunk(len(views))
        return losses.gnt_xent(*embeddings, temperature=config.temperature)

    dataset = Photographs(found.images, ManyViews(families, spec))
    network = nn.Sequential(encoder.backbone, encoder.head)
    return Way(f"torchvision: AAG's {len(families)} views", len(families), dataset, network, loss)


def _missing() -> str | None:
    """Why lightly can't be measured, or None."""
    if find_spec("lightly") is None:
        return "lightly is not installed"
    try:
        import lightly.data
        import lightly.loss
        import lightly.models.modules
        import lightly.transforms  # noqa: F401
    except ImportError as error:
        return f"lightly can't be imported: {error}"
    return None


def _lightly(plan: Plan, name: str) -> Way:
    """SimCLR as lightly's documentation writes it, with its transform for CIFAR-10."""
    from lightly.data import LightlyDataset
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform

    found = plan.image_set(plan.training_images)
    encoder = nets.build(encoder_spec(plan.training[0], found))
    width = encoder.feature_dim
    network = nn.Sequential(encoder.backbone, SimCLRProjectionHead(width, width, 128))
    criterion = NTXentLoss(temperature=0.5)
    transform = SimCLRTransform(input_size=found.image_size, gaussian_blur=0.0)
    dataset = LightlyDataset.from_torch_dataset(Photographs(found.images, transform), transform=transform)
    return Way(name, 2, dataset, network, lambda network, views: criterion(network(views[0]), network(views[1])))


def _measure(plan: Plan, config: TrainConfig, runtime: Runtime, way: Way) -> dict[str, Any]:
    device, batch = runtime.device, config.batch_size
    loader: DataLoader = DataLoader(
        way.dataset, batch, shuffle=True, drop_last=True, num_workers=plan.workers, pin_memory=plan.cuda,
        persistent_workers=plan.workers > 0, prefetch_factor=PREFETCH if plan.workers else None,
    )  # fmt: skip
    batches = chain.from_iterable(_for_ever(loader))
    network = way.network.to(device).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        network.parameters(), config.lr * batch / 128, config.momentum, weight_decay=config.weight_decay
    )
    loss = torch.zeros(())
    fresh_memory(device)

    def step() -> None:
        nonlocal loss
        views = [view.to(device, non_blocking=True, memory_format=torch.channels_last) for view in next(batches)[0]]
        with torch.autocast(device.type, torch.bfloat16, enabled=runtime.dtype == torch.bfloat16):
            loss = way.loss(network, views)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    ahead = 0 if plan.quick else 2 * PREFETCH * plan.workers  # twice what is made in advance
    with kernels.disabled(), _cudnn_benchmark():
        loading = _timed(lambda: next(batches), 1 + ahead, plan.loader_steps, device)
        training = _timed(step, 1 + ahead, plan.usual_steps, device)
    if not torch.isfinite(loss):
        raise RuntimeError(f"{way.name}: the loss is not a number: these timings would be worth nothing")
    return {
        "name": way.name,
        "views": way.views,
        "views_per_second": _rate(training, plan.usual_steps * batch * way.views),
        "loader_views_per_second": _rate(loading, plan.loader_steps * batch * way.views),
        "end_to_end_ms": 1000 * sum(training.seconds) / plan.usual_steps,
        "steps": plan.usual_steps,
        "peak_memory": peak_memory(device),
    }


def _timed(work: Callable[[], object], warm_up: int, steps: int, device: torch.device) -> Timing:
    """Seconds of `steps` after a warm-up, by windows."""
    for _ in range(warm_up):
        work()
    windows = min(WINDOWS, steps)
    sizes = [steps // windows + (number < steps % windows) for number in range(windows)]
    return Timing(tuple(once(lambda n=size: [work() for _ in range(n)], device) for size in sizes))  # type: ignore[misc]


def _rate(timing: Timing, count: int) -> dict[str, Any]:
    """Over all windows: a loader's pauses are part of it."""
    return {"per_second": count / sum(timing.seconds), "count": count, "seconds": list(timing.seconds)}


def _for_ever(loader: DataLoader) -> Iterator[DataLoader]:
    while True:
        yield loader


@contextmanager
def _cudnn_benchmark() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
