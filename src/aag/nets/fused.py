"""Train an encoder with kernels: each ConvNorm and Linear layer, with its surroundings, as one autograd function.

Inside `with Fused(encoder, dtype, optimizer):` the encoder's layers run on kernels: activations in `dtype`; weights,
statistics and the gradients of both in float32. The plain layers are the reference. `Fused` raises for encoders that
the kernels would compute differently.
"""

from typing import Any

import torch
from torch import Tensor, nn

from aag.distributed import gather_stack, is_distributed, sum_in_place, world_size
from aag.errors import KernelsUnsupportedError
from aag.kernels import launch
from aag.kernels import norm as kernels
from aag.kernels.stem import PATCH, im2col
from aag.nets.convolutions import ELEMENTWISE, REDUCTION, StemConvolution, UpdateArguments, make_convolution, row_grid
from aag.nets.encoder import Encoder
from aag.nets.kernel_context import BackwardOptimizer, KernelContext
from aag.nets.layers import ConvNorm, GhostBatchNorm2d, Linear, count_groups
from aag.nets.sobel import SobelPair, sobel
from aag.nets.support import unsupported_reason

CHANNELS_LAST = torch.channels_last


class Fused(KernelContext):
    """The encoder's layers on kernels, inside a `with` block.

    `optimizer`: weights are updated during backward and get no `.grad`, so the optimizer itself skips them. Call `join`
    before anything else uses them. This needs exactly one forward pass per `with` block, one backward pass after it,
    and no frozen weights. Without an optimizer, gradients go to `.grad` as usual: any number of passes is right, and
    frozen weights get none; call `refresh` after the weights changed.
    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype, optimizer: BackwardOptimizer | None = None) -> None:
        if reason := unsupported_reason(encoder):
            raise KernelsUnsupportedError(f"the kernels cannot train this encoder: {reason}")
        super().__init__(encoder.mean.device, dtype, optimizer)
        self.encoder = encoder
        if optimizer and not all(parameter.requires_grad for parameter in encoder.parameters()):
            raise KernelsUnsupportedError(
                "frozen weights cannot be updated during backward; use Fused without an optimizer"
            )
        if not all(w.is_contiguous(memory_format=CHANNELS_LAST) for w in encoder.parameters() if w.ndim == 4):
            raise KernelsUnsupportedError(
                "the kernels need weights that are channels last; use encoder.to(memory_format=...)"
            )
        self.layers: list[ConvNormLayer | LinearLayer] = []
        for module in encoder.modules():
            if isinstance(module, ConvNorm):
                self.layers.append(ConvNormLayer(module, self))
            elif isinstance(module, Linear):
                self.layers.append(LinearLayer(module, self))
        self.refresh()

    def __enter__(self) -> None:
        self._seen: set[object] = set()  # layers with a forward pass in this block
        backbone = self.encoder.backbone
        if isinstance(backbone, SobelPair):
            self.encoder.fused_input, backbone.fused = lambda images: images, self._pair_features
        else:
            self.encoder.fused_input = self._patches
        for layer in self.layers:
            layer.module.fused = layer

    def __exit__(self, *_: object) -> None:
        self.encoder.fused_input = None
        if isinstance(self.encoder.backbone, SobelPair):
            self.encoder.backbone.fused = None
        for layer in self.layers:
            layer.module.fused = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the kernels' copies of the weights, after these changed outside."""
        for layer in self.layers:
            layer.refresh()

    def check_single_pass(self, layer: object) -> None:
        """Raise if a layer runs twice while backward updates its weights: the first update would spoil the second."""
        if self.optimizer is not None and torch.is_grad_enabled():
            if layer in self._seen:
                raise KernelsUnsupportedError("the encoder runs more than once per step")
            self._seen.add(layer)

    def _pair_features(self, images: Tensor) -> Tensor:
        """Return the features of colours and edges: [B, 3, H, W] → [B, F]."""
        pair = self.encoder.backbone
        assert isinstance(pair, SobelPair)

        def colours() -> Tensor:
            return pair.colours(self._patches(images))

        def edges() -> Tensor:
            return pair.edges(self._im2col(sobel(self.encoder.normalise(images))))

        return torch.cat(self.run_branches(colours, edges), dim=1)

    def _patches(self, images: Tensor) -> Tensor:
        """Return the input of the stem: [B, 3, H, W] → [B, PATCH, H, W], channels last."""
        normalised = images.dtype != torch.uint8 or self.encoder.spec.sees_edges
        return self._im2col(self.encoder.normalise(images) if normalised else images)

    def _im2col(self, images: Tensor) -> Tensor:
        """Return the patches of images, uint8 or normalised."""
        images = images.contiguous()
        b, _, h, w = images.shape
        out = torch.empty(b, PATCH, h, w, dtype=self.dtype, device=images.device, memory_format=CHANNELS_LAST)
        mean, std = self.encoder.mean, self.encoder.std
        launch(im2col, (b, -(-h * w // 128)), images, mean, std, out, h, w, BLOCK=128, PATCH=PATCH, num_warps=4)
        return out


def _copy_for(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory for the weights in `dtype`; the weights themselves where they have that dtype."""
    return weight.detach() if weight.dtype == dtype else torch.empty_like(weight, dtype=dtype)


# --- fully connected layers ------------------------------------------------------------------------------------------


class LinearLayer:
    def __init__(self, module: Linear, fused: Fused) -> None:
        self.module, self.fused = module, fused
        self.weight = _copy_for(module.weight, fused.dtype)
        self.bias = None if module.bias is None else _copy_for(module.bias, fused.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        self.fused.check_single_pass(self)
        return _Linear.apply(x.to(self.fused.dtype), self.module.weight, self.module.bias, self)

    def refresh(self) -> None:
        self.weight.copy_(self.module.weight)
        if self.bias is not None:
            self.bias.copy_(self.module.bias)

    def update(self, grad: Tensor, x: Tensor) -> None:
        self.fused.step(self.module.weight, self.weight, grad.T @ x)
        if self.bias is not None:
            self.fused.step(self.module.bias, self.bias, grad.sum(dim=0))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, _: Tensor, bias: Tensor | None, layer: LinearLayer) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return x @ layer.weight.T if layer.bias is None else torch.addmm(layer.bias, x, layer.weight.T)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = grad @ layer.weight if needs_x else None
        if layer.fused.optimizer is not None:
            layer.fused.on_side_stream(layer.update, grad, x)
            return grad_x, None, None, None
        grad_bias = grad.float().sum(dim=0) if needs_bias else None
        return grad_x, (grad.T @ x).float() if needs_weight else None, grad_bias, None


# --- convolutions with their batch norm -------------------------------------------------------------------------------


class ConvNormLayer:
    """A ConvNorm's weights for the kernels, and its convolution."""

    def __init__(self, module: ConvNorm, fused: Fused) -> None:
        self.module, self.fused = module, fused
        self.conv, self.norm = module.conv, module.norm
        self.group_size = self.norm.group_size if isinstance(self.norm, GhostBatchNorm2d) else 0
        self.synchronised = is_distributed() and not self.group_size  # groups are whole within a process
        self.weight = _copy_for(self.conv.weight, fused.dtype)
        self.convolution = make_convolution(self.conv, self.weight, fused)
        self.unfinished: tuple[Tensor, Tensor, bool] | None = None  # sums, moments and pivot, from _Projection

    def __call__(
        self, x: Tensor, shortcut: Tensor | None, projection: ConvNorm | None, relu: bool, skip_stride: int
    ) -> tuple[Tensor, Tensor]:
        self.fused.check_single_pass(self)
        projected = None
        if projection is not None:
            assert isinstance(projection.fused, ConvNormLayer)
            projected = projection.fused
            self.fused.check_single_pass(projected)
            norm = projected.norm
            shortcut = _Projection.apply(shortcut, projected.conv.weight, norm.weight, norm.bias, projected)
        norm, conv = self.norm, self.conv
        return _ConvNorm.apply(
            x, conv.weight, norm.weight, norm.bias, shortcut, conv.bias, relu, skip_stride, self, projected
        )

    def refresh(self) -> None:
        self.weight.copy_(self.conv.weight)
        self.convolution.refresh()

    def update(self, grad: Tensor, x: Tensor) -> None:
        self.fused.step(self.conv.weight, self.weight, self.convolution.grad_weight(grad, x))
        self.convolution.refresh()

    def norm_update(self, unused: Tensor) -> UpdateArguments:
        """Return what a kernel needs to update the norm's weights; `unused` stands in where it updates none."""
        optimizer, norm = self.fused.optimizer, self.norm
        if optimizer is None:
            tensors = [norm.weight, norm.bias, unused, unused, unused]
            return UpdateArguments(tensors, [0.0, 0.0], {"UPDATE": False, "RULE": ""})
        tensors = [norm.weight, norm.bias, optimizer.velocity[norm.weight], optimizer.velocity[norm.bias], optimizer.lr]
        flags = {"UPDATE": self.fused.updates_weights, "RULE": optimizer.fused_rule}
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
        z, partial, moments, pivot = _convolve(layer, x)
        norm = layer.norm
        (groups, parts), (b, channels, h, w) = partial.shape[:2], z.shape
        rows = b * h * w // groups
        y = torch.empty_like(z)
        small = z[:, :, ::skip_stride, ::skip_stride]
        skip = y if skip_stride == 1 else torch.empty_like(small, memory_format=CHANNELS_LAST)
        bits = z.new_empty(z.numel() // 8, dtype=torch.uint8) if shortcut is not None and relu else None
        shortcut_pivot = True
        shortcut_arguments = [z if shortcut is None else shortcut, partial, weight, bias, moments, *_running(norm)]
        if projected is not None:
            assert projected.unfinished is not None
            its_partial, its_moments, shortcut_pivot = projected.unfinished
            its_norm = projected.norm
            shortcut_arguments[1:] = [its_partial, its_norm.weight, its_norm.bias, its_moments, *_running(its_norm)]
            projected.unfinished = None
        grid, sizes = row_grid(rows, channels, groups, ELEMENTWISE, layer.fused.processors)
        launch(
            kernels.normalise, grid, z, y, skip, z if bits is None else bits, partial,
            weight, bias, bias if conv_bias is None else conv_bias, moments, *_running(norm), *shortcut_arguments,
            rows, channels, parts, shortcut_arguments[1].shape[1], h, w, norm.momentum, norm.eps,
            RELU=relu, SHORTCUT=shortcut is not None, PROJECTED=projected is not None, CONV_BIAS=conv_bias is not None,
            STRIDE=skip_stride, PIVOT=pivot, SHORTCUT_PIVOT=shortcut_pivot, **sizes,
        )  # fmt: skip
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
    """conv(x), whose batch norm is left to the layer that adds it; its gradient is the one after that batch norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _: Tensor, __: Tensor, ___: Tensor, layer: ConvNormLayer) -> Tensor:
        z, partial, moments, pivot = _convolve(layer, x)
        layer.unfinished = partial, moments, pivot
        ctx.save_for_backward(x, z, moments, None)
        ctx.layer = layer
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad_x, grad_weights, _ = _backward(ctx, grad, None, ctx.layer, has_shortcut=False, relu=False, skip_stride=1)
        return grad_x, *grad_weights, None


def _running(norm: nn.BatchNorm2d) -> list[Any]:
    return [norm.running_mean, norm.running_var, norm.num_batches_tracked]


def _convolve(layer: ConvNormLayer, x: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return the convolution, sums [groups, programs, 2, C] for its batch norm, memory for its moments [groups, 4, C],
    and whether the sums are of differences from the first row.
    """
    if not layer.norm.training:
        raise KernelsUnsupportedError(
            "the kernels compute batch norm in training mode only; this encoder has one in eval mode"
        )
    groups = count_groups(len(x), layer.group_size)
    z, partial = layer.convolution.forward(x, groups)
    channels = z.shape[1]
    pivot = partial is None
    if partial is None:
        rows = z.numel() // channels // groups
        grid, sizes = row_grid(rows, channels, groups, REDUCTION, layer.fused.processors)
        partial = z.new_empty(groups, grid[0], 2, channels, dtype=torch.float32)
        launch(kernels.statistics, grid, z, partial, rows, channels, **sizes)
    if layer.synchronised:
        partial = _synchronise(layer.norm, z, partial, pivot)
    return z, partial, z.new_empty(groups, 4, channels, dtype=torch.float32), pivot


def _synchronise(norm: nn.BatchNorm2d, z: Tensor, partial: Tensor, pivot: bool) -> Tensor:
    """Return sums [1, 1, 2, C] over this process's share that have the mean and the variance of all processes."""
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
    """Return ∂x, the gradients of conv.weight, norm.weight and norm.bias (None if updated here), and the masked ∂y."""
    x, z, moments, bits = ctx.saved_tensors
    fused = layer.fused
    if grad is None:  # only the second of the two outputs was used
        grad = torch.zeros_like(z)
    grad = grad.contiguous(memory_format=CHANNELS_LAST)
    skip_grad = None if skip_grad is None else skip_grad.contiguous(memory_format=CHANNELS_LAST)
    groups, (b, channels, h, w) = len(moments), z.shape
    rows = b * h * w // groups
    stores_masked = has_shortcut or skip_grad is not None
    masked = torch.empty_like(z) if stores_masked else grad
    grid, sizes = row_grid(rows, channels, groups, REDUCTION, fused.processors)
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
    update = layer.norm_update(grad_norm)
    mask = relu and not stores_masked
    grad_weight = grad_x = None
    if isinstance(layer.convolution, StemConvolution):
        grad_weight = layer.convolution.backward(x, masked, z, partial, moments, grad_norm, update, mask)
    else:
        grad_z = torch.empty_like(z)
        parts = partial.shape[1]
        grid, sizes = row_grid(rows, channels, groups, ELEMENTWISE, fused.processors)
        launch(
            kernels.backward_inputs, grid, masked, z, grad_z, partial, moments, grad_norm[0], grad_norm[1],
            *update.tensors, rows, channels, parts, *update.numbers, MASK=mask, **update.flags, **sizes,
        )  # fmt: skip
        if ctx.needs_input_grad[0]:
            grad_x = layer.convolution.grad_input(grad_z, x)
        if fused.optimizer is not None:
            fused.on_side_stream(layer.update, grad_z, x)
        elif ctx.needs_input_grad[1]:
            grad_weight = layer.convolution.grad_weight(grad_z, x).float()
    if fused.optimizer is not None:
        return grad_x, (None, None, None), masked
    return grad_x, (grad_weight, grad_norm[0], grad_norm[1]), masked
