"""The sections of a record as tables of text, for a terminal and for the docs."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aag.bench.training import STAGES
from aag.text import pluralize

NETWORKS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "alexnet": "AlexNet"}
_HEADINGS = {"optimiser": "optimizer"}  # records keep the first spelling as a key


class SpeedTable(NamedTuple):
    title: str
    rows: list[dict[str, str]]  # by column; the longest row has all columns, others may lack some
    extra: tuple[str, ...] = ()  # columns that only a terminal shows
    note: str = ""

    @property
    def columns(self) -> list[str]:
        longest: dict[str, str] = max(self.rows, key=len)
        return list(longest)

    def cells(self, columns: list[str]) -> list[list[str]]:
        return [[row.get(name, "–") for name in columns] for row in self.rows]


def tables(record: dict[str, Any]) -> Iterator[SpeedTable]:
    """Yield the tables of all sections in the record. Fast speeds are bold, as in Markdown."""
    for name, make in MAKERS.items():
        if name in record:
            yield make(record[name])
        if name == "pipeline" and "photographs" in record:
            section = record["photographs"]
            sizes = f"Views of {section['image_size']} px, cropped from {section['resize_size']} px."
            for table in (_training(section["training"]), _pipeline(section["pipeline"])):
                yield table._replace(note=f"{sizes} {table.note}".strip())
        if name == "evaluation" and "methods" in record:
            yield _timings("Between epochs", record["methods"]["between_epochs"])


def _training(section: dict[str, Any]) -> SpeedTable:
    rows = []
    for row in section["rows"]:
        first = {"ms/step": _describe_network(row), "batch": str(row["batch_size"])}
        if "missing" in row:
            rows.append(first | {"views/s": row["missing"]})
            continue
        rows.append({
            **first,
            **{_HEADINGS.get(name, name): f"{row[f'{name}_ms']:,.2f}" for name in STAGES},
            "sum": f"{row['sum_ms']:,.2f}",
            "end to end": f"{row['end_to_end_ms']:,.2f}",
            "views/s": _bold_rate(row),
            "of the ceiling": f"{row['share_of_ceiling']:.0%}",
            "memory": _gib(row["peak_memory_besides_images"]),
            "warm-up, s": f"{row['warm_up_seconds']:.1f}",
            "runtime": row["runtime"],
        })  # fmt: skip
    flops, copy = section["matmul_flops"] / 1e12, section["copy_bytes_per_second"] / 1e9
    dtype = {"bfloat16": "bf16", "float32": "fp32"}[section["matmul_dtype"]]
    note = f"Measured on the same machine: {flops:,.3g} TFLOP/s of {dtype} products, {copy:,.0f} GB/s of copies."
    title = _share_runtime("Training, three views per image", rows)
    return SpeedTable(title, rows, ("sum", "warm-up, s", "runtime"), note)


def _pipeline(section: dict[str, Any]) -> SpeedTable:
    first, rows = f"views/s, {_describe_step(section)}", []
    if "ours_views_per_second" in section:
        rows.append({first: "ours", "end to end": f"**{section['ours_views_per_second']:,.0f}**", "ours ÷": ""})
    for row in section["rows"]:
        if "missing" in row:
            rows.append({first: row["name"], "end to end": row["missing"]})
            continue
        rows.append({
            first: f"{row['name']}, {pluralize(section['workers'], 'worker')}",
            "loader alone": f"{row['loader_views_per_second']['per_second']:,.0f}",
            "end to end": f"{row['views_per_second']['per_second']:,.0f}",
            "ms/step": f"{row['end_to_end_ms']:,.2f}",
            "memory": _gib(row["peak_memory"]),
            "ours ÷": f"{row['ours_over']:.1f} ×" if "ours_over" in row else "–",
        })  # fmt: skip
    return SpeedTable("DataLoader pipeline", rows, ("ms/step", "memory"))


def _methods(section: dict[str, Any]) -> SpeedTable:
    first, rows = f"step of {_describe_step(section)}", []
    for row in section["rows"]:
        name = row["method"] + " (plain: two views, no memory)" * (row is section["rows"][0])
        if "missing" in row:
            rows.append({first: name, "views/s": row["missing"]})
            continue
        rows.append({
            first: name,
            "views": str(row["views"]),
            "ms/step": f"{row['end_to_end_ms']:,.2f}",
            "views/s": _bold_rate(row),
            "time per view ÷ plain": f"{row['view_over_plain']:.2f} ×" if "view_over_plain" in row else "–",
            "state": f"{row['keeps_bytes'] / 1e6:,.1f} MB" if row["keeps_bytes"] else "–",
            "memory": _gib(row["peak_memory_besides_images"]),
            "runtime": row["runtime"],
        })  # fmt: skip
    return SpeedTable(_share_runtime("Methods", rows), rows, ("memory", "runtime"))


def _augmentation(section: dict[str, Any]) -> SpeedTable:
    threads, processes = section["threads"], pluralize(section["threads"], "process", "processes")
    speeds = {
        "ours_gpu_kernels": "ours, kernels",
        "ours_gpu_plain": "ours, plain PyTorch",
        "ours_cpu": f"ours, {pluralize(threads, 'CPU thread')}",
        "ours_processes": f"ours, {processes}",
        "torchvision_pil": f"torchvision PIL, {processes}",
        "torchvision_tensor": f"torchvision v2, {processes}",
    }
    gpu = next((name for name in speeds if name in section["rows"][0]), "")  # as in training
    ratios = {
        f"{ours}_over_{kind}": f"{where} ÷ {peer}"
        for ours, where in {gpu: "GPU", "ours_cpu": "CPU", "ours_processes": "processes"}.items()
        for kind, peer in (("pil", "PIL"), ("tensor", "v2"))
    }
    rows = []
    for row in section["rows"]:
        cells = {text: f"{row[name]['per_second']:,.0f}" for name, text in speeds.items() if name in row}
        cells |= {text: f"{row[name]:.1f} ×" for name, text in ratios.items() if name in row}
        rows.append({"images/s": row["family"], **cells})
    title = f"Augmentation ({section['images']:,} images of {section['image_size']} px)"
    return SpeedTable(title, rows, tuple(ratios.values()))


def _decoding(section: dict[str, Any]) -> SpeedTable:
    rows = [
        {
            "files/s": f"{row['name']} to {row['resized_to']} px",
            "ours": f"**{row['ours']:,.0f}**",
            "Pillow": f"{row['pillow']:,.0f}",
            "torchvision": f"{row['torchvision']:,.0f}",
            "ours ÷ faster": f"{row['ours_over_faster']:.2f} ×",
            "files": f"{row['files']:,}",
            "start, s": f"{row['start_seconds']:.1f}",
        }
        for row in section["rows"]
    ]
    return SpeedTable(f"Decoding files on {pluralize(section['cores'], 'core')}", rows, ("files", "start, s"))


def _timings(title: str, rows: list[dict[str, Any]]) -> SpeedTable:
    cells = []
    for row in rows:
        cells.append({"": row["name"], "size": row.get("size", ""), "seconds": f"{row['median_seconds']:,.2f}"})
        if "first_seconds" in row:
            cells[-1] |= {"first call": f"{row['first_seconds']:,.2f}"}
        if "per_second" in row:
            cells[-1] |= {"rate": f"{row['per_second']:,.{0 if row['per_second'] > 100 else 1}f} {row['of']}/s"}
    return SpeedTable(title, cells, ("first call", "rate"))


def _describe_network(row: dict[str, Any]) -> str:
    name = NETWORKS.get(row["network"], row["network"])
    return name if row["width"] == 64 else f"{name}, width {row['width']}"


def _describe_step(section: dict[str, Any]) -> str:
    return f"{_describe_network(section)}, batch {section['batch_size']}"


def _share_runtime(title: str, rows: list[dict[str, str]]) -> str:
    """Move the runtime from the rows into the title where all have the same."""
    runtimes = {row["runtime"] for row in rows if "runtime" in row}
    if len(runtimes) != 1:
        return title
    for row in rows:
        row.pop("runtime", None)
    return f"{title}; {runtimes.pop()}"


def _bold_rate(row: dict[str, Any]) -> str:
    return f"**{row['views_per_second']['per_second']:,.0f}**"


def _gib(memory: int | None) -> str:
    return f"{memory / 2**30:.1f} GiB" if memory else "–"


MAKERS: dict[str, Callable[[dict[str, Any]], SpeedTable]] = {
    "training": _training,
    "pipeline": _pipeline,
    "usual": _pipeline,  # the section's name in records up to version 0.1
    "decoding": _decoding,
    "methods": _methods,
    "augmentation": _augmentation,
    "evaluation": lambda section: _timings("Evaluation", section["rows"]),
    "serving": lambda section: _timings("Use of an encoder", section["rows"]),
    "startup": lambda section: _timings("Start-up", section["rows"]),
}
