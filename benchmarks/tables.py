"""The record as tables for a terminal."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table

AUGMENTATION = {  # column: heading
    "ours_cpu": "ours\nCPU, {threads} thr.",
    "ours_gpu": "ours\nGPU, eager",
    "ours_gpu_compiled": "ours\nGPU, compiled",
    "torchvision_pil": "torchvision\nPIL, {threads} proc.",
    "torchvision_tensor": "torchvision\nv2, {threads} proc.",
}


def tables(record: dict[str, Any]) -> Iterator[Table]:
    """One for each section that the record holds."""
    for name, make in SECTIONS.items():
        if name in record:
            yield make(record[name])


def _augmentation(section: dict[str, Any]) -> Table:
    table = _table(f"Augmentation, images a second ({section['images']:,} of {section['image_size']} px)", "family")
    rows = section["rows"]
    columns = [name for name in AUGMENTATION if name in rows[0]]
    ours = ["ours_cpu", *[name for name in columns if "gpu" in name][-1:]]  # on the GPU as training has it
    ratios = [name for name in rows[0] if name.partition("_over_")[0] in ours and "_over_" in name]
    for name in columns:
        table.add_column(AUGMENTATION[name].format(threads=section["threads"]), justify="right")
    for name in ratios:
        where, rival = ("GPU" if "gpu" in name else "CPU"), ("PIL" if name.endswith("pil") else "v2")
        table.add_column(f"ours {where}\n÷ {rival}", justify="right")
    for row in rows:
        speeds = [f"{row[name]['per_second']:,.0f}" for name in columns]
        table.add_row(row["family"], *speeds, *(f"{row[name]:.1f} ×" for name in ratios))
    return table


def _training(section: dict[str, Any]) -> Table:
    table = _table("Training, three views an image", "recipe")
    headings = ("batch", "augment\nms a step", "step\nms", "augment\nshare", "end to end\nms a step", "views\na second")
    for heading in (*headings, "memory besides\nthe images", "warm-up\ns"):
        table.add_column(heading, justify="right")
    for row in section["rows"]:
        memory = row["peak_memory_besides_images"]
        table.add_row(
            f"{row['recipe']}: {row['network']}, width {row['width']}\n{row['runtime']}",
            str(row["batch_size"]),
            f"{row['augmentation_ms']:,.2f}",
            f"{row['step_ms']:,.2f}",
            f"{row['augmentation_share']:.1%}",
            f"{row['end_to_end_ms']:,.2f}",
            f"{row['views_per_second']['per_second']:,.0f}",
            "–" if memory is None else f"{memory / 2**30:.2f} GiB",
            f"{row['warm_up_seconds']:.1f}",
        )
    return table


def _evaluation(section: dict[str, Any]) -> Table:
    table = _table("Evaluation", "what")
    table.add_column("size")
    table.add_column("seconds", justify="right")
    table.add_column("a second", justify="right")
    for row in section["rows"]:
        rate = f"{row['per_second']:,.{0 if row['per_second'] > 100 else 1}f} {row['of']}"
        table.add_row(row["name"], row["size"], f"{row['median_seconds']:.3f}", rate)
    return table


def _startup(section: dict[str, Any]) -> Table:
    table = _table("Start-up", "command")
    table.add_column("seconds", justify="right")
    for row in section["rows"]:
        table.add_row(row["name"], f"{row['median_seconds']:.3f}")
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    return table


SECTIONS: dict[str, Callable[[dict[str, Any]], Table]] = {
    "training": _training,
    "augmentation": _augmentation,
    "evaluation": _evaluation,
    "startup": _startup,
}
