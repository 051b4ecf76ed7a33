"""Measure memory and time of Algorithm 1's loss and its gradient: with similarities [n, n], and in blocks.

    python tools/measure_loss_memory.py 1024 4096 16384 65536

Three views of d = 128 on one CPU core, one process per cell. Memory is the process's peak above that before the loss.
Time is CPU time. Similarities [n, n] are left out above 8,192 images. Prints a Markdown table.
"""

import resource
import subprocess
import sys
import time

import torch

from aag import large_batch, losses

DENSE_LIMIT = 8192  # 18 matrices [n, n] take 4.5 GiB


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, n: int) -> str:
    """Return "MiB s" of one forward and backward pass, after one of 64 images."""
    torch.set_num_threads(1)
    for images in (64, n):
        views = [torch.randn(images, 128, requires_grad=True) for _ in range(3)]
        before, start = peak_mib(), time.process_time()
        in_blocks = kind == "blocks"
        (large_batch.contrast(views, large_batch.ALGORITHM_1).loss if in_blocks else losses.gnt_xent(*views)).backward()
    return f"{peak_mib() - before:.0f} {time.process_time() - start:.2f}"


def main(sizes: list[int]) -> None:
    print("| images | embeddings, MiB | [n, n], MiB | [n, n], s | in blocks, MiB | in blocks, s |")
    print("|---|---|---|---|---|---|")
    for n in sizes:
        cells = []
        for kind in ("dense", "blocks"):
            if kind == "dense" and n > DENSE_LIMIT:
                cells += ["–", "–"]
                continue
            command = [sys.executable, __file__, kind, str(n)]
            cells += subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        print(f"| {n:,} | {3 * n * 128 * 4 / 2**20:.1f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("dense", "blocks"):
        print(measure(sys.argv[1], int(sys.argv[2])))
    else:
        main([int(word) for word in sys.argv[1:]])
