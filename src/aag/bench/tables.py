"""The record as tables for a terminal."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table

from aag.bench import SECTIONS

AUGMENTATION = {  # column: heading
    "ours_cpu": "ours\nCPU, {threads} thr.",
    "ours_gpu_kernels": "ours GPU,\nkernels",
    "ours_gpu_plain": "ours GPU,\nplain PyTorch",
    "torchvision_pil": "torchvision\nPIL, {threads} proc.",
    "torchvision_tensor": "torchvision\nv2, {threads} proc.",
}


def tables(record: dict[str, Any]) -> Iterator[Table]:
    """Of each section that the record holds."""
    for name in SECTIONS:
        if name in record:
            for make in MAKERS[name]:
                yield make(record[name])


def _training(section: dict[str, Any]) -> Table:
    matmul, copy = section["matmul_flops"] / 1e12, section["copy_bytes_per_second"] / 1e9
    title = (
        f"Training, three views an image; ms a step by stage "
        f"({section['matmul_dtype']} products {matmul:,.3g} TFLOP/s, copies {copy:,.0f} GB/s)"
    )
    table = _table(title, "recipe")
    stages = ("loader", "aug-\nment", "for-\nward", "back-\nward", "opti-\nmiser", "sum", "end to\nend")
    for heading in ("batch", *stages, "views\na second", "of the\nceiling", "memory\nbesides\nimages", "warm-up\ns"):
        table.add_column(heading, justify="right")
    names = ("loader", "augmentation", "forward", "backward", "optimiser", "sum", "end_to_end")
    for row in section["rows"]:
        first = f"{row['recipe']}: {row['network']}, width {row['width']}\n{row.get('missing', row['runtime'])}"
        if "missing" in row:
            table.add_row(first, str(row["batch_size"]))
            continue
        table.add_row(
            first,
            str(row["batch_size"]),
            *(f"{row[f'{name}_ms']:,.2f}" for name in names),
            f"{row['views_per_second']['per_second']:,.0f}",
            f"{row['share_of_ceiling']:.1%}",
            _gib(row["peak_memory_besides_images"]),
            f"{row['warm_up_seconds']:.1f}",
        )
    return table


def _usual(section: dict[str, Any]) -> Table:
    what = f"{section['network']}, width {section['width']}, batch {section['batch_size']}"
    table = _table(f"The usual way: {what}, workers: {section['workers']}; views a second", "way")
    for heading in ("loader alone", "end to end", "ms a step", "memory", "ours ÷ it"):
        table.add_column(heading, justify="right")
    if "ours_views_per_second" in section:
        table.add_row("ours", "", f"{section['ours_views_per_second']:,.0f}", "", "", "")
    for row in section["rows"]:
        if "missing" in row:
            table.add_row(row["name"], row["missing"], "–", "–", "–", "–")
            continue
        speeds = (row["loader_views_per_second"]["per_second"], row["views_per_second"]["per_second"])
        ratio = f"{row['ours_over']:.1f} ×" if "ours_over" in row else "–"
        shown = [f"{speed:,.0f}" for speed in speeds]
        table.add_row(row["name"], *shown, f"{row['end_to_end_ms']:,.2f}", _gib(row["peak_memory"]), ratio)
    return table


def _augmentation(section: dict[str, Any]) -> Table:
    table = _table(f"Augmentation, images a second ({section['images']:,} of {section['image_size']} px)", "family")
    rows = section["rows"]
    columns = [name for name in AUGMENTATION if any(name in row for row in rows)]
    for name in columns:
        table.add_column(AUGMENTATION[name].format(threads=section["threads"]), justify="right")
    table.add_column("a core: ours,\nPIL, v2", justify="right")
    ours = ["ours_cpu", *[name for name in columns if "gpu" in name][:1]]  # on the GPU as training has it
    ratios = [f"{name}_over_{kind}" for name in ours for kind in ("pil", "tensor")]
    for name in ratios:
        where, rival = ("GPU" if "gpu" in name else "CPU"), ("PIL" if name.endswith("pil") else "v2")
        table.add_column(f"ours {where}\n÷ {rival}", justify="right")
    for row in rows:
        speeds = [f"{row[name]['per_second']:,.0f}" if name in row else "–" for name in columns]
        cores = [row[name]["per_core"] for name in columns if "per_core" in row.get(name, {})]
        shares = [f"{row[name]:.1f} ×" if name in row else "–" for name in ratios]
        table.add_row(row["family"], *speeds, ", ".join(f"{core:,.0f}" for core in cores) or "–", *shares)
    return table


def _methods(section: dict[str, Any]) -> Table:
    what = f"{section['network']}, width {section['width']}, batch {section['batch_size']}"
    table = _table(f"Methods: {what}; a step end to end, beside the plain method of two views", "method")
    for heading in ("views", "ms a step", "views\na second", "time a view\n÷ plain", "keeps", "memory\nbesides images"):
        table.add_column(heading, justify="right")
    for row in section["rows"]:
        first = f"{row['method']}\n{row.get('missing', row['runtime'])}"
        if "missing" in row:
            table.add_row(first)
            continue
        table.add_row(
            first,
            str(row["views"]),
            f"{row['end_to_end_ms']:,.2f}",
            f"{row['views_per_second']['per_second']:,.0f}",
            f"{row['view_over_plain']:.2f} ×" if "view_over_plain" in row else "–",
            f"{row['keeps_bytes'] / 1e6:,.1f} MB",
            _gib(row["peak_memory_besides_images"]),
        )
    return table


def _between_epochs(section: dict[str, Any]) -> Table:
    return _timed("Between epochs", section["between_epochs"])


def _evaluation(section: dict[str, Any]) -> Table:
    return _timed("Evaluation", section["rows"])


def _timed(title: str, rows: list[dict[str, Any]]) -> Table:
    table = _table(title, "what")
    table.add_column("size")
    for heading in ("seconds", "first call", "a second"):
        table.add_column(heading, justify="right")
    for row in rows:
        rate = f"{row['per_second']:,.{0 if row['per_second'] > 100 else 1}f} {row['of']}"
        first = f"{row['first_seconds']:.3f}" if "first_seconds" in row else ""
        table.add_row(row["name"], row["size"], f"{row['median_seconds']:.3f}", first, rate)
    return table


def _startup(section: dict[str, Any]) -> Table:
    table = _table("Start-up", "command")
    table.add_column("seconds", justify="right")
    for row in section["rows"]:
        table.add_row(row["name"], f"{row['median_seconds']:.3f}")
    return table


def _gib(memory: int | None) -> str:
    return "–" if memory is None else f"{memory / 2**30:.2f} GiB"


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    return table


MAKERS: dict[str, tuple[Callable[[dict[str, Any]], Table], ...]] = {
    "training": (_training,),
    "usual": (_usual,),
    "methods": (_methods, _between_epochs),
    "augmentation": (_augmentation,),
    "evaluation": (_evaluation,),
    "startup": (_startup,),
}
