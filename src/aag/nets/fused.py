"""Train an encoder with kernels: each ConvNorm and Linear layer is one autograd function.

Inside `with FusedEncoder(encoder, dtype, optimizer):` the encoder's layers run on kernels, with activations in `dtype`.
Weights, batch norm statistics and the gradients of weights are float32. The plain layers are the reference:
`FusedEncoder` raises for encoders that the kernels would compute differently.
"""

from typing import Any

import torch
from torch import Tensor

from aag.errors import KernelsUnsupportedError
from aag.kernels import launch
from aag.kernels.stem import PATCH, im2col
from aag.nets.bottlenecks import FusedBottlenecks, can_fuse
from aag.nets.encoder import Encoder
from aag.nets.fused_conv_norm import CHANNELS_LAST, ConvNormLayer
from aag.nets.kernel_context import BackwardOptimizer, KernelContext, allocate_copy
from aag.nets.layers import ConvNorm, Linear
from aag.nets.resnet import ResNet
from aag.nets.sobel import SobelPair, sobel
from aag.nets.support import unsupported_reason


class FusedEncoder(KernelContext):
    """Context in which an encoder's layers run on kernels.

    Without an `optimizer`, gradients go to `.grad` as usual. Any number of passes is allowed, and frozen weights get no
    gradient. Call `refresh` after the weights changed.

    With an `optimizer`, weights are updated during backward and get no `.grad`, so the optimizer itself skips them.
    Call `join` before anything else uses the weights. This needs exactly one forward pass per `with` block, one
    backward pass after it, and no frozen weights.
    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype, optimizer: BackwardOptimizer | None = None) -> None:
        if reason := unsupported_reason(encoder):
            raise KernelsUnsupportedError(f"the kernels cannot train this encoder: {reason}")
        super().__init__(encoder.mean.device, dtype, optimizer)
        self.encoder = encoder
        if optimizer and not all(parameter.requires_grad for parameter in encoder.parameters()):
            raise KernelsUnsupportedError(
                "frozen weights cannot be updated during backward; use FusedEncoder without an optimizer"
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
        by_module = {layer.module: layer for layer in self.layers}
        found = [module for module in encoder.modules() if isinstance(module, ResNet) and can_fuse(module)]
        self.resnets = [FusedBottlenecks(resnet, by_module, self) for resnet in found]
        self.refresh()

    def __enter__(self) -> None:
        self.begin_pass()
        backbone = self.encoder.backbone
        if isinstance(backbone, SobelPair):
            self.encoder.fused_input, backbone.fused = lambda images: images, self._pair_features
        else:
            self.encoder.fused_input = self._patches
        for layer in (*self.layers, *self.resnets):
            layer.module.fused = layer

    def __exit__(self, *_: object) -> None:
        self.encoder.fused_input = None
        if isinstance(self.encoder.backbone, SobelPair):
            self.encoder.backbone.fused = None
        for layer in (*self.layers, *self.resnets):
            layer.module.fused = None

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the kernels' copies of the weights, after these changed outside."""
        for layer in self.layers:
            layer.refresh()

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


# --- fully connected layers ------------------------------------------------------------------------------------------


class LinearLayer:
    def __init__(self, module: Linear, context: KernelContext) -> None:
        self.module, self.context = module, context
        self.weight = allocate_copy(module.weight, context.dtype)
        self.bias = None if module.bias is None else allocate_copy(module.bias, context.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        self.context.check_single_pass(self)
        return _Linear.apply(x.to(self.context.dtype), self.module.weight, self.module.bias, self)

    def refresh(self) -> None:
        self.weight.copy_(self.module.weight)
        if self.bias is not None:
            self.bias.copy_(self.module.bias)

    def update(self, grad: Tensor, x: Tensor) -> None:
        self.context.step(self.module.weight, self.weight, grad.T @ x)
        if self.bias is not None:
            self.context.step(self.module.bias, self.bias, grad.sum(dim=0))


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
        if layer.context.optimizer is not None:
            layer.context.on_side_stream(layer.update, grad, x)
            return grad_x, None, None, None
        grad_bias = grad.float().sum(dim=0) if needs_bias else None
        return grad_x, (grad.T @ x).float() if needs_weight else None, grad_bias, None
