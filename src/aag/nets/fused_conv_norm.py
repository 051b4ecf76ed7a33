"""A convolution with its batch norm, shortcut and ReLU by kernels, as one autograd function: see `aag.nets.fused`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aag.distributed import gather_stack, is_distributed, sum_in_place, world_size
from aag.errors import KernelsUnsupportedError
from aag.kernels import launch
from aag.kernels import norm as kernels
from aag.nets.convolutions import ELEMENTWISE, REDUCTION, StemConvolution, UpdateArguments, make_convolution, row_grid
from aag.nets.kernel_context import KernelContext, allocate_copy
from aag.nets.layers import ConvNorm, GhostBatchNorm2d, count_groups

CHANNELS_LAST = torch.channels_last


class ConvOutput(NamedTuple):
    """The result z of a convolution without its bias, and what the batch norm of z needs."""

    z: Tensor
    partial: Tensor  # [groups, programs, 2, C]: sums for the moments
    moments: Tensor  # [groups, 4, C]: memory for them, see `kernels.normalise`
    pivot: bool  # whether the sums are of differences from z's first row


class ConvNormOutput(NamedTuple):
    """The output of a ConvNorm, and what its backward pass needs."""

    y: Tensor
    skip: Tensor  # y, subsampled by `skip_stride`
    z: Tensor  # the convolution
    moments: Tensor  # of z
    bits: Tensor | None  # the ReLU's mask, if there is a shortcut


class ConvNormLayer:
    """A ConvNorm's weights for the kernels, and its convolution."""

    def __init__(self, module: ConvNorm, context: KernelContext) -> None:
        self.module, self.context = module, context
        self.conv, self.norm = module.conv, module.norm
        self.group_size = self.norm.group_size if isinstance(self.norm, GhostBatchNorm2d) else 0
        self.synchronised = is_distributed() and not self.group_size  # groups are whole within a process
        self.weight = allocate_copy(self.conv.weight, context.dtype)
        self.convolution = make_convolution(self.conv, self.weight, context)
        self.pending_norm: ConvOutput | None = None  # left by _Projection for the layer that adds it

    def __call__(
        self, x: Tensor, shortcut: Tensor | None, projection: ConvNorm | None, relu: bool, skip_stride: int
    ) -> tuple[Tensor, Tensor]:
        self.context.check_single_pass(self)
        projected = None
        if projection is not None:
            assert isinstance(projection.fused, ConvNormLayer)
            projected = projection.fused
            self.context.check_single_pass(projected)
            norm = projected.norm
            shortcut = _Projection.apply(shortcut, projected.conv.weight, norm.weight, norm.bias, projected)
        norm, conv = self.norm, self.conv
        return _ConvNorm.apply(
            x, conv.weight, norm.weight, norm.bias, shortcut, conv.bias, relu, skip_stride, self, projected
        )

    def refresh(self) -> None:
        self.weight.copy_(self.conv.weight)
        self.convolution.refresh()

    def update(self, grad_z: Tensor, x: Tensor) -> None:
        self.step(self.convolution.grad_weight(grad_z, x))

    def step(self, grad: Tensor) -> None:
        """Update the convolution's weights by their gradient."""
        self.context.step(self.conv.weight, self.weight, grad)
        self.convolution.refresh()

    def norm_update(self, unused: Tensor) -> UpdateArguments:
        """Return what a kernel needs to update the norm's weights; `unused` stands in where it updates none."""
        optimizer, norm = self.context.optimizer, self.norm
        if optimizer is None:
            tensors = [norm.weight, norm.bias, unused, unused, unused]
            return UpdateArguments(tensors, [0.0, 0.0], {"UPDATE": False, "RULE": ""})
        tensors = [norm.weight, norm.bias, optimizer.velocity[norm.weight], optimizer.velocity[norm.bias], optimizer.lr]
        flags = {"UPDATE": self.context.updates_weights, "RULE": optimizer.fused_rule}
        return UpdateArguments(tensors, [optimizer.momentum, optimizer.weight_decay_of(norm.weight)], flags)


