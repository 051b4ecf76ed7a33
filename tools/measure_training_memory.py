"""Measure the GPU memory of training, and whether it fits a smaller card.

    python tools/measure_training_memory.py                # ResNet-18 at batch 128, ResNet-50 at batch 64
    python tools/measure_training_memory.py --limit 11     # allow no more than an RTX 2080 Ti has

AAG's recipes `paper` and `paper-resnet50` on 50,000 random images of 32×32, in bf16 and in fp32, one process each. The
limit is set before anything is allocated (`torch.cuda.set_per_process_memory_fraction`); it counts what PyTorch
reserves, not the CUDA context. Prints a Markdown table.
"""

import argparse
import subprocess
import sys

import torch

from aag.data import ImageSet
from aag.training import Trainer, build_encoder, recipe_settings

RUNS = [(recipe, precision) for recipe in ("paper", "paper-resnet50") for precision in ("bf16", "fp32")]


def measure(recipe: str, precision: str, limit: float | None, steps: int) -> str:
    """Return the cells of a row: what ran, how, and the peaks in GiB."""
    if limit:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit * 2**30 / total))
    settings = recipe_settings(recipe, "cifar10").replace(precision=precision).resolve()
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=random)
    image_set = ImageSet("random", images)
    trainer = Trainer(
        build_encoder(settings, image_set), settings.new_method(), image_set, settings.train, device="cuda"
    )
    trainer.prepare()
    trainer.warm_up()
    for step in range(steps):
        trainer.train_step(0, step, settings.train.lr)
    torch.cuda.synchronize()
    trainer.close()
    peaks = [torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30]
    cells = [settings.encoder.network, settings.train.batch_size, precision, trainer.runtime]
    return " | ".join(map(str, [*cells, *(f"{peak:.2f}" for peak in peaks)]))


def main(limit: float | None, steps: int) -> None:
    print("| network | batch size | precision | how | allocated, GiB | reserved, GiB |")
    print("|---|---:|---|---|---:|---:|")
    for recipe, precision in RUNS:
        command = [sys.executable, __file__, "--one", recipe, precision, "--steps", str(steps)]
        command += ["--limit", str(limit)] if limit else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode and "OutOfMemoryError" not in done.stderr:
            sys.exit(done.stderr)
        row = f"{recipe} | | {precision} | does not fit | – | –" if done.returncode else done.stdout.strip()
        print(f"| {row} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, help="GiB that may be used")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # a row
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this measures the memory of a GPU, and there is none")
    if chosen.one:
        print(measure(*chosen.one, chosen.limit, chosen.steps))
    else:
        main(chosen.limit, chosen.steps)
