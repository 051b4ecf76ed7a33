"""How a convolution is computed for the kernels: by the library, or as a matrix product; forward and both gradients.

`weight` is the layer's in low precision; `refresh` follows when it changed. `forward` returns the result and, where
they came along, the sums for its batch norm, which is of each of `lots` equal parts of the images by itself.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from aag.kernels import channel_block, in_dry_run, launch
from aag.kernels.patches import WIDTH, first_convolution, first_gradient, first_step
from aag.kernels.turn import turn

if TYPE_CHECKING:
    from aag.nets.fused import ConvNormLayer, Fused

aten = torch.ops.aten

FEW = (8192, 16, 1)  # elements a tile, warps, programs a processor: for reductions, whose programs leave sums to add up
MANY = (8192, 8, 2)


def shared(
    rows: int, channels: int, lots: int, shape: tuple[int, int, int], processors: int
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Grid and sizes of programs that share the rows of a lot, in groups of channels."""
    elements, warps, programs = shape
    block_c = channel_block(channels)
    block_m = elements // block_c
    groups = channels // block_c
    most = max(1, processors * programs // (groups * lots))
    sizes = {"SPLIT": lots > 1, "BLOCK_M": block_m, "BLOCK_C": block_c, "num_warps": warps}
    return (min(most, -(-rows // block_m)), groups, lots), sizes


def product(conv: nn.Conv2d, weight: Tensor, fused: "Fused") -> Any:
    if conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0):
        return Pointwise(weight)
    if conv.in_channels == 3:
        return First(weight, fused)
    return Spatial(conv, weight)


class Pointwise:
    """1×1: a product of rows [pixels, channels]."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def refresh(self) -> None: ...

    def forward(self, x: Tensor, lots: int) -> tuple[Tensor, None]:
        return as_images(as_rows(x) @ self.weight.flatten(1).T, x), None

    def grad_input(self, grad: Tensor, x: Tensor) -> Tensor:
        return as_images(as_rows(grad) @ self.weight.flatten(1), grad)

    def grad_weight(self, grad: Tensor, x: Tensor) -> Tensor:
        return (as_rows(grad).T @ as_rows(x)).view_as(self.weight)


class First:
    """3×3 of uint8 images: a product of neighbourhoods. What is saved for backward are these."""

    def __init__(self, weight: Tensor, fused: "Fused") -> None:
        self.weight, self.fused = weight, fused
        self.flat = weight.new_zeros(len(weight), WIDTH)
        # Tiles on their way while others are worked on: three fit where the shared memory is large and they are small.
        self.stages = 3 if fused.large and weight.dtype == torch.bfloat16 and len(weight) % 64 == 0 else 1

    def refresh(self) -> None:
        self.flat[:, : 9 * 3] = self.weight.permute(0, 2, 3, 1).flatten(1)

    def forward(self, around: Tensor, lots: int) -> tuple[Tensor, Tensor]:
        rows, channels = around.numel() // WIDTH // lots, len(self.flat)
        out = around.new_empty(lots * rows, channels)
        grid, sizes = shared(rows, channels, lots, MANY, self.fused.processors)
        partial = out.new_empty(lots, grid[0], 2, channels, dtype=torch.float32)
        launch(
            first_convolution, grid, around, self.flat, out, partial, rows, channels,
            WIDTH=WIDTH, PRECISE=out.dtype == torch.float32, num_stages=self.stages, **sizes,
        )  # fmt: skip
        return as_images(out, around), partial

    def gradient(
        self, layer: "ConvNormLayer", around: Tensor, grad: Tensor, z: Tensor, partial: Tensor, moments: Tensor,
        of_norm: Tensor, tensors: list[Any], numbers: list[Any], mask: bool, how: dict[str, Any],
    ) -> Tensor | None:  # fmt: skip
        """∂weights, through the batch norm, or their step: where its size depends on all of ∂weights, after these."""
        (lots, parts), channels = partial.shape[:2], len(self.flat)
        rows = around.numel() // WIDTH // lots
        grid, sizes = shared(rows, channels, lots, MANY, self.fused.processors)
        shares = z.new_empty(lots * grid[0], channels, WIDTH, dtype=torch.float32)
        launch(
            first_gradient, grid, around, grad, z, partial, moments, of_norm[0], of_norm[1], *tensors, shares,
            rows, channels, parts, *numbers, WIDTH=WIDTH, PRECISE=z.dtype == torch.float32,
            num_stages=self.stages, MASK=mask, **how, **sizes,
        )  # fmt: skip
        weight, optimizer = layer.conv.weight, self.fused.optimizer
        out = torch.empty_like(weight)
        velocity = out if optimizer is None else optimizer.velocity[weight]
        after = optimizer is not None and optimizer.trust_coefficient(weight) > 0
        how = how | {"LEARN": how["LEARN"] and not after}
        launch(
            first_step, (channels,), shares, weight, velocity, self.flat, out, tensors[-1], channels, len(shares),
            *numbers, **how, WIDTH=WIDTH, num_warps=4,
        )  # fmt: skip
        if after:
            self.fused.step(weight, self.weight, out)
            self.refresh()
        return out if optimizer is None else None


class Spatial:
    """The library's convolution.

    At stride 1 forward and backward differ by the weights alone, turned around and transposed, so each can be computed
    by the other's kernel. Which is faster depends on the shape; it is measured at the first call. The two round
    differently, and near a tie the next run may choose the other.
    """

    def __init__(self, conv: nn.Conv2d, weight: Tensor) -> None:
        self.weight = weight
        self.settings = (conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups)
        same = conv.stride == (1, 1) and conv.in_channels == conv.out_channels
        self.turned = torch.empty_like(weight) if same and weight.is_cuda else None
        self.turns = True  # unless both directions turn out to be faster without

    def refresh(self) -> None:
        if self.turned is not None and self.turns:
            channels, _, height, width = self.weight.shape
            blocks = -(-channels // 64)
            launch(
                turn,
                (blocks, blocks, height * width),
                self.weight,
                self.turned,
                channels,
                TAPS=height * width,
                BLOCK=64,
                num_warps=4,
            )

    def forward(self, x: Tensor, lots: int) -> tuple[Tensor, None]:
        usual, other = lambda: self._conv(x, self.weight), lambda: self._back(x, x, self.turned)
        return self._faster("forward", x, usual, other), None

    def grad_input(self, grad: Tensor, x: Tensor) -> Tensor:
        usual, other = lambda: self._back(grad, x, self.weight), lambda: self._conv(grad, self.turned)
        return self._faster("backward", x, usual, other)

    def grad_weight(self, grad: Tensor, x: Tensor) -> Tensor:
        return aten.convolution_backward(grad, x, self.weight, None, *self.settings, [False, True, False])[1]

    def _conv(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return aten.convolution(x, weight, None, *self.settings)

    def _back(self, grad: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
        """Of x, only the shape counts."""
        return aten.convolution_backward(grad, x, weight, None, *self.settings, [True, False, False])[0]

    def _faster(self, name: str, x: Tensor, usual: Callable[[], Tensor], other: Callable[[], Tensor]) -> Tensor:
        if self.turned is None or in_dry_run():
            return usual()
        choice = _CHOICES.setdefault((x.shape, x.dtype, x.device, self.weight.shape), {})
        if name not in choice:
            choice[name] = _milliseconds(other) < 0.95 * _milliseconds(usual)
        before, self.turns = self.turns, len(choice) < 2 or any(choice.values())
        if self.turns and not before:
            self.refresh()
        return other() if choice[name] else usual()


_CHOICES: dict[tuple[Any, ...], dict[str, bool]] = {}  # for a shape, whether to compute by the other's kernel


def _milliseconds(work: Callable[[], object], repeats: int = 10) -> float:
    work()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(repeats):
        work()
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) / repeats


def as_rows(x: Tensor) -> Tensor:
    """[B, C, H, W], channels last, as [B · H · W, C]."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def as_images(x: Tensor, like: Tensor) -> Tensor:
    """[B · H · W, C] as [B, C, H, W], channels last."""
    b, _, h, w = like.shape
    return x.view(b, h, w, -1).permute(0, 3, 1, 2)
