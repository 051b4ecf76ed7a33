"""What a user can set, and a run's name and identity, which follow from it.

Plain data: importing this costs nothing, so that the command line can show its help at once.
"""

import hashlib
import re
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from aag.errors import AAGError, unknown
from aag.recipes import ON, POLICY_ON, RECIPES, SMALL

METHODS = ("aag", "instance", "isif", "simclr", "moco", "and", "super-and", "deepcluster", "amdim")
LOSSES = ("gnt-xent", "nt-xent", "dcl", "dclw", "own")
LOSSES_OF = {  # for each method; the others have their own alone
    "aag": ("gnt-xent", "nt-xent"),
    "isif": LOSSES,
    "simclr": ("gnt-xent", "nt-xent", "dcl", "dclw"),
    "moco": ("gnt-xent", "nt-xent"),
}
USED_BY = {  # options that mean something to some methods alone
    **dict.fromkeys(("auxiliary", "auxiliary_crop", "policy", "rand_n", "rand_magnitude"), ("aag",)),
    "bank_momentum": ("instance", "and", "super-and"),
    "negatives": ("instance",),
    **dict.fromkeys(("queue", "key_momentum", "symmetric"), ("moco",)),
    "clusters": ("deepcluster",),
    "forward": ("aag", "isif", "simclr", "super-and", "amdim"),
    "temperature": ("aag", "instance", "isif", "simclr", "moco", "and", "super-and"),
}
OPTIMIZERS = ("sgd", "lars", "adam")
SCHEDULES = ("cosine", "step", "constant")
BASICS = ("paper", "isif", "simclr", "crop", "amdim")
AUXILIARIES = ("autoaugment", "randaugment", "basic", "none")
CROPS = ("resized", "padded", "none")
POLICY_NAMES = ("auto", "cifar10", "svhn", "imagenet")
FORWARDS = ("joint", "per-view")
HEADS = ("auto", "linear", "mlp", "none")
PRECISIONS = ("auto", "bf16", "fp32")
COMPILES = ("auto", "on", "off")
NAMES = {
    "recipe": ("auto", *RECIPES), "method": METHODS, "loss": LOSSES, "schedule": SCHEDULES, "basic": BASICS,
    "optimizer": OPTIMIZERS, "auxiliary": AUXILIARIES, "auxiliary_crop": CROPS, "policy": POLICY_NAMES,
    "forward": FORWARDS, "head": HEADS, "precision": PRECISIONS, "compile": COMPILES,
}  # fmt: skip
MOMENTA = ("momentum", "bank_momentum", "key_momentum")
LEAST = {
    "epochs": 1, "batch_size": 2, "embedding": 1, "width": 1, "image_size": 8, "knn_every": 0, "warmup_epochs": 0,
    "rand_n": 1, "rand_magnitude": 0, "checkpoint_minutes": 0, "lr": 0, "weight_decay": 0, "rounds": 1, "decay_by": 0,
    "negatives": 0, "queue": 1, "norm_images": 0, "clusters": 2, **dict.fromkeys(MOMENTA, 0),
}  # fmt: skip
MOST = {"rand_n": 16, "rand_magnitude": 30}


