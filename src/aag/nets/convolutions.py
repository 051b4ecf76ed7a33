"""Convolutions for the fused layers, by PyTorch or as matrix products: forward and both gradients.

`weight` is the weight in the network's precision; call `refresh` after it changed. `forward` returns the result and
the sums for the batch norm, for each of `groups` equal parts of the images, or None if it does not compute them anyway.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aag.kernels import channel_block, in_dry_run, launch
from aag.kernels.flip import flip_weights
from aag.kernels.stem import PATCH, stem_convolution, stem_gradient, stem_step
from aag.nets.kernel_context import KernelContext

aten = torch.ops.aten

# Elements per tile, warps, programs per processor. Reductions have fewer programs, because each writes partial sums.
REDUCTION, ELEMENTWISE = (8192, 16, 1), (8192, 8, 2)


def row_grid(
    rows: int, channels: int, groups: int, shape: tuple[int, int, int], processors: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return grid and block sizes for programs that share the rows of a group, for a block of channels each."""
    elements, warps, programs = shape
    block_c = channel_block(channels)
    block_m = elements // block_c
    blocks = channels // block_c
    max_programs = max(1, processors * programs // (blocks * groups))
    sizes = {"GROUPED": groups > 1, "BLOCK_M": block_m, "BLOCK_C": block_c, "num_warps": warps}
    return (min(max_programs, -(-rows // block_m)), blocks, groups), sizes


class UpdateArguments(NamedTuple):
    """Arguments of a backward kernel for updating the batch norm's weights."""

    tensors: list[Tensor]  # weight, bias, their velocities, learning rate
    numbers: list[float]  # momentum, weight decay
    flags: dict[str, Any]  # UPDATE, RULE


def make_convolution(conv: nn.Conv2d, weight: Tensor, context: KernelContext) -> Any:
    if conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0):
        return PointwiseConvolution(weight)
    if conv.in_channels == 3:
        return StemConvolution(conv, weight, context)
    return LibraryConvolution(conv, weight)


class PointwiseConvolution:
    """1×1 convolution: a product of rows [pixels, channels]."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def refresh(self) -> None: ...

    def forward(self, x: Tensor, groups: int) -> tuple[Tensor, None]:
        return as_images(as_rows(x) @ self.weight.flatten(1).T, x), None

    def grad_input(self, grad: Tensor, x: Tensor) -> Tensor:
        return as_images(as_rows(grad) @ self.weight.flatten(1), grad)

    def grad_weight(self, grad: Tensor, x: Tensor) -> Tensor:
        return (as_rows(grad).T @ as_rows(x)).view_as(self.weight)


class StemConvolution:
    """3×3 convolution of images, as a product of patches [B, PATCH, H, W] with the weights."""

    def __init__(self, conv: nn.Conv2d, weight: Tensor, context: KernelContext) -> None:
        self.conv, self.weight, self.context = conv, weight, context
        self.flat = weight.new_zeros(len(weight), PATCH)
        # Three tiles in flight fit into a large shared memory, where they are small.
        large = context.has_large_shared_memory and weight.dtype == torch.bfloat16 and len(weight) % 64 == 0
        self.stages = 3 if large else 1

    def refresh(self) -> None:
        self.flat[:, : 9 * 3] = self.weight.permute(0, 2, 3, 1).flatten(1)

    def forward(self, patches: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        rows, channels = patches.numel() // PATCH // groups, len(self.flat)
        out = patches.new_empty(groups * rows, channels)
        grid, sizes = row_grid(rows, channels, groups, ELEMENTWISE, self.context.processors)
        partial = out.new_empty(groups, grid[0], 2, channels, dtype=torch.float32)
        launch(
            stem_convolution, grid, patches, self.flat, out, partial, rows, channels,
            PATCH=PATCH, PRECISE=out.dtype == torch.float32, num_stages=self.stages, **sizes,
        )  # fmt: skip
        return as_images(out, patches), partial

    def backward(
        self, patches: Tensor, grad: Tensor, z: Tensor, partial: Tensor, moments: Tensor, grad_norm: Tensor,
        update: UpdateArguments, mask: bool,
    ) -> Tensor | None:  # fmt: skip
        """Return ∂weights, taken through the batch norm, or update the weights and return None."""
        (groups, parts), channels = partial.shape[:2], len(self.flat)
        rows = patches.numel() // PATCH // groups
        grid, sizes = row_grid(rows, channels, groups, ELEMENTWISE, self.context.processors)
        grad_partial = z.new_empty(groups * grid[0], channels, PATCH, dtype=torch.float32)
        launch(
            stem_gradient, grid, patches, grad, z, partial, moments, grad_norm[0], grad_norm[1], *update.tensors,
            grad_partial,
            rows, channels, parts, *update.numbers, PATCH=PATCH, PRECISE=z.dtype == torch.float32,
            num_stages=self.stages, MASK=mask, **update.flags, **sizes,
        )  # fmt: skip
        weight, optimizer = self.conv.weight, self.context.optimizer
        out = torch.empty_like(weight)
        velocity = out if optimizer is None else optimizer.velocity[weight]
        # The size of a LARS step depends on all of ∂weights, so it comes after them.
        step_after = optimizer is not None and optimizer.trust_coefficient(weight) > 0
        flags = update.flags | {"UPDATE": update.flags["UPDATE"] and not step_after}
        launch(
            stem_step, (channels,), grad_partial, weight, velocity, self.flat, out, update.tensors[-1], channels,
            len(grad_partial), *update.numbers, **flags, PATCH=PATCH, num_warps=4,
        )  # fmt: skip
        if step_after:
            self.context.step(weight, self.weight, out)
            self.refresh()
        return out if optimizer is None else None


class LibraryConvolution:
    """PyTorch's convolution, which cuDNN computes on a GPU.

    At stride 1, forward and input gradient differ only in the weights, which are flipped and transposed. So each can
    run on the other's kernel. Which is faster depends on the shape and is measured at the first call. The two round
    differently and may be equally fast, so a deterministic run does not choose: another run could choose otherwise.
    """

    def __init__(self, conv: nn.Conv2d, weight: Tensor) -> None:
        self.weight = weight
        self.settings = (conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups)
        same_shape = conv.stride == (1, 1) and conv.in_channels == conv.out_channels
        self.flipped = torch.empty_like(weight) if same_shape and weight.is_cuda else None
        self.needs_flipped = True  # False once neither direction is faster with the flipped weights

    def refresh(self) -> None:
        if self.flipped is not None and self.needs_flipped:
            channels, _, height, width = self.weight.shape
            taps, blocks = height * width, -(-channels // 64)
            grid = (blocks, blocks, taps)
            launch(flip_weights, grid, self.weight, self.flipped, channels, TAPS=taps, BLOCK=64, num_warps=4)

    def forward(self, x: Tensor, groups: int) -> tuple[Tensor, None]:
        direct, swapped = lambda: self._convolve(x, self.weight), lambda: self._transposed(x, x, self.flipped)
        return self._run_faster("forward", x, direct, swapped), None

    def grad_input(self, grad: Tensor, x: Tensor) -> Tensor:
        direct, swapped = lambda: self._transposed(grad, x, self.weight), lambda: self._convolve(grad, self.flipped)
        return self._run_faster("backward", x, direct, swapped)

    def grad_weight(self, grad: Tensor, x: Tensor) -> Tensor:
        return aten.convolution_backward(grad, x, self.weight, None, *self.settings, [False, True, False])[1]

    def _convolve(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return aten.convolution(x, weight, None, *self.settings)

    def _transposed(self, grad: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
        """Return the input gradient by the transposed convolution; of x, only the shape matters."""
        return aten.convolution_backward(grad, x, weight, None, *self.settings, [True, False, False])[0]

    def _run_faster(self, name: str, x: Tensor, direct: Callable[[], Tensor], swapped: Callable[[], Tensor]) -> Tensor:
        if self.flipped is None or in_dry_run() or torch.are_deterministic_algorithms_enabled():
            return direct()
        choice = _swap_by_shape.setdefault((x.shape, x.dtype, x.device, self.weight.shape), {})
        if name not in choice:
            choice[name] = _milliseconds(swapped) < 0.95 * _milliseconds(direct)
        needed, self.needs_flipped = self.needs_flipped, len(choice) < 2 or any(choice.values())
        if self.needs_flipped and not needed:
            self.refresh()
        return swapped() if choice[name] else direct()


_swap_by_shape: dict[tuple[Any, ...], dict[str, bool]] = {}  # whether to run each direction on the other's kernel


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
    """View [B, C, H, W], channels last, as [B · H · W, C]."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def as_images(x: Tensor, like: Tensor) -> Tensor:
    """View [B · H · W, C] as [B, C, H, W], channels last."""
    b, _, h, w = like.shape
    return x.view(b, h, w, -1).permute(0, 3, 1, 2)
