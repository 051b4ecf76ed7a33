"""What a user can set, and the recipes: named settings, each with its command, time and accuracy.

Plain data: importing this costs nothing, so that the command line can show its help at once.
"""

import hashlib
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from aag.errors import AAGError, unknown

METHODS = ("aag",)
LOSSES = ("gnt-xent", "nt-xent")
SCHEDULES = ("cosine", "step")
BASICS = ("paper", "isif", "simclr")
AUXILIARIES = ("autoaugment", "randaugment", "basic", "none")
CROPS = ("resized", "padded", "none")
POLICY_NAMES = ("auto", "cifar10", "svhn", "imagenet")
FORWARDS = ("joint", "per-view")
HEADS = ("auto", "linear", "mlp")
PRECISIONS = ("auto", "bf16", "fp32")
COMPILES = ("auto", "on", "off")


@dataclass(frozen=True)
class TrainConfig:
    """Train an encoder without labels, and go on where an earlier run of the same command stopped."""

    data: str = "sample"
    """A known set (sample, cifar10, cifar100, svhn), a folder of images, or an .npz file."""
    recipe: str = "auto"
    """Named settings that the other options change: paper, paper-resnet50, demo. auto: demo for the bundled
    sample, paper for all else."""
    out: Path | None = None
    """The run folder. Default: runs/ and a name made from the settings."""

    method: str = "aag"
    """The method to train: aag."""
    network: str = "resnet18"
    """resnet18, resnet50, alexnet, alexnet-ip, or any timm model by name."""
    width: int = 64
    """Channels of the ResNet's first stage; 64 is the real one, less is faster."""
    head: str = "auto"
    """From features to embedding: linear, mlp, or auto (mlp for resnet50, else linear)."""
    embedding: int = 128
    """Size of the embedding."""

    epochs: int = 200
    """Passes over the images."""
    batch_size: int = 128
    """Images in a step; each is seen in every view."""
    lr: float = 0.03
    """Learning rate for a batch of 128; used times batch size / 128."""
    schedule: str = "cosine"
    """cosine: to zero over the run; step: a tenth after 60 % and again after 80 % of the epochs."""
    warmup_epochs: int | None = None
    """Epochs of linear warm-up. None: 10 (at most half of the run) above a batch of 256, else none."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 5e-4
    """On all parameters."""

    loss: str = "gnt-xent"
    """gnt-xent, or nt-xent (the positive kept in every denominator)."""
    temperature: float = 0.1
    """τ: cosine similarities are divided by it."""

    basic: str = "paper"
    """Preset of the basic views: paper, isif or simclr."""
    auxiliary: str = "autoaugment"
    """The third view: autoaugment, randaugment, basic (three basic views) or none (two basic views)."""
    auxiliary_crop: str = "resized"
    """Before the policy: resized (random resized crop and flip), padded (random shift and flip) or none."""
    policy: str = "auto"
    """AutoAugment's policy: cifar10, svhn or imagenet. auto: svhn for SVHN, else cifar10."""
    rand_n: int = 2
    """RandAugment: operations an image."""
    rand_magnitude: int = 10
    """RandAugment: magnitude, of 30."""
    flip: bool = True
    """Mirror images left to right at random. Digits are better off without."""
    forward: str = "joint"
    """joint: all views through the network in one pass, batch norm sees them together; per-view: one pass each."""

    seed: int = 0
    """Of the weights, the order of the images and every augmentation."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: str = "auto"
    """bf16 or fp32. auto: bf16 on a GPU that has it, else fp32."""
    compile: str = "auto"
    """Triton kernels (or torch.compile, where a network has none) and CUDA graphs: on, off, or auto (on for a GPU)."""
    image_size: int | None = None
    """Side that a folder's images are resized to. Default: 32."""
    data_root: Path | None = None
    """Where data sets lie. Default: $AAG_DATA, else the cache folder."""

    knn_every: int = 5
    """Epochs between kNN evaluations; 0 for none until the end. They watch training and never steer it."""
    checkpoint_minutes: float = 1.0
    """Minutes between checkpoints; one is also written at the end and on Ctrl-C."""

    def validate(self) -> "TrainConfig":
        """Itself, or an AAGError that says what is wrong."""
        names = {
            "recipe": RECIPES, "method": METHODS, "loss": LOSSES, "schedule": SCHEDULES, "basic": BASICS,
            "auxiliary": AUXILIARIES, "auxiliary_crop": CROPS, "policy": POLICY_NAMES, "forward": FORWARDS,
            "head": HEADS, "precision": PRECISIONS, "compile": COMPILES,
        }  # fmt: skip
        for field, known in names.items():
            if getattr(self, field) not in known:
                raise unknown(field.replace("_", " "), getattr(self, field), known)
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise AAGError(f"unknown device {self.device!r}; use auto, cpu, cuda or cuda:N")
        least = {
            "epochs": 1, "batch_size": 2, "embedding": 1, "width": 1, "image_size": 8, "knn_every": 0,
            "warmup_epochs": 0, "rand_n": 1, "rand_magnitude": 0, "checkpoint_minutes": 0, "lr": 0,
            "weight_decay": 0, "momentum": 0,
        }  # fmt: skip
        for field, low in least.items():
            value = getattr(self, field)
            if value is not None and not low <= value < float("inf"):
                raise AAGError(f"--{field.replace('_', '-')} must be at least {low}, not {value}")
        if not 0 < self.temperature < float("inf"):
            raise AAGError(f"--temperature must be positive, not {self.temperature}")
        if self.momentum >= 1:
            raise AAGError(f"--momentum must be below 1, not {self.momentum}")
        for field, high in {"rand_magnitude": 30, "rand_n": 16}.items():
            if getattr(self, field) > high:
                raise AAGError(f"--{field.replace('_', '-')} must be at most {high}, not {getattr(self, field)}")
        if self.warmup_epochs is not None and self.warmup_epochs >= self.epochs:
            raise AAGError(f"--warmup-epochs {self.warmup_epochs} leaves none of {self.epochs} epochs to train")
        if not 0 <= self.seed < 2**63:
            raise AAGError(f"--seed must lie in 0 … 2^63 − 1, not {self.seed}")
        return self

    def identity(self) -> dict[str, Any]:
        """The settings that make two runs the same run: not where it runs nor how it is watched."""
        resolved = replace(self, recipe=recipe_config(self.recipe, self.data).recipe)
        return {name: value for name, value in resolved.to_json().items() if name not in OPERATIONAL}

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_json(settings: dict[str, Any]) -> "TrainConfig":
        known = {field.name for field in fields(TrainConfig)}
        values = {name: value for name, value in settings.items() if name in known}
        for name in ("out", "data_root"):
            values[name] = None if values.get(name) is None else Path(values[name])
        return TrainConfig(**values)

    def run_name(self) -> str:
        """Data, network, recipe, seed, and each setting that differs from the recipe's."""
        base = recipe_config(self.recipe, self.data)
        data = Path(self.data).name.removesuffix(".npz") or "images"
        name = [data, self.network.replace("/", "-"), base.recipe, f"seed{self.seed}"]
        for field, value in self.identity().items():
            if field not in ("data", "network", "recipe", "seed") and value != getattr(base, field):
                name.append(f"{field.replace('_', '-')}={value}")
        whole = re.sub(r"[^\w.=+-]", "_", "-".join(name))
        if len(whole.encode()) <= 200:
            return whole
        # A file system takes 255 bytes, and files are named after runs: the rest is told apart by a hash.
        return whole.encode()[:190].decode(errors="ignore") + "-" + hashlib.sha256(whole.encode()).hexdigest()[:8]


