"""The encoder: images in, features and embedding out."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor, nn

from aag.errors import AAGError, describe
from aag.nets.backbones import build_backbone, wrap_backbone
from aag.nets.heads import build_head
from aag.nets.layers import eval_mode, use_ghost_batch_norm
from aag.nets.sobel import sobel
from aag.nets.spec import CUSTOM, EncoderSpec
from aag.pixels import check_pixel_range
from aag.settings import Range, Seed, check_value
from aag.vectors import unit_rows


class Encoder(nn.Module):
    """Images [B, C, H, W], uint8 or float in [0, 1] → features [B, F] and embedding [B, D], both raw.

    The encoder normalises images by mean and standard deviation, so a saved one needs no separate preprocessing. The
    buffers for that follow from the spec and stay out of the state dict.

    `backbone`: your own module [B, C, H, W] → [B, F]; it replaces the network that `spec` names.
    """

    mean: Tensor
    std: Tensor
    fused_input: Callable[[Tensor], Tensor] | None = None  # replaces `normalise` while kernels compute the layers

    def __init__(self, spec: EncoderSpec, backbone: nn.Module | None = None) -> None:
        super().__init__()
        if backbone is not None:
            spec = replace(spec, network=CUSTOM + type(backbone).__name__)
        self.spec = spec = spec.resolve()
        self.extra: dict[str, str] = {}  # further metadata of the file it was loaded from
        built = build_backbone(spec) if backbone is None else wrap_backbone(backbone, spec)
        self.backbone, self.feature_dim, self.fixed_size = built
        self.head, self.embedding_dim = build_head(spec.head, self.feature_dim, spec.embedding, spec.head_width)
        if spec.bn_group_size:
            use_ghost_batch_norm(self, spec.bn_group_size)
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Return images with zero mean and unit variance per channel (or the edges of these), channels last.

        The result has the buffers' dtype, also under autocast.
        """
        x = images.to(self.mean.dtype)
        if images.dtype == torch.uint8:
            x = x / 255
        x = (x - self.mean) / self.std
        if self.spec.sees_edges:
            x = sobel(x)
        # cuDNN and oneDNN run convolutions fastest channels last, and all layers keep the layout of the input.
        return x.contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(self.normalise(images) if self.fused_input is None else self.fused_input(images))
        return features, self.head(features)

    def features(self, images: Tensor, *, batch_size: int | None = None, any_size: bool = False) -> Tensor:
        """Return raw features [N, F] in eval mode, for a linear classifier. Arguments as for `encode`."""
        return self.encode(images, batch_size=batch_size, any_size=any_size)[0]

    def embed(self, images: Tensor, *, batch_size: int | None = None, any_size: bool = False) -> Tensor:
        """Return L2-normalised embeddings [N, D] in eval mode: a dot product of two is their cosine similarity."""
        return self.encode(images, batch_size=batch_size, any_size=any_size)[1]

    @torch.no_grad()
    def encode(
        self,
        images: Tensor,
        *,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        any_size: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return features [N, F] and L2-normalised embeddings [N, D], float32 on the encoder's device.

        images: [N, C, H, W] or one image [C, H, W], on any device; they are moved batch by batch. Images of the spec's
        `resize_size` are cropped to their centre.
        batch_size: by default, about a million pixels per batch.
        dtype: for example torch.bfloat16, runs the network under autocast on a GPU. A CPU stays in float32: bfloat16
        gains little there, and kills the process on virtual machines that lack instructions they report.
        any_size: also accept images of another size than the encoder was trained on.
        """
        images = self._check_images(images, any_size)
        if batch_size is None:
            batch_size = max(16, 2**20 // max(1, images.shape[2] * images.shape[3]))
        batch_size = check_value("batch_size", batch_size, Annotated[int, Range(at_least=1)])
        device = self.mean.device
        features = torch.empty(len(images), self.feature_dim, device=device)
        embeddings = torch.empty(len(images), self.embedding_dim, device=device)
        reduced = dtype is not None and device.type != "cpu"
        autocast: AbstractContextManager = torch.autocast(device.type, dtype=dtype) if reduced else nullcontext()
        with eval_mode(self), autocast:
            for start in range(0, len(images), batch_size):
                rows = slice(start, start + batch_size)
                features[rows], raw = self(check_pixel_range(images[rows].to(device)))
                embeddings[rows] = unit_rows(raw)
        return features, embeddings

    def _check_images(self, images: Tensor, any_size: bool) -> Tensor:
        """Return `images` as [N, C, H, W], or raise an AAGError."""
        channels, size = self.spec.channels, self.spec.image_size
        expected = f"expected a tensor [N, {channels}, H, W], uint8 or float in [0, 1]"
        if not isinstance(images, Tensor):
            hint = "use torch.as_tensor(array), or aag.data.load(path).images"
            raise AAGError(f"{expected}; got {type(images).__name__}; {hint}")
        if images.ndim == 3:
            images = images.unsqueeze(0)
        if images.ndim != 4 or images.shape[1] != channels:
            hint = "; move the channels forward with images.movedim(-1, -3)" if images.shape[-1:] == (channels,) else ""
            raise AAGError(f"{expected}; got shape {list(images.shape)}{hint}")
        if not images.shape[2] * images.shape[3] or images.layout != torch.strided or images.is_meta:
            raise AAGError(f"{expected}, with at least one pixel; got {list(images.shape)} on {images.device}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise AAGError(f"{expected}; got {images.dtype}")
        source = self.spec.source_size
        if source != size and images.shape[2:] == (source, source):
            start = (source - size) // 2
            images = images[:, :, start : start + size, start : start + size]
        if images.shape[2:] != (size, size) and (self.fixed_size or not any_size):
            height, width = images.shape[2:]
            raise AAGError(
                f"this {self.spec.network} was built for {size}×{size} images; got {height}×{width}: "
                "resize them" + ("" if self.fixed_size else ", or pass any_size=True")
            )
        return images


def build(spec: EncoderSpec, *, seed: int = 0, backbone: nn.Module | None = None) -> Encoder:
    """Build an encoder on the CPU with PyTorch's default initialisation, the same for a seed on any device.

    The caller's random state is unchanged. A `backbone` of your own keeps its weights; only the head is initialised.
    """
    if not isinstance(spec, EncoderSpec) or not isinstance(backbone, nn.Module | None):
        given = describe(backbone if isinstance(spec, EncoderSpec) else spec)
        raise AAGError(f"an encoder is built from an EncoderSpec and optionally an nn.Module, not {given}")
    seed = check_value("seed", seed, Seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Encoder(spec, backbone)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
