"""Linear evaluation: one linear layer on frozen, cached features."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import cos, pi, sqrt
from time import perf_counter
from typing import Annotated, Any

import torch
from torch import Tensor

from aag.evaluate.knn import check_labelled, check_same_width
from aag.settings import Range, Seed, check_value

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's defaults
MAX_GRAPH_STEPS = 4096  # longer epochs keep the device busy without a graph and take long to capture
ONE_THREAD_PRODUCTS = 10_000_000  # multiply-adds of a batch's logits; up to here, one CPU thread is fastest


@dataclass(frozen=True)
class LinearResult:
    """Accuracies in percent (0–100). Report `accuracy`; `best_accuracy` is selected on the test set."""

    accuracy: float  # of the last epoch
    best_accuracy: float
    best_epoch: int  # counted from 1
    train_accuracy: float  # after the last epoch
    curve: tuple[float, ...]  # test accuracy after each epoch
    seconds: float
    weight: Tensor = field(repr=False, compare=False)  # [C, F]
    bias: Tensor = field(repr=False, compare=False)  # [C]
    classes: Tensor = field(repr=False, compare=False)  # [C] the label of each output


def linear_protocol(
    *,
    epochs: int = 50,
    batch_size: int = 128,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    seed: int = 0,
    layer: str = "features",
) -> dict[str, Any]:
    """Return how a linear-evaluation accuracy was measured, for JSON."""
    return {
        "evaluation": "linear",
        "layer": layer,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": "adam",
        "lr": lr,
        "schedule": "cosine to 0, per step",
        "weight_decay": weight_decay,
        "augmentation": "none",
        "reported": "last epoch",
        "seed": seed,
    }


@torch.no_grad()
def linear_probe(
    train_features: Tensor,  # [N, F]
    train_labels: Tensor,  # [N]
    test_features: Tensor,  # [M, F]
    test_labels: Tensor,  # [M]
    *,
    epochs: int = 50,
    batch_size: int = 128,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> LinearResult:
    """Train one linear layer with Adam and cross-entropy, on the training features' device.

    Initialisation and shuffles come from a CPU generator, so a seed means the same on every device.
    """
    started = perf_counter()
    train_features, train_labels = check_labelled("training", train_features, train_labels)
    test_features, test_labels = check_labelled("test", test_features, test_labels)
    check_same_width(train_features, test_features)
    epochs = check_value("epochs", epochs, Annotated[int, Range(at_least=1, at_most=1e6)])
    batch_size = check_value("batch_size", batch_size, Annotated[int, Range(at_least=1)])
    lr = check_value("lr", lr, Annotated[float, Range(above=0, at_most=1e6)])
    weight_decay = check_value("weight_decay", weight_decay, Annotated[float, Range(at_least=0, at_most=1e6)])
    seed = check_value("seed", seed, Seed)
    device = train_features.device
    test_features, test_labels = test_features.to(device), test_labels.to(device)
    classes, targets = torch.unique(train_labels, return_inverse=True)

    generator = torch.Generator().manual_seed(seed)
    with torch.autocast(device.type, enabled=False):  # the caller's would round the weights
        layer = _SoftmaxRegression(train_features, targets, len(classes), batch_size, weight_decay, generator)
        schedule = adam_schedule(epochs * layer.steps, lr).view(epochs, layer.steps, 2).to(device)
        correct = torch.empty(
            epochs, dtype=torch.int64, device=device
        )  # read once at the end, as reading waits for the device
        run_epoch = layer.run_epoch
        for epoch in range(epochs):
            layer.order.copy_(torch.randperm(len(targets), generator=generator))
            layer.schedule.copy_(schedule[epoch])
            run_epoch()
            correct[epoch] = (classes[layer.predict(test_features)] == test_labels).sum()
            if epoch == 0 and epochs > 1:  # the first, eager epoch was the warm-up that a capture needs
                run_epoch = layer.capture()
        train_correct = int((layer.predict(train_features) == targets).sum())

    curve = tuple(100 * count / len(test_labels) for count in correct.tolist())
    return LinearResult(
        accuracy=curve[-1],
        best_accuracy=max(curve),
        best_epoch=curve.index(max(curve)) + 1,
        train_accuracy=100 * train_correct / len(targets),
        curve=curve,
        seconds=perf_counter() - started,
        weight=layer.weight.clone(),
        bias=layer.bias.clone(),
        classes=classes,
    )


def adam_schedule(steps: int, lr: float) -> Tensor:
    """Return step sizes s and epsilons e of Adam, [steps, 2]: with these in a tensor, a graph can replay a step.

    With lr_t on a cosine from lr to 0 and bias corrections c₁ = 1 − β₁ᵗ, c₂ = 1 − β₂ᵗ, the textbook update
    w −= lr_t · (m / c₁) / (√(v / c₂) + ε) is w −= s · m / (√v + e) with s = lr_t √c₂ / c₁ and e = ε √c₂.
    """
    rows = []
    for t in range(1, steps + 1):
        lr_t = lr * (1 + cos(pi * (t - 1) / steps)) / 2
        root = sqrt(1 - BETA2**t)
        rows.append((lr_t * root / (1 - BETA1**t), EPSILON * root))
    return torch.tensor(rows)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one CPU thread in the block.

    Threads that synchronise after every tiny operation gain nothing on an idle machine, and wait for each other on a
    busy one. 50 epochs of 50,000 × 512 took 3.6 s on two idle cores, 139 s on two busy ones, and 7 s there with one
    thread.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _SoftmaxRegression:
    """A linear layer under cross-entropy, with its gradient written out, and Adam.

    A step is about fifteen small kernels and a run twenty thousand steps, so overhead dominates. Hence no autograd and
    no optimizer object: weight and bias are views of one vector, which Adam updates at once. All state is in fixed
    tensors and nothing is read back, so a CUDA graph can hold an epoch.
    """

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        classes: int,
        batch_size: int,
        weight_decay: float,
        generator: torch.Generator,
    ) -> None:
        count, width = features.shape
        device = features.device
        self.features, self.targets = features, targets.unsqueeze(1)
        self.batch_size, self.weight_decay = min(batch_size, count), weight_decay
        self.steps = -(-count // batch_size)  # the last batch may be smaller

        bound = width**-0.5  # nn.Linear's default initialisation, for weight and bias
        parameters = torch.empty(classes * (width + 1)).uniform_(-bound, bound, generator=generator)
        self.parameters = parameters.to(device)
        self.weight, self.bias = self._views(self.parameters, classes)
        self.gradient = torch.zeros_like(self.parameters)
        self.weight_gradient, self.bias_gradient = self._views(self.gradient, classes)
        self.moment1, self.moment2 = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)

        self.order = torch.empty(count, dtype=torch.int64, device=device)
        self.schedule = torch.empty(self.steps, 2, device=device)
        self.minus_one = torch.full((self.batch_size, 1), -1.0, device=device)

    @staticmethod
    def _views(flat: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        return flat[:-classes].view(classes, -1), flat[-classes:]

    def predict(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, features, self.weight.T).argmax(dim=1)

    def run_epoch(self) -> None:
        """Run one epoch over the training set in `self.order`, with the rates in `self.schedule`."""
        small = self.features.device.type == "cpu" and self.batch_size * self.weight.numel() < ONE_THREAD_PRODUCTS
        with _one_thread() if small else nullcontext():
            for step, rows in enumerate(self.order.split(self.batch_size)):
                self._step(rows, *self.schedule[step].unbind())

    def capture(self) -> Callable[[], None]:
        """Return `run_epoch` as a CUDA graph, on a GPU: the same kernels without the cost of launching them."""
        if self.features.device.type != "cuda" or self.steps > MAX_GRAPH_STEPS:
            return self.run_epoch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self.features.device), torch.cuda.graph(graph):
                self.run_epoch()
        except RuntimeError:  # something else in the process prevents capture; eager steps give the same numbers
            return self.run_epoch
        return graph.replay

    def _step(self, rows: Tensor, rate: Tensor, epsilon: Tensor) -> None:
        # For logits z = Wx + b and n rows, dL/dz = (softmax(z) − onehot(y)) / n, and dL/dW = (dL/dz)ᵀ x.
        x = self.features.index_select(0, rows)  # [n, F]
        error = torch.addmm(self.bias, x, self.weight.T).softmax(dim=1)  # [n, C]
        error.scatter_add_(1, self.targets.index_select(0, rows), self.minus_one)
        error.div_(len(rows))
        torch.mm(error.T, x, out=self.weight_gradient)
        torch.sum(error, 0, out=self.bias_gradient)

        gradient = self.gradient
        if self.weight_decay:
            gradient.add_(self.parameters, alpha=self.weight_decay)
        self.moment1.lerp_(gradient, 1 - BETA1)
        self.moment2.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        self.parameters.sub_(self.moment1.div(self.moment2.sqrt().add_(epsilon)).mul_(rate))
