"""The training kernels in Triton's interpreter, with a batch in two processes against the whole batch in one.

python synchronised_kernels.py      one of several processes, by the environment that torchrun sets
"""

import copy
import os

import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from aag.data import load
from aag.distributed import gather_batch, process_group, share, sum_in_place, world_size
from aag.nets import Encoder, EncoderSpec, build
from aag.nets.fused import Fused
from aag.nets.heads import mlp_head
from aag.nets.resnet import BasicBlock, ResNet
from aag.nets.sync_norm import SyncBatchNorm


def step(encoder: Encoder, images: Tensor) -> dict[str, Tensor]:
    """Return the embeddings, gradients and running statistics of a forward and a backward pass."""
    fused = Fused(encoder, torch.float32)
    fused.processors = 7  # several programs, whose sums are added up
    with fused, SyncBatchNorm():
        embeddings = gather_batch(encoder(images[share(len(images))])[1], dim=0)
    weights = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(3))
    ((embeddings * weights).sum() / world_size()).backward()
    found = {name: sum_in_place(weight.grad.clone()) for name, weight in encoder.named_parameters()}
    running = {name: value for name, value in encoder.state_dict().items() if "running" in name}
    return {"embeddings": embeddings.detach(), **found, **running}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    encoder = build(EncoderSpec("resnet18", width=16))
    encoder.backbone = backbone = ResNet(BasicBlock, (1, 1), 16)  # the second block has a projection
    encoder.head = mlp_head(backbone.feature_dim, 24)
    encoder = encoder.to(memory_format=torch.channels_last)
    images = load("sample", split="test").images[:8, :, 3:12, 7:16]
    with process_group(torch.device("cpu")):
        assert world_size() == 2
        together = step(copy.deepcopy(encoder), images)
    alone = step(encoder, images)
    for name, expected in alone.items():
        error = float((together[name] - expected).norm() / expected.norm())
        assert error < 1e-4, (name, error)


if __name__ == "__main__":
    main()
