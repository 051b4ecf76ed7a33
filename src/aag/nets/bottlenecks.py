"""Bottleneck blocks by kernels, each as one autograd function, to save memory: see `aag.kernels.expansion`.

Only the narrow activations of a block and its output are stored. Blocks are not independent: the gradient that one
passes to the block before it includes the shortcut's gradient and the mask of the ReLU between them.

A ResNet-50 trains in 28 % less memory than layer by layer, and its steps take 2 % less time (H200, batch 64).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aag.distributed import is_distributed
from aag.kernels import channel_block, launch
from aag.kernels import expansion as kernels
from aag.nets.fused_conv_norm import (
    CHANNELS_LAST,
    ConvNormLayer,
    check_training,
    conv_norm,
    empty_skip,
    norm_gradient,
    running_statistics,
    sum_gradients,
    weight_gradients,
)
from aag.nets.kernel_context import KernelContext
from aag.nets.layers import ConvNorm
from aag.nets.resnet import Bottleneck, ResNet

# A block is computed here if it has this many rows per input channel of a 1×1 convolution. With fewer, the float32
# matrices of the weights' size that are written and read cost as much as is saved.
ROWS_PER_INPUT = 16
# Rows per program of the kernels that read and write wide activations. With 128, registers would allow only one
# program per multiprocessor, and nothing would run while it waits for memory.
WIDE_ROWS = 64


def can_fuse(resnet: ResNet) -> bool:
    """Return whether the kernels here compute the blocks of `resnet`: bottlenecks, each batch norm over all rows."""
    return not is_distributed() and all(isinstance(block, Bottleneck) and _is_regular(block) for block in resnet.blocks)


def _is_regular(block: Bottleneck) -> bool:
    """Return whether a block has the layers, strides and paddings that the kernels here expect."""
    layers = [layer for layer in (*block.residual, block.shortcut) if isinstance(layer, ConvNorm)]
    pointwise = [layer.conv for layer in layers if layer is not block.residual[1]]
    return (
        len(block.residual) == 3
        and all(type(layer.norm) is nn.BatchNorm2d and layer.conv.bias is None for layer in layers)
        and all((conv.kernel_size, conv.stride, conv.padding) == ((1, 1), (1, 1), (0, 0)) for conv in pointwise)
    )


class FusedBottlenecks:
    """The blocks of a ResNet: the first ones by the kernels here, those with too few rows layer by layer."""

    def __init__(self, module: ResNet, layers: Mapping[Any, Any], context: KernelContext) -> None:
        self.module, self.context = module, context
        self.blocks = [_Block(block, layers) for block in module.blocks]

    def __call__(self, x: Tensor, skip: Tensor) -> Tensor:
        self.context.check_single_pass(self)
        count = self._count(x)
        for i, (block, next_stride) in enumerate(zip(self.blocks, self.module.next_strides, strict=True)):
            if i >= count:
                x, skip = self.module.blocks[i](x, skip, next_stride)
            elif i < count - 1:
                x, skip = _Bottleneck.apply(x, skip, block, next_stride, False, *block.weights)
            else:
                x, _ = _Bottleneck.apply(x, skip, block, 1, True, *block.weights)
                skip = x[:, :, ::next_stride, ::next_stride].contiguous(memory_format=CHANNELS_LAST)
        return x

    def _count(self, x: Tensor) -> int:
        """Return how many blocks, from the first one on, have enough rows for the kernels here."""
        (b, _, h, w), count = x.shape, 0
        for block in self.blocks:
            h, w = -(-h // block.stride), -(-w // block.stride)
            if b * h * w < ROWS_PER_INPUT * block.inputs:
                break
            count += 1
        return count


class _Block:
    """A bottleneck's layers: 1×1, 3×3, the expanding 1×1, and the projection of its shortcut."""

    def __init__(self, module: Any, layers: Mapping[Any, Any]) -> None:
        self.stride = module.stride
        self.reduce, self.spatial = (layers[module.residual[i]] for i in (0, 1))
        self.expand = _Expansion(layers[module.residual[2]])
        self.projection = None if module.shortcut is None else _Expansion(layers[module.shortcut])
        self.inputs = max(each.inputs for each in (self.expand, self.projection) if each is not None)

    @property
    def layers(self) -> list[ConvNormLayer]:
        projection = [] if self.projection is None else [self.projection.layer]
        return [self.reduce, self.spatial, self.expand.layer, *projection]

    @property
    def weights(self) -> list[Tensor]:
        """Three per layer."""
        return [weight for layer in self.layers for weight in (layer.conv.weight, layer.norm.weight, layer.norm.bias)]


