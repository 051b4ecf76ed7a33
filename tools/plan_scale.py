"""Estimate what AAG costs on large data sets and many GPUs. Prints the Markdown tables of docs/scale.md.

    python tools/plan_scale.py

Nothing here is measured but the speed of one GPU (docs/benchmarks.md). The assumptions are the constants below.
"""

VIEWS_PER_SECOND = 6904  # one H200: timm's ResNet-50, 224 px, bf16, batch 256, three views
VIEWS, BATCH, DIMENSIONS = 3, 256, 128  # per image; images per GPU and step
FLOPS_PER_VIEW = 3 * 2 * 4.09e9  # forward 4.09 · 10⁹ multiply-adds; backward costs twice as much
PARAMETERS = 23_508_032 + 2048 * DIMENSIONS + DIMENSIONS  # ResNet-50 without its classifier, and a linear head
CHANNELS = 26_560  # of its 53 batch norms
STORED = 3 * 256 * 256  # bytes of an image in the uint8 store
SETS = {"ImageNet-1k": (1_281_167, 200), "100 million images": (100_000_000, 10)}  # images, epochs
GPUS = (1, 8, 64)


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def data_table() -> str:
    rows = ["| | " + " | ".join(SETS) + " |", "|---|" + "---|" * len(SETS)]
    columns = []
    for images, epochs in SETS.values():
        views = images * epochs * VIEWS
        times = [hours(views / VIEWS_PER_SECOND / gpus) for gpus in GPUS]
        columns.append(
            [
                str(epochs),
                size(images * STORED),
                f"{views:,}",
                f"{views * FLOPS_PER_VIEW / 1e18:.0f} · 10¹⁸ FLOP",
                *times,
            ]
        )
    names = [
        "epochs",
        "uint8 store at 256 px",
        "views",
        "arithmetic",
        *(f"time on {gpus} GPU{'s' * (gpus > 1)}" for gpus in GPUS),
    ]
    rows += [f"| {name} | " + " | ".join(cells) + " |" for name, *cells in zip(names, *columns, strict=True)]
    return "\n".join(rows)


def network_table() -> str:
    step = BATCH * VIEWS / VIEWS_PER_SECOND
    block = VIEWS * BATCH * DIMENSIONS * 4  # one GPU's embeddings in float32
    logs = 2 * 5 * BATCH * 4  # log-sums of the five logs, and their gradients
    rows = ["| per GPU and step | " + " | ".join(f"{gpus} GPUs" for gpus in GPUS[1:]) + " |", "|---|---|---|"]
    cells: dict[str, list[str]] = {}
    for gpus in GPUS[1:]:
        others, reduce = gpus - 1, 2 * (gpus - 1) / gpus
        gradients = reduce * 4 * PARAMETERS
        for name, value in {
            "global batch": f"{gpus * BATCH:,} images",
            "gradients, all-reduced": size(gradients),
            "embeddings, gathered": size(others * block),
            "embeddings around the ring instead, forward and backward": size(others * (2 * block + logs)),
            "statistics of synchronised batch norm": size(reduce * 4 * 4 * CHANNELS),
            f"bandwidth to send the gradients in one step ({1000 * step:.0f} ms)": size(gradients / step) + "/s",
            "bandwidth to send them in a tenth of a step": size(10 * gradients / step) + "/s",
            "reading, if the images are not on the GPU": size(BATCH / step * STORED) + "/s",
            "reading, all GPUs together": size(gpus * BATCH / step * STORED) + "/s",
            "memory of similarities [n, n]": size(18 * 4 * (gpus * BATCH) ** 2),
        }.items():
            cells.setdefault(name, []).append(value)
    return "\n".join(rows + [f"| {name} | " + " | ".join(values) + " |" for name, values in cells.items()])


if __name__ == "__main__":
    print(data_table(), network_table(), sep="\n\n")
