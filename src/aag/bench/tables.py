"""The record as tables for a terminal."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table

from aag.text import pluralize

AUGMENTATION = {  # column: heading
    "ours_cpu": "ours\nCPU, {threads} thr.",
    "ours_gpu_kernels": "ours GPU,\nkernels",
    "ours_gpu_plain": "ours GPU,\nplain PyTorch",
    "torchvision_pil": "torchvision\nPIL, {threads} proc.",
    "torchvision_tensor": "torchvision\nv2, {threads} proc.",
}


def tables(record: dict[str, Any]) -> Iterator[Table]:
    """Yield the tables of all sections in the record."""
    for name, makers in MAKERS.items():
        if name in record:
            for make in makers:
                yield make(record[name])


def _training(section: dict[str, Any]) -> Table:
    matmul, copy = section["matmul_flops"] / 1e12, section["copy_bytes_per_second"] / 1e9
    table = _table(
        f"Training, three views per image: ms per step by stage "
        f"({section['matmul_dtype']} products {matmul:,.3g} TFLOP/s, copies {copy:,.0f} GB/s)",
        "recipe",
        *("batch", "loader", "aug-\nment", "for-\nward", "back-\nward", "opti-\nmizer", "sum", "end to\nend"),
        *("views/s", "of the\nceiling", "memory\nwithout\nimages", "warm-up\ns"),
    )
    names = ("loader", "augmentation", "forward", "backward", "optimiser", "sum", "end_to_end")
    for row in section["rows"]:
        cells = [f"{row['recipe']}: {row['network']}, width {row['width']}\n{_state(row)}", str(row["batch_size"])]
        if "missing" not in row:
            cells += [
                *(f"{row[f'{name}_ms']:,.2f}" for name in names),
                f"{row['views_per_second']['per_second']:,.0f}",
                f"{row['share_of_ceiling']:.1%}",
                _gib(row["peak_memory_besides_images"]),
                f"{row['warm_up_seconds']:.1f}",
            ]
        table.add_row(*cells)
    return table


def _pipeline(section: dict[str, Any]) -> Table:
    table = _table(
        f"DataLoader pipeline: {_setup(section)}, {pluralize(section['workers'], 'worker')}; views/s",
        "pipeline",
        *("loader alone", "end to end", "ms per step", "memory", "ours ÷ it"),
    )
    if "ours_views_per_second" in section:
        table.add_row("ours", "", f"{section['ours_views_per_second']:,.0f}", "", "", "")
    for row in section["rows"]:
        if "missing" in row:
            table.add_row(row["name"], row["missing"], "–", "–", "–", "–")
            continue
        speeds = (row["loader_views_per_second"]["per_second"], row["views_per_second"]["per_second"])
        ratio = f"{row['ours_over']:.1f} ×" if "ours_over" in row else "–"
        cells = [f"{speed:,.0f}" for speed in speeds]
        table.add_row(row["name"], *cells, f"{row['end_to_end_ms']:,.2f}", _gib(row["peak_memory"]), ratio)
    return table


def _augmentation(section: dict[str, Any]) -> Table:
    rows = section["rows"]
    columns = [name for name in AUGMENTATION if any(name in row for row in rows)]
    ours = ["ours_cpu", *[name for name in columns if "gpu" in name][:1]]  # on the GPU as in training
    ratios = [f"{name}_over_{kind}" for name in ours for kind in ("pil", "tensor")]
    places = [("GPU" if "gpu" in name else "CPU", "PIL" if name.endswith("pil") else "v2") for name in ratios]
    table = _table(
        f"Augmentation, images/s ({section['images']:,} images of {section['image_size']} px)",
        "augmentation",
        *(AUGMENTATION[name].format(threads=section["threads"]) for name in columns),
        "per core: ours,\nPIL, v2",
        *(f"ours {where}\n÷ {peer}" for where, peer in places),
    )
    for row in rows:
        speeds = [f"{row[name]['per_second']:,.0f}" if name in row else "–" for name in columns]
        cores = [row[name]["per_core"] for name in columns if "per_core" in row.get(name, {})]
        shares = [f"{row[name]:.1f} ×" if name in row else "–" for name in ratios]
        table.add_row(row["family"], *speeds, ", ".join(f"{core:,.0f}" for core in cores) or "–", *shares)
    return table


def _methods(section: dict[str, Any]) -> Table:
    table = _table(
        f"Methods: {_setup(section)}; a step compared with the first row (two views, no memory)",
        "method",
        *("views", "ms per step", "views/s", "time per view\n÷ plain", "keeps", "memory\nwithout images"),
    )
    for row in section["rows"]:
        cells = [f"{row['method']}\n{_state(row)}"]
        if "missing" not in row:
            cells += [
                str(row["views"]),
                f"{row['end_to_end_ms']:,.2f}",
                f"{row['views_per_second']['per_second']:,.0f}",
                f"{row['view_over_plain']:.2f} ×" if "view_over_plain" in row else "–",
                f"{row['keeps_bytes'] / 1e6:,.1f} MB",
                _gib(row["peak_memory_besides_images"]),
            ]
        table.add_row(*cells)
    return table


def _timings(title: str, rows: list[dict[str, Any]]) -> Table:
    table = _table(title, "task", "size", "seconds", "first call", "rate")
    table.columns[1].justify = "left"
    for row in rows:
        rate = f"{row['per_second']:,.{0 if row['per_second'] > 100 else 1}f} {row['of']}/s"
        first = f"{row['first_seconds']:.3f}" if "first_seconds" in row else ""
        table.add_row(row["name"], row["size"], f"{row['median_seconds']:.3f}", first, rate)
    return table


def _startup(section: dict[str, Any]) -> Table:
    table = _table("Start-up", "command", "seconds")
    for row in section["rows"]:
        table.add_row(row["name"], f"{row['median_seconds']:.3f}")
    return table


def _setup(section: dict[str, Any]) -> str:
    return f"{section['network']}, width {section['width']}, batch {section['batch_size']}"


def _state(row: dict[str, Any]) -> str:
    return row["missing"] if "missing" in row else row["runtime"]


def _gib(memory: int | None) -> str:
    return "–" if memory is None else f"{memory / 2**30:.2f} GiB"


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in columns:
        table.add_column(heading, justify="right")
    return table


MAKERS: dict[str, tuple[Callable[[dict[str, Any]], Table], ...]] = {
    "training": (_training,),
    "pipeline": (_pipeline,),
    "usual": (_pipeline,),  # the section's name in records up to version 0.1
    "methods": (_methods, lambda section: _timings("Between epochs", section["between_epochs"])),
    "augmentation": (_augmentation,),
    "evaluation": (lambda section: _timings("Evaluation", section["rows"]),),
    "startup": (_startup,),
}
