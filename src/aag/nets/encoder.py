"""The encoder: images in, features and embedding out."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag.errors import AAGError
from aag.nets.backbones import backbone
from aag.nets.heads import head
from aag.nets.layers import use_ghost_batch_norm
from aag.nets.sobel import sobel
from aag.nets.spec import EncoderSpec
from aag.pixels import check_pixel_range


class Encoder(nn.Module):
    """Images [B, 3, H, W], uint8 or float in [0, 1] → features [B, F] and embedding [B, D], both raw.

    Normalisation by mean and deviation happens inside, so that a saved encoder needs no word about preprocessing.
    The buffers for it follow from the spec and stay out of the state dict.
    """

    mean: Tensor
    std: Tensor
    prepare: Callable[[Tensor], Tensor] | None = None  # takes normalise's place, where the first layer wants it so

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.extra: dict[str, str] = {}  # what a file says of it besides
        self.backbone, self.feature_dim, self._one_size = backbone(spec)
        self.head, self.embedding_dim = head(spec, self.feature_dim)
        if spec.norm_images:
            use_ghost_batch_norm(self, spec.norm_images)
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, 3, 1, 1), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Zero mean and unit deviation a channel, in the buffers' dtype: autocast leaves these operations alone.

        Where the network is to see edges, those of the image so normalised.
        """
        x = images.to(self.mean.dtype)
        if images.dtype == torch.uint8:
            x = x / 255
        x = (x - self.mean) / self.std
        if self.spec.sees_edges:
            x = sobel(x)
        # cuDNN and oneDNN run convolutions fastest channels last, and the layout of the input spreads to every layer.
        return x.contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(self.normalise(images) if self.prepare is None else self.prepare(images))
        return features, self.head(features)

    def features(self, images: Tensor, *, batch_size: int | None = None) -> Tensor:
        """Raw features [N, F] in eval mode, for a linear classifier."""
        return self.encode(images, batch_size=batch_size)[0]

    def embed(self, images: Tensor, *, batch_size: int | None = None) -> Tensor:
        """L2-normalised embeddings [N, D] in eval mode, for nearest neighbours: a dot product is the cosine."""
        return self.encode(images, batch_size=batch_size)[1]

    @torch.no_grad()
    def encode(
        self, images: Tensor, *, batch_size: int | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features [N, F] and L2-normalised embeddings [N, D] in one pass, as float32 on the encoder's device.

        The images may live elsewhere: they are moved batch by batch. A single image [3, H, W] counts as N = 1.
        Without a batch size, about a million pixels go through at once.
        `dtype` (torch.bfloat16, say) runs the network under autocast on an accelerator. A CPU stays in float32: it
        gains little, and where a virtual machine promises matrix instructions it lacks, bfloat16 kills the process.
        """
        images = self._checked(images)
        if batch_size is None:
            batch_size = max(16, 2**20 // max(1, images.shape[2] * images.shape[3]))
        if batch_size < 1:
            raise AAGError(f"batch_size must be at least 1, got {batch_size}")
        device = self.mean.device
        features = torch.empty(len(images), self.feature_dim, device=device)
        embeddings = torch.empty(len(images), self.embedding_dim, device=device)
        reduced = dtype is not None and device.type != "cpu"
        autocast: AbstractContextManager = torch.autocast(device.type, dtype=dtype) if reduced else nullcontext()
        with evaluating(self), autocast:
            for start in range(0, len(images), batch_size):
                rows = slice(start, start + batch_size)
                features[rows], raw = self(check_pixel_range(images[rows].to(device)))
                embeddings[rows] = F.normalize(raw.float(), dim=1)
        return features, embeddings

    def _checked(self, images: Tensor) -> Tensor:
        """`images` as [N, 3, H, W], or the one line that says what is wrong with them."""
        expected = "expected a tensor [N, 3, H, W], uint8 or float in [0, 1]"
        if not isinstance(images, Tensor):
            raise AAGError(f"{expected}; got {type(images).__name__}")
        if images.ndim == 3:
            images = images.unsqueeze(0)
        if images.ndim != 4 or images.shape[1] != 3:
            raise AAGError(f"{expected}; got shape {list(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise AAGError(f"{expected}; got {images.dtype}")
        size = self.spec.image_size
        if self._one_size and images.shape[2:] != (size, size):
            height, width = images.shape[2:]
            raise AAGError(f"this {self.spec.network} was built for {size}×{size} images; got {height}×{width}")
        return images


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, then each submodule's own mode again: a part may have been frozen in eval mode on purpose."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def build(spec: EncoderSpec, *, seed: int = 0) -> Encoder:
    """A fresh encoder on the CPU: PyTorch's default initialisation, the same for a seed wherever it goes next."""
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        torch.manual_seed(seed)
        return Encoder(spec)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