class _ConvNorm(torch.autograd.Function):
    """y = relu(norm(conv(x)) + shortcut), and y[::skip_stride, ::skip_stride].

    `projected`: the layer whose convolution the shortcut is; its batch norm is computed here.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, _: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, conv_bias: Tensor | None,
        relu: bool, skip_stride: int, layer: ConvNormLayer, projected: ConvNormLayer | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        y, skip, z, moments, bits = conv_norm(layer, x, shortcut, projected, relu, skip_stride)
        ctx.save_for_backward(x, z, moments, bits)
        ctx.set_materialize_grads(False)
        ctx.settings = (layer, shortcut is not None, relu, skip_stride)
        ctx.grad_conv_bias = None if conv_bias is None else torch.zeros_like(conv_bias)  # batch norm cancels the bias
        return y, y.detach() if skip_stride == 1 else skip

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, skip_grad: Tensor | None) -> tuple[Any, ...]:
        grad_x, grad_weights, masked = _backward(ctx, grad, skip_grad, *ctx.settings)
        has_shortcut = ctx.settings[1]
        return grad_x, *grad_weights, masked if has_shortcut else None, ctx.grad_conv_bias, None, None, None, None


class _Projection(torch.autograd.Function):
    """conv(x) of a shortcut. The layer that adds it computes its batch norm; backward gets the gradient after that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _: Tensor, __: Tensor, ___: Tensor, layer: ConvNormLayer) -> Tensor:
        layer.pending_norm = conv_output = _convolve(layer, x)
        ctx.save_for_backward(x, conv_output.z, conv_output.moments, None)
        ctx.layer = layer
        return conv_output.z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad_x, grad_weights, _ = _backward(ctx, grad, None, ctx.layer, has_shortcut=False, relu=False, skip_stride=1)
        return grad_x, *grad_weights, None