OPERATIONAL = frozenset({"out", "device", "compile", "data_root", "knn_every", "checkpoint_minutes"})


@dataclass(frozen=True)
class Recipe:
    """Settings with a name, and what to expect of them."""

    about: str
    command: str
    expect: str
    settings: dict[str, Any]


RECIPES: dict[str, Recipe | None] = {
    "auto": None,
    "paper": Recipe(
        about="AAG as in the paper: 200 epochs, batch 128, lr 0.03, τ 0.1, AutoAugment as the auxiliary view",
        command="aag train --data cifar10 --recipe paper",
        expect="CIFAR-10, ResNet-18: kNN 88.3 in the paper; 89.0 here, in 5 minutes on one H200",
        settings={},
    ),
    "paper-resnet50": Recipe(
        about="the paper's larger network: ResNet-50 with an MLP head, batch 64, 1000 epochs",
        command="aag train --data cifar10 --recipe paper-resnet50",
        expect="CIFAR-10: linear 94.5 in the paper; not run here yet",
        settings={"network": "resnet50", "batch_size": 64, "epochs": 1000},
    ),
    "demo": Recipe(
        about="a narrow ResNet-18 on the bundled sample, for a CPU",
        command="aag train --data sample --recipe demo",
        expect="kNN from 24 to 39, in 2 minutes on two cores",
        settings={"width": 8, "epochs": 9, "batch_size": 32, "lr": 0.12, "knn_every": 3},
    ),
}


def recipe_config(recipe: str, data: str) -> TrainConfig:
    """The recipe's settings; `auto` stands for demo on the bundled sample and for paper elsewhere."""
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    if recipe == "auto":
        recipe = "demo" if data == "sample" else "paper"
    chosen = RECIPES[recipe]
    assert chosen is not None
    return replace(TrainConfig(data=data, recipe=recipe), **chosen.settings)
