"""Training an encoder of ConvNorm and Linear layers by kernels: each layer with what surrounds it as one function.

Inside `with Fused(encoder, dtype, optimizer):` the encoder's layers compute by them: activations in `dtype`; weights,
statistics and the gradients of both in float32. The plain layers are the reference, and what everything else uses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aag.errors import AAGError
from aag.kernels import launch
from aag.kernels import norm as kernels
from aag.kernels.patches import WIDTH, patches
from aag.kernels.steps import SHARES, squares, step
from aag.nets.encoder import Encoder
from aag.nets.layers import ConvNorm, GhostBatchNorm2d, Linear
from aag.nets.products import FEW, MANY, First, product, shared
from aag.training.optimizers import Optimizer

CHANNELS_LAST = torch.channels_last


class Fused:
    """`optimizer`: each layer's weights take their step during backward, as soon as their gradient is there.

    That happens on a stream of its own, beside the passes over activations that the next layer starts with: products
    are bound by arithmetic, those passes by memory. Such weights have no `.grad`, so the optimiser itself leaves them
    alone. Call `join` before anything else uses them. Without an optimizer all gradients go where autograd puts them.
    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype, optimizer: Optimizer | None = None) -> None:
        self.encoder, self.dtype, self.optimizer = encoder, dtype, optimizer
        device = encoder.mean.device
        cuda = device.type == "cuda"
        chip = torch.cuda.get_device_properties(device) if cuda else None
        self.processors = chip.multi_processor_count if chip else 2
        self.large = chip is not None and chip.shared_memory_per_block_optin >= 200_000  # bytes
        self.side = torch.cuda.Stream(device) if cuda and optimizer else None
        self.held: list[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = []
        self.learning = True
        if optimizer and not all(parameter.requires_grad for parameter in encoder.parameters()):
            raise AAGError("kernels train all weights of a network; for one that is frozen in part, use --compile off")
        self.layers: list[ConvNormLayer | LinearLayer] = []
        for module in encoder.modules():
            if isinstance(module, ConvNorm):
                self.layers.append(ConvNormLayer(module, self))
            elif isinstance(module, Linear):
                self.layers.append(LinearLayer(module, self))
        self.refresh()

    def __enter__(self) -> None:
        self.encoder.prepare = self._neighbourhoods
        for layer in self.layers:
            layer.module.fused = layer

    def __exit__(self, *_: object) -> None:
        self.encoder.prepare = None
        for layer in self.layers:
            layer.module.fused = None

    @torch.no_grad()
    def refresh(self) -> None:
        """After the weights were changed from outside."""
        for layer in self.layers:
            layer.refresh()

    def join(self) -> None:
        """Waits for the weights' steps."""
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
            self.held.clear()

    def on_side_stream(self, work: Callable[..., None], *tensors: Tensor) -> None:
        """`work(*tensors)` after all that was asked of the current stream so far, and beside what comes next."""
        if self.side is None:
            return work(*tensors)
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            work(*tensors)
        self.held.append((self.side.record_event(), tensors))  # or their memory would go to the next who asks
        if len(self.held) > 2:
            main.wait_event(self.held.pop(0)[0])
        return None

    def _neighbourhoods(self, images: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] → [B, WIDTH, H, W], channels last: what the first layer takes."""
        images = (self.encoder.normalise(images) if self.encoder.spec.sees_edges else images).contiguous()
        b, _, h, w = images.shape
        out = torch.empty(b, WIDTH, h, w, dtype=self.dtype, device=images.device, memory_format=CHANNELS_LAST)
        mean, std = self.encoder.mean, self.encoder.std
        launch(patches, (b, -(-h * w // 128)), images, mean, std, out, h, w, BLOCK=128, WIDTH=WIDTH, num_warps=4)
        return out

    def step(self, weight: Tensor, low: Tensor, grad: Tensor) -> None:
        """The weights' step, and their copy for the next."""
        if not self.learning:
            return
        assert self.optimizer is not None
        optimizer, size = self.optimizer, weight.numel()
        decay, trust = optimizer.weight_decay_of(weight), optimizer.trust_coefficient(weight)
        parts, shares = 0, optimizer.lr
        if trust:
            parts = min(SHARES, -(-size // 2048))
            shares = weight.new_empty(parts, 2)
            launch(squares, (parts,), weight, grad, shares, decay, size, BLOCK=2048, num_warps=8)
        launch(
            step, (-(-size // 1024),), weight, low, optimizer.velocity[weight], grad, shares, optimizer.lr,
            optimizer.momentum, decay, trust, size, parts,
            RULE=optimizer.fused_rule, TRUST=trust > 0, COPY=low.dtype != weight.dtype, BLOCK=1024, SHARES=SHARES,
            num_warps=4,
        )  # fmt: skip


def _low(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the copy of the weights goes; the weights themselves where they need none."""
    return weight.detach() if weight.dtype == dtype else torch.empty_like(weight, dtype=dtype)


# --- a fully connected layer -----------------------------------------------------------------------------------------


class LinearLayer:
    def __init__(self, module: Linear, fused: Fused) -> None:
        self.module, self.fused = module, fused
        self.low = _low(module.weight, fused.dtype)
        self.low_bias = None if module.bias is None else _low(module.bias, fused.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return _Linear.apply(x.to(self.fused.dtype), self.module.weight, self.module.bias, self)

    def refresh(self) -> None:
        self.low.copy_(self.module.weight)
        if self.low_bias is not None:
            self.low_bias.copy_(self.module.bias)

    def learn(self, grad: Tensor, x: Tensor) -> None:
        self.fused.step(self.module.weight, self.low, grad.T @ x)
        if self.low_bias is not None:
            self.fused.step(self.module.bias, self.low_bias, grad.sum(dim=0))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, _: Tensor, bias: Tensor | None, layer: LinearLayer) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return x @ layer.low.T if layer.low_bias is None else torch.addmm(layer.low_bias, x, layer.low.T)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        of_x = grad @ layer.low if ctx.needs_input_grad[0] else None
        if layer.fused.optimizer is not None:
            layer.fused.on_side_stream(layer.learn, grad, x)
            return of_x, None, None, None
        of_bias = None if layer.low_bias is None else grad.float().sum(dim=0)
        return of_x, (grad.T @ x).float(), of_bias, None


# --- a convolution with its batch norm --------------------------------------------------------------------------------


class ConvNormLayer:
    """A ConvNorm's weights for the kernels, and how its convolution is computed."""

    def __init__(self, module: ConvNorm, fused: Fused) -> None:
        self.module, self.fused = module, fused
        self.conv, self.norm = module.conv, module.norm
        self.images = self.norm.images if isinstance(self.norm, GhostBatchNorm2d) else 0  # of a lot; 0: all are one
        self.low = _low(self.conv.weight, fused.dtype)
        self.product = product(self.conv, self.low, fused)
        self.waiting: tuple[Tensor, Tensor, bool] | None = None  # from _Unfinished to who finishes it

    def __call__(
        self, x: Tensor, add: Tensor | None, through: ConvNorm | None, relu: bool, every: int
    ) -> tuple[Tensor, Tensor]:
        before = None
        if through is not None:
            assert isinstance(through.fused, ConvNormLayer)
            before = through.fused
            add = _Unfinished.apply(add, before.conv.weight, before.norm.weight, before.norm.bias, before)
        norm, conv = self.norm, self.conv
        return _ConvNorm.apply(x, conv.weight, norm.weight, norm.bias, add, conv.bias, relu, every, self, before)

    def lots(self, count: int) -> int:
        """How many batch norms see a pass of so many images."""
        if self.images and count % self.images:
            raise AAGError(f"a pass of {count} images cannot be divided into lots of {self.images} for batch norm")
        return count // self.images if self.images else 1

    def refresh(self) -> None:
        self.low.copy_(self.conv.weight)
        self.product.refresh()

    def learn(self, grad: Tensor, x: Tensor) -> None:
        self.fused.step(self.conv.weight, self.low, self.product.grad_weight(grad, x))
        self.product.refresh()

    def rates(self, spare: Tensor) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """What a kernel needs to let the norm's weights learn: tensors, numbers, and whether and how to."""
        optimizer, norm = self.fused.optimizer, self.norm
        if optimizer is None:
            return [norm.weight, norm.bias, spare, spare, spare], [0.0, 0.0], {"LEARN": False, "RULE": ""}
        tensors = [norm.weight, norm.bias, optimizer.velocity[norm.weight], optimizer.velocity[norm.bias], optimizer.lr]
        how = {"LEARN": self.fused.learning, "RULE": optimizer.fused_rule}
        return tensors, [optimizer.momentum, optimizer.weight_decay_of(norm.weight)], how


class _ConvNorm(torch.autograd.Function):
    """(relu(norm(conv(x)) + add), the same again or every `every`-th pixel of it).

    `before`: add is that layer's, unfinished; its batch norm happens here.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, _: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, idle: Tensor | None,
        relu: bool, every: int, layer: ConvNormLayer, before: ConvNormLayer | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        z, partial, moments, pivot = _convolve(layer, x)
        norm = layer.norm
        (lots, parts), (b, channels, h, w) = partial.shape[:2], z.shape
        rows = b * h * w // lots
        y = torch.empty_like(z)
        skip = y if every == 1 else torch.empty_like(z[:, :, ::every, ::every], memory_format=CHANNELS_LAST)
        bits = z.new_empty(z.numel() // 8, dtype=torch.uint8) if add is not None and relu else None
        add_pivot = True
        of_add = [z if add is None else add, partial, weight, bias, moments, *_running(norm)]
        if before is not None:
            assert before.waiting is not None
            its_partial, its_moments, add_pivot = before.waiting
            assert len(its_moments) == lots
            its = before.norm
            of_add[1:] = [its_partial, its.weight, its.bias, its_moments, *_running(its)]
            before.waiting = None
        grid, sizes = shared(rows, channels, lots, MANY, layer.fused.processors)
        launch(
            kernels.normalise, grid, z, y, skip, z if bits is None else bits, partial,
            weight, bias, bias if idle is None else idle, moments, *_running(norm), *of_add,
            rows, channels, parts, of_add[1].shape[1], h, w, norm.momentum, norm.eps,
            RELU=relu, ADD=add is not None, THROUGH=before is not None, IDLE=idle is not None, EVERY=every,
            PIVOT=pivot, ADD_PIVOT=add_pivot, **sizes,
        )  # fmt: skip
        ctx.save_for_backward(x, z, moments, bits)
        ctx.set_materialize_grads(False)
        ctx.settings = (layer, add is not None, relu, every)
        ctx.idle = None if idle is None else torch.zeros_like(idle)
        return y, y.detach() if every == 1 else skip

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, other: Tensor | None) -> tuple[Any, ...]:
        of_x, of_weights, masked = _backward(ctx, grad, other, *ctx.settings)
        added = ctx.settings[1]
        return of_x, *of_weights, masked if added else None, ctx.idle, None, None, None, None


class _Unfinished(torch.autograd.Function):
    """conv(x), whose batch norm is left to the layer that adds it; its gradient is the one behind that batch norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _: Tensor, __: Tensor, ___: Tensor, layer: ConvNormLayer) -> Tensor:
        z, partial, moments, pivot = _convolve(layer, x)
        layer.waiting = partial, moments, pivot
        ctx.save_for_backward(x, z, moments, None)
        ctx.layer = layer
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        of_x, of_weights, _ = _backward(ctx, grad, None, ctx.layer, added=False, relu=False, every=1)
        return of_x, *of_weights, None


def _running(norm: nn.BatchNorm2d) -> list[Any]:
    return [norm.running_mean, norm.running_var, norm.num_batches_tracked]


def _convolve(layer: ConvNormLayer, x: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The convolution, sums for its batch norm, room for its moments, and whether the sums are of differences.

    Sums and moments are the lots': [lots, programs, 2, C] and [lots, 4, C].
    """
    lots = layer.lots(len(x))
    z, partial = layer.product.forward(x, lots)
    channels = z.shape[1]
    pivot = partial is None
    if partial is None:
        rows = z.numel() // channels // lots
        grid, sizes = shared(rows, channels, lots, FEW, layer.fused.processors)
        partial = z.new_empty(lots, grid[0], 2, channels, dtype=torch.float32)
        launch(kernels.statistics, grid, z, partial, rows, channels, **sizes)
    return z, partial, z.new_empty(lots, 4, channels, dtype=torch.float32), pivot


def _backward(
    ctx: Any, grad: Tensor | None, other: Tensor | None, layer: ConvNormLayer, added: bool, relu: bool, every: int
) -> tuple[Tensor | None, tuple[Any, Any, Any], Tensor]:
    """∂x, the gradients of conv.weight, norm.weight and norm.bias (None where they have learnt), and the masked ∂y."""
    x, z, moments, bits = ctx.saved_tensors
    fused = layer.fused
    if grad is None:  # only the second of the two was used
        grad = torch.zeros_like(z)
    grad = grad.contiguous(memory_format=CHANNELS_LAST)
    other = None if other is None else other.contiguous(memory_format=CHANNELS_LAST)
    lots, (b, channels, h, w) = len(moments), z.shape
    rows = b * h * w // lots
    keep = added or other is not None
    masked = torch.empty_like(z) if keep else grad
    grid, sizes = shared(rows, channels, lots, FEW, fused.processors)
    partial = z.new_empty(lots, grid[0], 2, channels, dtype=torch.float32)
    launch(
        kernels.backward_sums, grid, grad, grad if other is None else other, z, z if bits is None else bits,
        moments, masked, partial, rows, channels, h, w,
        OTHER=other is not None, RELU=relu, ADD=added, EVERY=every, **sizes,
    )  # fmt: skip
    of_norm = z.new_empty(2, channels, dtype=torch.float32)
    tensors, numbers, how = layer.rates(of_norm)
    mask = relu and not keep
    of_weight = of_x = None
    if isinstance(layer.product, First):
        of_weight = layer.product.gradient(layer, x, masked, z, partial, moments, of_norm, tensors, numbers, mask, how)
    else:
        of_z = torch.empty_like(z)
        parts = grid[0]
        grid, sizes = shared(rows, channels, lots, MANY, fused.processors)
        launch(
            kernels.backward_inputs, grid, masked, z, of_z, partial, moments, of_norm[0], of_norm[1], *tensors,
            rows, channels, parts, *numbers, MASK=mask, **how, **sizes,
        )  # fmt: skip
        if ctx.needs_input_grad[0]:
            of_x = layer.product.grad_input(of_z, x)
        if fused.optimizer is None:
            of_weight = layer.product.grad_weight(of_z, x).float()
        else:
            fused.on_side_stream(layer.learn, of_z, x)
    if fused.optimizer is not None:
        return of_x, (None, None, None), masked
    return of_x, (of_weight, of_norm[0], of_norm[1]), masked