def conv_norm(
    layer: ConvNormLayer, x: Tensor, shortcut: Tensor | None = None, projected: ConvNormLayer | None = None,
    relu: bool = True, skip_stride: int = 1,
) -> ConvNormOutput:  # fmt: skip
    """Compute y = relu(norm(conv(x)) + shortcut). `projected`: the layer whose convolution the shortcut is."""
    z, partial, moments, pivot = _convolve(layer, x)
    norm, conv_bias = layer.norm, layer.conv.bias
    (groups, parts), (b, channels, h, w) = partial.shape[:2], z.shape
    rows = b * h * w // groups
    y = torch.empty_like(z)
    skip = empty_skip(y, skip_stride)
    bits = z.new_empty(z.numel() // 8, dtype=torch.uint8) if shortcut is not None and relu else None
    # The kernel also takes the shortcut's batch norm; without a projection, it does not read these arguments.
    shortcut_norm: list[Any] = [partial, norm.weight, norm.bias, moments, *running_statistics(norm)]
    shortcut_pivot = True
    if projected is not None:
        assert projected.pending_norm is not None
        (_, sums, its_moments, shortcut_pivot), its_norm = projected.pending_norm, projected.norm
        shortcut_norm = [sums, its_norm.weight, its_norm.bias, its_moments, *running_statistics(its_norm)]
        projected.pending_norm = None
    grid, sizes = row_grid(rows, channels, groups, ELEMENTWISE, layer.context.processors)
    launch(
        kernels.normalise, grid, z, y, skip, z if bits is None else bits, partial,
        norm.weight, norm.bias, norm.bias if conv_bias is None else conv_bias, moments, *running_statistics(norm),
        z if shortcut is None else shortcut, *shortcut_norm,
        rows, channels, parts, shortcut_norm[0].shape[1], h, w, norm.momentum, norm.eps,
        RELU=relu, SHORTCUT=shortcut is not None, PROJECTED=projected is not None, CONV_BIAS=conv_bias is not None,
        STRIDE=skip_stride, PIVOT=pivot, SHORTCUT_PIVOT=shortcut_pivot, **sizes,
    )  # fmt: skip
    return ConvNormOutput(y, skip, z, moments, bits)


def check_training(norm: nn.BatchNorm2d) -> None:
    if not norm.training:
        raise KernelsUnsupportedError(
            "the kernels compute batch norm in training mode only; this encoder has one in eval mode"
        )


def empty_skip(y: Tensor, stride: int) -> Tensor:
    """Return memory for y[::stride, ::stride]; y itself where that is all of it."""
    return y if stride == 1 else torch.empty_like(y[:, :, ::stride, ::stride], memory_format=CHANNELS_LAST)


def running_statistics(norm: nn.BatchNorm2d) -> list[Any]:
    return [norm.running_mean, norm.running_var, norm.num_batches_tracked]


def _convolve(layer: ConvNormLayer, x: Tensor) -> ConvOutput:
    """Convolve x, and sum up the result for the batch norm, over all processes if it is synchronised."""
    check_training(layer.norm)
    groups = count_groups(len(x), layer.group_size)
    z, partial = layer.convolution.forward(x, groups)
    channels = z.shape[1]
    pivot = partial is None
    if partial is None:
        rows = z.numel() // channels // groups
        grid, sizes = row_grid(rows, channels, groups, REDUCTION, layer.context.processors)
        partial = z.new_empty(groups, grid[0], 2, channels, dtype=torch.float32)
        launch(kernels.statistics, grid, z, partial, rows, channels, **sizes)
    if layer.synchronised:
        partial = _synchronise(layer.norm, z, partial, pivot)
    return ConvOutput(z, partial, z.new_empty(groups, 4, channels, dtype=torch.float32), pivot)


def _synchronise(norm: nn.BatchNorm2d, z: Tensor, partial: Tensor, pivot: bool) -> Tensor:
    """Return sums [1, 1, 2, C] that, divided by this process's rows, have the moments of all processes' rows."""
    rows, start = z.numel() // z.shape[1], z[0, :, 0, 0].float() if pivot else 0.0
    first, second = partial.sum(dim=(0, 1)) / rows  # [C]: means of the differences from `start`, and of their squares
    own_variance = second - first.square()
    variances, means = gather_stack(torch.stack([own_variance, first + start])).unbind(1)  # [processes, C]
    mean = means.mean(dim=0)
    variance = variances.mean(dim=0) + (means - mean).square().mean(dim=0)
    distance = mean - start
    # The kernel corrects the running variance for this process's rows, and scales what is in it by 1 − momentum.
    total = rows * len(means)
    correction = total / (total - 1) - rows / (rows - 1)
    assert norm.running_var is not None
    assert norm.momentum is not None
    if norm.momentum < 1:
        norm.running_var.add_(variance, alpha=norm.momentum * correction / (1 - norm.momentum))
    return torch.stack([distance, variance + distance.square()])[None, None] * rows


def _backward(
    ctx: Any, grad: Tensor | None, skip_grad: Tensor | None,
    layer: ConvNormLayer, has_shortcut: bool, relu: bool, skip_stride: int,
) -> tuple[Tensor | None, tuple[Any, Any, Any], Tensor]:  # fmt: skip
    """Return ∂x, the gradients of conv.weight, norm.weight and norm.bias (None if they are updated), and masked ∂y."""
    x, z, moments, bits = ctx.saved_tensors
    sums = sum_gradients(layer, grad, skip_grad, z, moments, bits, has_shortcut, relu, skip_stride)
    if isinstance(layer.convolution, StemConvolution):
        update = layer.norm_update(sums.grad_norm)
        grad_weight = layer.convolution.backward(
            x, sums.masked, z, sums.partial, moments, sums.grad_norm, update, sums.needs_mask
        )
        return None, (grad_weight, *norm_weight_gradients(layer, sums)), sums.masked
    grad_z = norm_gradient(layer, sums, z, moments)
    grad_x = layer.convolution.grad_input(grad_z, x) if ctx.needs_input_grad[0] else None
    return grad_x, weight_gradients(layer, sums, grad_z, x, needed=ctx.needs_input_grad[1]), sums.masked


class GradientSums(NamedTuple):
    """What the batch norm's backward pass needs to know about ∂y before it can compute ∂z."""

    masked: Tensor  # ∂y, with the ReLU's mask unless `needs_mask`
    needs_mask: bool
    partial: Tensor  # [groups, programs, 2, C]: sums of ∂y and ∂y · (z − mean)
    grad_norm: Tensor  # [2, C]: memory for the gradients of the norm's weights


def sum_gradients(
    layer: ConvNormLayer, grad: Tensor | None, skip_grad: Tensor | None, z: Tensor, moments: Tensor,
    bits: Tensor | None = None, has_shortcut: bool = False, relu: bool = True, skip_stride: int = 1,
) -> GradientSums:  # fmt: skip
    """Add up ∂y, which is `grad` plus, where y was used twice, `skip_grad`."""
    if grad is None:  # only the second of the two outputs was used
        grad = torch.zeros_like(z)
    grad = grad.contiguous(memory_format=CHANNELS_LAST)
    skip_grad = None if skip_grad is None else skip_grad.contiguous(memory_format=CHANNELS_LAST)
    groups, (b, channels, h, w) = len(moments), z.shape
    rows = b * h * w // groups
    stores_masked = has_shortcut or skip_grad is not None
    masked = torch.empty_like(z) if stores_masked else grad
    grid, sizes = row_grid(rows, channels, groups, REDUCTION, layer.context.processors)
    partial = z.new_empty(groups, grid[0], 2, channels, dtype=torch.float32)
    launch(
        kernels.backward_sums, grid, grad, grad if skip_grad is None else skip_grad, z, z if bits is None else bits,
        moments, masked, partial, rows, channels, h, w,
        SKIP_GRAD=skip_grad is not None, RELU=relu, SHORTCUT=has_shortcut, STRIDE=skip_stride, **sizes,
    )  # fmt: skip
    if layer.synchronised:
        # Means over processes: right for ∂x; and the gradients of the norm's weights are summed over processes later.
        partial = sum_in_place(partial.sum(dim=1, keepdim=True)) / world_size()
    grad_norm = z.new_empty(2, channels, dtype=torch.float32)
    return GradientSums(masked, relu and not stores_masked, partial, grad_norm)


def norm_gradient(layer: ConvNormLayer, sums: GradientSums, z: Tensor, moments: Tensor) -> Tensor:
    """Return ∂z, and update the norm's weights or store their gradients in `sums`."""
    groups, channels = len(moments), z.shape[1]
    rows = z.numel() // channels // groups
    grad_z = torch.empty_like(z)
    grid, sizes = row_grid(rows, channels, groups, ELEMENTWISE, layer.context.processors)
    update = layer.norm_update(sums.grad_norm)
    launch(
        kernels.backward_inputs, grid, sums.masked, z, grad_z, sums.partial, moments, *sums.grad_norm,
        *update.tensors, rows, channels, sums.partial.shape[1], *update.numbers,
        MASK=sums.needs_mask, **update.flags, **sizes,
    )  # fmt: skip
    return grad_z


def weight_gradients(
    layer: ConvNormLayer, sums: GradientSums, grad_z: Tensor, x: Tensor, needed: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of conv.weight, if it is needed, norm.weight and norm.bias.

    All are None if weights are updated during backward; this updates the convolution's.
    """
    grad_weight = None
    if layer.context.optimizer is not None:
        layer.context.on_side_stream(layer.update, grad_z, x)
    elif needed:
        grad_weight = layer.convolution.grad_weight(grad_z, x).float()
    return grad_weight, *norm_weight_gradients(layer, sums)


def norm_weight_gradients(layer: ConvNormLayer, sums: GradientSums) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if layer.context.optimizer is not None else (sums.grad_norm[0], sums.grad_norm[1])