@dataclass(frozen=True)
class TrainConfig:
    """Train an encoder without labels, and go on where an earlier run of the same command stopped."""

    data: str = "sample"
    """A known set (sample, cifar10, cifar100, svhn), a folder of images, or an .npz file."""
    recipe: str = "auto"
    """Named settings that the other options change (aag recipes lists them). auto: demo for the bundled sample, else
    paper, or the method's own."""
    out: Path | None = None
    """The run folder. Default: runs/ and a name made from the settings."""

    method: str = "aag"
    """aag, instance, isif, simclr, moco, and, super-and, deepcluster or amdim."""
    network: str = "resnet18"
    """resnet18, resnet50, alexnet, alexnet-ip, amdim, or any timm model by name; with -edges behind it (resnet18-edges)
    it sees edges in the place of colours, with +sobel a second branch of the same kind does."""
    width: int = 64
    """Channels of the ResNet's first stage, and the scale of amdim; 64 is the real one, less is faster."""
    head: str = "auto"
    """From features to embedding: linear, mlp, none (they are the same), or auto (mlp for resnet50, else linear)."""
    embedding: int = 128
    """Size of the embedding; with --head none it is that of the features."""

    epochs: int = 200
    """Passes over the images."""
    batch_size: int = 128
    """Images in a step; each is seen in every view."""
    lr: float = 0.03
    """Learning rate for a batch of 128; used times batch size / 128."""
    schedule: str = "cosine"
    """cosine: to zero over the run; step: by steps, see --decay-at; or constant."""
    decay_at: tuple[float, ...] = (0.6, 0.8)
    """Shares of the epochs after which the learning rate drops (step)."""
    decay_by: float = 0.1
    """What it is multiplied by then."""
    rounds: int = 1
    """Rounds that the epochs are divided into; the learning rate starts anew in each."""
    warmup_epochs: int | None = None
    """Epochs of linear warm-up. None: 10 (at most half of the run) above a batch of 256, else none."""
    optimizer: str = "sgd"
    """sgd, lars or adam."""
    momentum: float = 0.9
    """Of SGD and LARS; Adam's β₁."""
    nesterov: bool = False
    """Nesterov's momentum, of SGD."""
    weight_decay: float = 5e-4
    """On all parameters; LARS leaves out biases and batch norms."""

    loss: str = "gnt-xent"
    """gnt-xent, nt-xent (the positive kept in every denominator), dcl, dclw, or own: the method's, where that is none
    of these."""
    temperature: float = 0.1
    """τ: cosine similarities are divided by it."""

    basic: str = "paper"
    """Preset of the basic views: paper, isif, simclr, crop (colours left alone) or amdim."""
    auxiliary: str = "autoaugment"
    """The third view: autoaugment, randaugment, basic (three basic views) or none (two basic views)."""
    auxiliary_crop: str = "resized"
    """Before the policy: resized (random resized crop and flip), padded (shift and flip) or none (so on SVHN)."""
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

    bank_momentum: float = 0.5
    """Share of the old embedding that a memory bank keeps (instance, and, super-and)."""
    negatives: int = 0
    """Noise samples of the NCE loss (instance). 0: the softmax over all images."""
    queue: int = 4096
    """Keys to contrast with (moco)."""
    key_momentum: float = 0.99
    """Share of the old weights that the key encoder keeps (moco)."""
    symmetric: bool = False
    """Each view is a query once and a key once (moco)."""
    norm_images: int = 0
    """Images that batch norm sees together, as if that many were on each GPU; moco shuffles keys among them. 0: all."""
    clusters: int = 1000
    """Of k-means, at most one for ten images (deepcluster)."""

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
        self._check_names()
        self._check_ranges()
        self._check_together()
        return self

    def _check_names(self) -> None:
        for field, known in NAMES.items():
            if getattr(self, field) not in known:
                raise unknown(field.replace("_", " "), getattr(self, field), known)
        if self.loss not in (losses := LOSSES_OF.get(self.method, ("own",))):
            raise AAGError(f"--method {self.method} has no --loss {self.loss}; use {' or '.join(losses)}")
        for field, methods in USED_BY.items():
            if self.method not in methods and getattr(self, field) != getattr(TrainConfig, field):
                raise AAGError(f"--{field.replace('_', '-')} means nothing to {self.method}; leave it out")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise AAGError(f"unknown device {self.device!r}; use auto, cpu, cuda or cuda:N")

    def _check_ranges(self) -> None:
        for field, low in LEAST.items():
            value = getattr(self, field)
            if value is not None and not low <= value <= sys.float_info.max:
                raise AAGError(f"--{field.replace('_', '-')} must be at least {low}, not {value}")
        for field, high in MOST.items():
            if getattr(self, field) > high:
                raise AAGError(f"--{field.replace('_', '-')} must be at most {high}, not {getattr(self, field)}")
        for field in MOMENTA:
            if getattr(self, field) >= 1:
                raise AAGError(f"--{field.replace('_', '-')} must be below 1, not {getattr(self, field)}")
        if not 0 < self.temperature < float("inf"):
            raise AAGError(f"--temperature must be positive, not {self.temperature}")
        if any(not 0 < share <= 1 for share in self.decay_at):
            raise AAGError(f"--decay-at takes shares of the epochs, above 0 and at most 1, not {self.decay_at}")
        if self.norm_images == 1:
            raise AAGError("--norm-images 1 leaves batch norm nothing to compare; 0 stands for the whole batch")
        if not 0 <= self.seed < 2**63:
            raise AAGError(f"--seed must lie in 0 … 2^63 − 1, not {self.seed}")

    def _check_together(self) -> None:
        if self.epochs % self.rounds:
            raise AAGError(
                f"--epochs {self.epochs} cannot be divided into {self.rounds} --rounds; use --rounds 1, or --epochs "
                f"{self.rounds * max(1, round(self.epochs / self.rounds))}"
            )
        base = self.base()
        if self.nesterov and not base.nesterov and self.optimizer != "sgd":
            raise AAGError(f"--nesterov means nothing to --optimizer {self.optimizer}; leave it out")
        decay = (self.decay_at, self.decay_by) != (base.decay_at, base.decay_by)
        if decay and self.schedule != "step":
            raise AAGError(f"--decay-at and --decay-by mean nothing to --schedule {self.schedule}; leave them out")
        if self.norm_images and self.batch_size % self.norm_images:
            raise AAGError(
                f"--batch-size {self.batch_size} is no multiple of --norm-images {self.norm_images}; "
                "use --norm-images 0 for the whole batch"
            )
        if self.warmup_epochs is not None and self.warmup_epochs >= self.epochs // self.rounds:
            raise AAGError(
                f"--warmup-epochs {self.warmup_epochs} leaves none of {self.epochs // self.rounds} epochs to train"
            )

    def identity(self) -> dict[str, Any]:
        """The settings that make two runs the same run: not where it runs nor how it is watched."""
        resolved = replace(self, recipe=self.base().recipe)
        return {name: value for name, value in resolved.to_json().items() if name not in OPERATIONAL}

    def base(self) -> "TrainConfig":
        """The settings of its recipe, which it was made from."""
        return recipe_config(self.recipe, self.data, self.method)

    def autoaugment_policy(self) -> str:
        return POLICY_ON.get(self.data, "cifar10") if self.policy == "auto" else self.policy

    def loss_name(self) -> str:
        return "its own loss" if self.loss == "own" else self.loss

    def tempered(self) -> bool:
        """Whether its loss has a temperature."""
        return self.method in USED_BY["temperature"]

    def by_recipe(self) -> bool:
        """Whether its method is the one that the recipe takes if none is named."""
        return self.method == recipe_config(self.base().recipe, self.data).method

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_json(settings: dict[str, Any]) -> "TrainConfig":
        kinds = get_type_hints(TrainConfig)
        values = {name: value for name, value in settings.items() if name in kinds}
        for name, value in values.items():
            if not _is(value, kinds[name]):
                raise AAGError(f"its setting {name} is {value!r}")
        for name in ("out", "data_root"):
            values[name] = None if values.get(name) is None else Path(values[name])
        if "decay_at" in values:
            values["decay_at"] = tuple(values["decay_at"])
        return TrainConfig(**values)

    def run_name(self) -> str:
        """Data, network, recipe, seed, and each setting that differs from the recipe's."""
        base = self.base()
        settings = base.to_json()
        recipe = base.recipe if self.by_recipe() else f"{base.recipe}-{self.method}"
        data = Path(self.data).name.removesuffix(".npz") or "images"
        name = [data, self.network.replace("/", "-"), recipe, f"seed{self.seed}"]
        for field, value in self.identity().items():
            if field not in ("data", "network", "recipe", "method", "seed") and value != settings[field]:
                name.append(f"{field.replace('_', '-')}={value}")
        whole = re.sub(r"[^\w.=+-]", "_", "-".join(name))
        if len(whole.encode()) <= 200:
            return whole
        # A file system takes 255 bytes, and files are named after runs: the rest is told apart by a hash.
        return whole.encode()[:190].decode(errors="ignore") + "-" + hashlib.sha256(whole.encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _is(value: Any, kind: Any) -> bool:
    """Whether JSON has this for a setting of that kind."""
    if kind == tuple[float, ...]:
        return isinstance(value, list | tuple) and all(_is(each, float) for each in value)
    if kind == Path | None:
        return isinstance(value, str | None)
    if isinstance(value, bool):  # which counts as an int
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


OPERATIONAL = frozenset({"out", "device", "compile", "data_root", "knn_every", "checkpoint_minutes"})


def recipe_config(recipe: str, data: str, method: str = "aag") -> TrainConfig:
    """The recipe's settings. auto: demo on the bundled sample; elsewhere paper, or a rival's own.

    demo is small for every method, and otherwise what its own recipe says.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if recipe == "auto":
        recipe = "demo" if data == "sample" else ("paper" if method == "aag" else method)
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, ["auto", *RECIPES])
    settings = {"method": method, **RECIPES[recipe].settings}
    if settings["method"] == "aag":
        settings = {**ON.get(data, {}), **settings}
    if recipe == "demo" and method != "aag":
        settings = {**RECIPES[method].settings, **settings, **SMALL.get(method, {})}
    return replace(TrainConfig(data=data, recipe=recipe), **settings)
