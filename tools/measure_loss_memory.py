"""Measure memory and time of Algorithm 1's loss and its gradient: with similarities [n, n], and in blocks.

    python tools/measure_loss_memory.py 1024 4096 16384 65536
    python tools/measure_loss_memory.py --device cuda 1024 4096 16384 65536

Three views of d = 128, one process per cell. On a CPU (one core), memory is the process's peak above that before the
loss, and time is CPU time. On a GPU, memory is the peak of all tensors above the embeddings, and time is wall time.
Similarities [n, n] are left out where they would take more than 5 GiB, or 80 on a GPU. Prints a Markdown table.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch

from aag import large_batch, losses

DENSE_GIB = {"cpu": 5, "cuda": 80}


def peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def seconds(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def measure(kind: str, n: int, device: str) -> str:
    """Return "MiB s" of one forward and backward pass, after a warm-up pass of 64 images (on a GPU: of n)."""
    torch.set_num_threads(1)
    for images in (n if device == "cuda" else 64, n):
        views = [torch.randn(images, 128, requires_grad=True, device=device) for _ in range(3)]
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before, start = peak_bytes(device), seconds(device)
        in_blocks = kind == "blocks"
        (
            large_batch.contrast(views, large_batch.gnt_xent_pairs()).loss if in_blocks else losses.gnt_xent(*views)
        ).backward()
        took = seconds(device) - start
    return f"{(peak_bytes(device) - before) / 2**20:.0f} {took:.2f}"


def main(sizes: list[int], device: str) -> None:
    print("| images | embeddings, MiB | [n, n], MiB | [n, n], s | in blocks, MiB | in blocks, s |")
    print("|---|---|---|---|---|---|")
    for n in sizes:
        cells = []
        for kind in ("dense", "blocks"):
            if kind == "dense" and large_batch.DENSE_MATRICES * n * n * 4 > DENSE_GIB[device] * 2**30:
                cells += ["–", "–"]
                continue
            command = [sys.executable, __file__, "--kind", kind, "--device", device, str(n)]
            cells += subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        print(f"| {n:,} | {3 * n * 128 * 4 / 2**20:.1f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=int, nargs="+")
    parser.add_argument("--device", choices=DENSE_GIB, default="cpu")
    parser.add_argument("--kind", choices=("dense", "blocks"), help=argparse.SUPPRESS)  # one cell
    chosen = parser.parse_args()
    if chosen.kind:
        print(measure(chosen.kind, chosen.images[0], chosen.device))
    else:
        main(chosen.images, chosen.device)
