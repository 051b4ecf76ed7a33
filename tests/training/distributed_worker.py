"""What the processes of test_distributed.py compute, and the one process that they are compared with.

python distributed_worker.py OUT CASE …      one of several processes, by the environment that torchrun sets
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aag import data, large_batch
from aag.data import ImageSet
from aag.distributed import copy_from_main, gather_rows, process_group, process_slice, rank, world_size
from aag.methods import MethodContext
from aag.nets.resnet import BasicBlock, ResNet
from aag.nets.sync_norm import average_running_statistics
from aag.settings import TrainSettings
from aag.training import build_encoder, recipe_settings
from aag.training.batches import Batches
from aag.training.runtime import Runtime
from aag.training.schedule import learning_rate
from aag.training.step import Step

VICREG = str(Path(__file__).parents[2] / "examples" / "vicreg.py") + ":VICReg"
BATCH, STEPS, IMAGES = 16, 20, 48
CASES: dict[str, dict[str, Any]] = {
    "aag": {"method": "aag"},
    "aag, per view": {"method": "aag", "forward": "per-view"},
    "aag, groups": {"method": "aag", "bn_group_size": 4},
    "aag, mlp head": {"method": "aag", "head": "mlp", "optimizer": "lars"},
    "aag, accumulated": {"method": "aag", "accumulate": 2, "clip_grad": 1.0},
    "aag, large batch": {"method": "aag", "dense_bytes": 0, "auxiliary_views": 2, "one_way": True},
    "aag, several auxiliary views": {"method": "aag", "auxiliary_views": 2},
    "aag-nn": {"method": "aag-nn", "neighbour_start": 0.0},
    "aag-mix": {"method": "aag-mix", "mixtures": 2},
    "aag-relational": {"method": "aag-relational", "queue": 64},
    "aag-siam": {"method": "aag-siam", "contrast_weight": 0.1},
    "simclr": {"method": "simclr"},
    "simclr, large batch": {"method": "simclr", "dense_bytes": 0},
    "isif": {"method": "isif"},
    "instance": {"method": "instance"},
    "instance, nce": {"method": "instance", "negatives": 8},
    "and": {"method": "and"},
    "super-and": {"method": "super-and"},
    "moco": {"method": "moco", "queue": 64},
    "moco, shuffled": {"method": "moco", "queue": 64, "bn_group_size": 4, "symmetric": True},
    "deepcluster": {"method": "deepcluster", "clusters": 4},
    "amdim": {"method": "amdim"},
    "vicreg": {"method": VICREG},
    "frozen": {"method": "aag", "freeze": ("backbone.stem",)},
}
EACH_METHOD = tuple({case["method"]: name for name, case in reversed(CASES.items())}.values())  # its first case
COMPILED = {f"{name}, compiled": {**CASES[name], "compile": True} for name in ("aag", "moco, shuffled")}  # minutes


@cache
def load_photographs() -> Tensor:
    return data.load("sample", split="test").images


class Trained(NamedTuple):
    """What training has computed."""

    losses: Tensor  # [steps, statistics]
    gradients: dict[str, Tensor]  # of the first step
    state: dict[str, Tensor]  # weights, optimizer, banks, queues, clusters


def train(method: str, **options: Any) -> Trained:
    """Train in float64 at a low rate, so that the order of sums hardly matters."""
    size = 32 if method == "amdim" else 16
    images = load_photographs()[:IMAGES, :, :size, :size].contiguous()
    settings = recipe_settings("demo", "sample", method)
    freeze = options.pop("freeze", ())
    dense_bytes = options.pop("dense_bytes", 2**30)
    compile = options.pop("compile", False) and world_size() > 1
    large_batch.DENSE_BYTES = dense_bytes if world_size() > 1 else 2**30  # one process is the reference
    settings = settings.replace(width=2, batch_size=BATCH, epochs=6, image_size=size, **{"lr": 3e-4} | options).resolve(
        "fp32"
    )
    torch.manual_seed(7 + rank())  # weights drawn here and by the method: those of the main process count
    # Few batch norms, as each one exchanges statistics twice a step. AMDIM and Super-AND have networks of their own.
    small = settings.encoder.network == "resnet18"
    backbone = ResNet(BasicBlock, (1, 1), settings.encoder.width) if small else None
    encoder = build_encoder(settings, ImageSet("photographs", images), backbone)
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(not name.startswith(freeze) if freeze else True)
    learner = settings.new_method()
    learner.setup(MethodContext(encoder, IMAGES, settings.train))
    encoder.double(), learner.double()
    step = Step(encoder, learner, settings.train, Runtime(torch.device("cpu"), torch.float32, compile=compile))
    copy_from_main(step.state().values())
    batches = Batches(images, learner, BATCH, settings.train.seed)

    def extract() -> tuple[Tensor, Tensor]:
        average_running_statistics(encoder, learner)
        features, embeddings = (each.double() for each in encoder.encode(images[process_slice(IMAGES)]))
        return gather_rows(features, IMAGES), gather_rows(embeddings, IMAGES)

    losses, gradients = [], {}
    for at in range(STEPS):
        epoch, place = divmod(at, IMAGES // BATCH)
        if place == 0:
            learner.before_epoch(epoch, extract)
            step.optimizer.reset(learner.reinitialized_parameters())
            batches.reset()
        window = settings.train.accumulate
        rate = _rate(settings.train, at)
        losses.append(step(batches.batch(epoch, place), rate, first=at % window == 0, last=at % window == window - 1))
        if at == window - 1:
            gradients = {
                name: weight.grad.clone()
                for name, weight in step.optimizer.parameters.items()
                if weight.grad is not None
            }
    average_running_statistics(encoder, learner)
    return Trained(torch.stack(losses), gradients, {name: value.clone() for name, value in step.state().items()})


def _rate(settings: TrainSettings, at: int) -> float:
    return learning_rate(settings, at, IMAGES // BATCH)


class Finished(NamedTuple):
    """A process that ended."""

    code: int
    output: str  # standard output and error


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run_processes(size: int, arguments: list[str], folder: Path, timeout: float = 240) -> list[Finished]:
    """Run this Python with `arguments` in `size` processes that know of each other, as torchrun starts them.

    After `timeout` seconds they are aborted, and their output says where each thread was.
    """
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = {**os.environ, **address, "WORLD_SIZE": str(size), "PYTHONFAULTHANDLER": "1"}
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(size)]
        processes = [
            subprocess.Popen(
                [sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT, cwd=folder,
                env=environment | {"RANK": str(number), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(size)},
            )
            for number, output in enumerate(outputs)
        ]  # fmt: skip
        for process in processes:
            stack.callback(process.kill)
        try:
            codes = [process.wait(timeout=timeout) for process in processes]
        except subprocess.TimeoutExpired:
            for process in processes:
                process.send_signal(signal.SIGABRT)
            codes = [process.wait(timeout=30) for process in processes]
        for output in outputs:
            output.seek(0)
        return [Finished(code, output.read()) for code, output in zip(codes, outputs, strict=True)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group(torch.device("cpu")):
        out, *chosen = sys.argv[1:]
        torch.save({name: train(**(CASES | COMPILED)[name])._asdict() for name in chosen}, f"{out}.{rank()}")
