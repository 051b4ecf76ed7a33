"""A training step by kernels in Triton's interpreter, with a batch in two processes against the whole batch in one.

python synchronised_kernels.py      one of several processes, by the environment that torchrun sets
"""

import copy
import os

import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from aag.data import load
from aag.distributed import process_group, process_slice, world_size
from aag.methods import MethodContext
from aag.nets import Encoder, EncoderSpec, build
from aag.nets.heads import mlp_head
from aag.nets.resnet import BasicBlock, ResNet
from aag.training import recipe_settings
from aag.training.batches import Batch
from aag.training.runtime import Runtime
from aag.training.step import Step


def train_step(encoder: Encoder, views: Tensor) -> dict[str, Tensor]:
    """Return the statistics of a step, and the weights, momenta and running statistics after it."""
    images = views.shape[1]
    settings = recipe_settings("demo", "sample").replace(batch_size=images).resolve("fp32")
    method = settings.new_method()
    method.setup(MethodContext(encoder, images, settings.train))
    runtime = Runtime(torch.device("cpu"), torch.float32, kernels=True)
    step = Step(encoder, method, settings.train, runtime)
    step.fused_encoders[0].processors = 7  # several programs, whose sums are added up
    own = process_slice(images)
    statistics = step(Batch(views[:, own], torch.arange(images)[own]), lr=1e-3)
    step.close()
    return {"statistics": statistics, **step.state()}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    encoder = build(EncoderSpec("resnet18", width=16))
    encoder.backbone = backbone = ResNet(BasicBlock, (1, 1), 16)  # the second block has a projection
    encoder.head = mlp_head(backbone.feature_dim, 24)
    encoder = encoder.to(memory_format=torch.channels_last)
    views = load("sample", split="test").images[:12, :, 3:12, 7:16].unflatten(0, (3, 4))
    with process_group(torch.device("cpu")):
        assert world_size() == 2
        together = train_step(copy.deepcopy(encoder), views)
    alone = train_step(encoder, views)
    assert together.keys() == alone.keys()
    for name, expected in alone.items():
        if expected.is_floating_point():
            error = float((together[name] - expected).norm() / expected.norm().clamp_min(1e-6))
            assert error < 1e-4, (name, error)
        else:
            assert torch.equal(together[name], expected), name


if __name__ == "__main__":
    main()