class _Bottleneck(torch.autograd.Function):
    """y = relu(residual(x) + projection(skip)), and y[::next_stride, ::next_stride].

    `skip` must be x, or x subsampled by the block's stride. The gradient of x includes that of `skip`, which has none,
    and the mask of the ReLU that made x. `masks_gradient`: the gradient of y comes without this block's mask.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, skip: Tensor, block: _Block, next_stride: int, masks_gradient: bool, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        a, _, z1, moments1, _ = conv_norm(block.reduce, x)
        u, _, z2, moments2, _ = conv_norm(block.spatial, a)
        projected: tuple[Tensor, ...] = ()
        if block.projection is not None:
            skip, _, projected = block.projection.forward(skip, relu=False)
        y, skip, expanded = block.expand.forward(u, skip, skip_stride=next_stride)
        ctx.block, ctx.masks_gradient = block, masks_gradient
        output = [y] if masks_gradient else []
        ctx.save_for_backward(x, z1, moments1, a, z2, moments2, *expanded, *projected, *output)
        ctx.set_materialize_grads(False)
        return y, y.detach() if next_stride == 1 else skip

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Any, ...]:
        block: _Block = ctx.block
        x, z1, moments1, a, z2, moments2, *rest = ctx.saved_tensors
        needed = ctx.needs_input_grad[5::3]  # of the convolutions' weights
        grad = grad.contiguous(memory_format=CHANNELS_LAST)
        if ctx.masks_gradient:
            grad = torch.ops.aten.threshold_backward(grad, rest.pop(), 0)
        expanded, projected = _SavedExpansion(*rest[:4]), rest[4:]
        grad_u, expand_grads = block.expand.backward(grad, expanded, needed[2])
        sums = sum_gradients(block.spatial, grad_u, None, z2, moments2)
        grad_z = norm_gradient(block.spatial, sums, z2, moments2)
        grad_a = block.spatial.convolution.grad_input(grad_z, a)
        spatial_grads = weight_gradients(block.spatial, sums, grad_z, a, needed[1])
        projection_grads: tuple[Any, ...] = ()
        if block.projection is not None:
            grad, projection_grads = block.projection.backward(grad, _SavedExpansion(*projected), needed[3])
        sums = sum_gradients(block.reduce, grad_a, None, z1, moments1)
        grad_z = norm_gradient(block.reduce, sums, z1, moments1)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _contract_gradient(grad_z, block.reduce.weight, grad, x, block.stride)
        reduce_grads = weight_gradients(block.reduce, sums, grad_z, x, needed[0])
        return grad_x, None, None, None, None, *reduce_grads, *spatial_grads, *expand_grads, *projection_grads


class _SavedExpansion(NamedTuple):
    """What the backward pass of an `_Expansion` needs."""

    u: Tensor
    input_sums: Tensor  # [N]: sums of u
    weight_cov: Tensor  # [C, N]
    moments: Tensor  # [4, C]


class _Expansion:
    """A 1×1 convolution and its batch norm, relu(norm(u · weightᵀ) + shortcut), whose u · weightᵀ is never stored."""

    def __init__(self, layer: ConvNormLayer) -> None:
        self.layer, self.context = layer, layer.context
        self.channels, self.inputs = layer.conv.weight.shape[:2]

    def forward(
        self, u: Tensor, shortcut: Tensor | None = None, relu: bool = True, skip_stride: int = 1
    ) -> tuple[Tensor, Tensor, _SavedExpansion]:
        """Return y, its subsampled copy, and what backward needs."""
        norm, inputs, channels = self.layer.norm, self.inputs, self.channels
        check_training(norm)
        rows = u.numel() // inputs
        products, sums = self._cross_products(u, u)
        block_c, block_n = channel_block(channels), channel_block(inputs)
        parts = inputs // block_n
        weight_cov, partial = products.new_empty(channels, inputs), products.new_empty(parts, 2, channels)
        launch(
            kernels.expand_covariance, (channels // block_c, parts), self.layer.weight, products, sums, weight_cov,
            partial, rows, inputs, channels,
            BLOCK_C=block_c, BLOCK_N=block_n, PRECISE=self._precise, num_warps=4, num_stages=self._stages(inputs),
        )  # fmt: skip
        moments = products.new_empty(4, channels)
        launch(
            kernels.expand_moments, (channels // block_c,), partial, moments, norm.weight, norm.bias,
            *running_statistics(norm), rows, channels, parts, norm.momentum, norm.eps, BLOCK_C=block_c, num_warps=4,
        )  # fmt: skip
        b, _, h, w = u.shape
        y = torch.empty(b, channels, h, w, dtype=u.dtype, device=u.device, memory_format=CHANNELS_LAST)
        skip = empty_skip(y, skip_stride)
        block_c = _wide_tile(channels, self._precise)
        launch(
            kernels.expand, (-(-rows // WIDE_ROWS) * (channels // block_c),), u, self.layer.weight, moments,
            y if shortcut is None else shortcut, y, skip, rows, inputs, channels, h, w,
            RELU=relu, SHORTCUT=shortcut is not None, STRIDE=skip_stride, PRECISE=self._precise,
            BLOCK_M=WIDE_ROWS, BLOCK_C=block_c, BLOCK_N=block_n, num_warps=8, num_stages=self._stages(inputs),
        )  # fmt: skip
        return y, skip, _SavedExpansion(u, sums, weight_cov, moments)

    def backward(self, grad: Tensor, saved: _SavedExpansion, needs_weight: bool) -> tuple[Tensor, tuple[Any, Any, Any]]:
        """Return ∂u and the gradients of the weights (None if they are updated here). grad: ∂y with the ReLU's mask."""
        layer, inputs, channels = self.layer, self.inputs, self.channels
        u, input_sums, weight_cov, moments = saved
        rows = u.numel() // inputs
        products, sums = self._cross_products(grad, u)
        scaled, grad_conv = torch.empty_like(layer.weight), torch.empty_like(products)
        factors, grad_norm = torch.empty_like(moments[:2]), torch.empty_like(moments[:2])
        update = layer.norm_update(grad_norm)
        block_c, block_n = channel_block(channels, 16), channel_block(inputs)
        launch(
            kernels.gradient_factors, (channels // block_c,), layer.weight, products, sums, weight_cov, input_sums,
            moments, scaled, factors, grad_conv, *grad_norm, *update.tensors, rows, inputs, channels, *update.numbers,
            BLOCK_C=block_c, BLOCK_N=block_n, num_warps=4, **update.flags,
        )  # fmt: skip
        parts = inputs // block_n
        mixed, constants = scaled.new_empty(inputs, inputs), factors.new_empty(parts, inputs)
        launch(
            kernels.gradient_products, (parts, parts), layer.weight, scaled, factors, input_sums, mixed, constants,
            rows, inputs, channels,
            BLOCK_C=_wide_tile(channels, self._precise), BLOCK_N=block_n, PRECISE=self._precise, num_warps=4,
            num_stages=self._stages(channels),
        )  # fmt: skip
        grad_u = torch.empty_like(u)
        block_out = _wide_tile(inputs, self._precise)
        launch(
            kernels.expand_gradient, (-(-rows // 128) * (inputs // block_out),), grad, u, scaled, mixed, constants,
            grad_u, rows, inputs, channels, parts,
            BLOCK_M=128, BLOCK_K=block_n, BLOCK_N=block_out, PRECISE=self._precise, num_warps=8,
            num_stages=self._stages(channels),
        )  # fmt: skip
        if self.context.optimizer is not None:
            self.context.on_side_stream(layer.step, grad_conv)
            return grad_u, (None, None, None)
        return grad_u, (grad_conv.view_as(layer.conv.weight) if needs_weight else None, grad_norm[0], grad_norm[1])

    def _cross_products(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return leftᵀ · right [L, R] and the sums [L] of left's rows, in float32."""
        channels = left.shape[1], right.shape[1]
        rows = left.numel() // channels[0]
        block_l, block_r = (_wide_tile(each, self._precise) for each in channels)
        tiles = channels[0] // block_l, channels[1] // block_r
        programs = min(-(-rows // 64), max(1, self.context.processors // (tiles[0] * tiles[1])))
        count = channels[0] * channels[1]
        partial = left.new_empty(programs, count + channels[0], dtype=torch.float32)
        launch(
            kernels.cross_products, (programs, *tiles), left, right, partial, rows, *channels,
            BLOCK_M=64, BLOCK_L=block_l, BLOCK_R=block_r, PRECISE=self._precise, num_warps=8,
            num_stages=self._stages(rows),
        )  # fmt: skip
        products, sums = partial.sum(dim=0).split([count, channels[0]])
        return products.view(channels), sums

    @property
    def _precise(self) -> bool:
        return self.layer.weight.dtype == torch.float32

    def _stages(self, length: int) -> int:
        return _stages(length, self._precise)


def _contract_gradient(grad_z: Tensor, weight: Tensor, skip_grad: Tensor, x: Tensor, stride: int) -> Tensor:
    """Return the gradient of x, the input of a block, with the mask of the ReLU that made x.

    grad_z: the gradient after the block's first 1×1 convolution; skip_grad: that of x subsampled by `stride`.
    """
    outputs, channels = weight.shape[:2]
    grad_x = torch.empty_like(x)
    rows, precise = x.numel() // channels, x.dtype == torch.float32
    block_c = _wide_tile(channels, precise)
    launch(
        kernels.contract_gradient, (-(-rows // WIDE_ROWS) * (channels // block_c),), grad_z, weight, skip_grad, x,
        grad_x, rows, outputs, channels, *x.shape[2:],
        STRIDE=stride, PRECISE=precise, BLOCK_M=WIDE_ROWS, BLOCK_C=block_c, BLOCK_K=channel_block(outputs),
        num_warps=8, num_stages=_stages(outputs, precise),
    )  # fmt: skip
    return grad_x


def _wide_tile(channels: int, precise: bool) -> int:
    """Return a tile of at most 128 channels; 64 in float32, which needs more registers."""
    return channel_block(channels, 64 if precise else 128)


def _stages(length: int, precise: bool) -> int:
    """Return Triton's num_stages for a loop over `length`: up to 3; 1 in float32, which needs more shared memory."""
    return 1 if precise else min(3, -(-length // 64))
