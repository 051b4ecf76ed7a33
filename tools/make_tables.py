"""Fill the tables of README.md and docs/ from the records under results/: no number is typed by hand."""

import json
import re
from pathlib import Path

from aag.pages.markdown import make_table, render_markdown
from aag.paper.page import make_document
from aag.paper.summary import Summary
from run_tables import ROOT, methods_table, results_table

PAGES = ("README.md", "docs/methods.md", "docs/benchmarks.md")  # with tables in their places
WHOLE = "docs/reproduction.md"  # written from its first line to its last


def augmentation_table() -> str:
    """Return batched augmentation next to torchvision's, from the newest CPU benchmark."""
    measured = [found for found in benchmarks() if not found[0]["gpu"] and "augmentation" in found[0]]
    if not measured:
        return "No record yet."
    record, path = measured[-1]
    threads, cpu = record["threads"], record["cpu_model"]
    head = [
        "images/s (per core)",
        "ours, batched",
        "torchvision on PIL images",
        "torchvision v2 on tensors",
        "ratios",
    ]
    rows = []
    for row in record["augmentation"]["rows"]:
        speeds = [row[name]["per_second"] for name in ("ours_cpu", "torchvision_pil", "torchvision_tensor")]
        ratios = f"{row['ours_cpu_over_pil']:.1f} ×, {row['ours_cpu_over_tensor']:.1f} ×"
        cells = [f"{speed:,.0f} ({speed / threads:,.0f})" for speed in speeds]
        rows.append([row["family"], *cells, ratios])
    source = f"[record]({path.relative_to(ROOT).as_posix()})"
    note = f"{cpu}, {threads} threads of ours against {threads} processes of torchvision's; {source}."
    return f"{make_table(head, rows)}\n\n{note}"


def benchmarks() -> list[tuple[dict, Path]]:
    """Return the benchmark records in the current format, the newest last."""
    found = [(json.loads(path.read_text()), path) for path in sorted((ROOT / "results" / "bench").glob("*.json"))]
    return sorted((each for each in found if _counts(each[0])), key=lambda each: each[0]["date"])


def _counts(record: dict) -> bool:
    return record.get("format") == 2 and not record["quick"]


def speed_tables() -> str:
    """Return each device's newest record: training by stage, peers, methods, augmentation, evaluation and start-up."""
    newest = {record["gpu"] or record["cpu_model"]: (record, path) for record, path in benchmarks()}
    ordered = sorted(newest.values(), key=lambda found: (found[0]["gpu"] is None, found[0]["gpu"] or ""))
    told = [speed_table(record, path.relative_to(ROOT).as_posix()) for record, path in ordered]
    return "\n\n".join(told) or "No record yet."


def methods_tables() -> str:
    """Return the table of methods with their newest measurement on a GPU."""
    measured = [found for found in benchmarks() if found[0]["gpu"] and "methods" in found[0]]
    if not measured:
        return methods_table(None)
    record, path = measured[-1]
    source = f"[{record['gpu']}, {record['date']}](../{path.relative_to(ROOT).as_posix()})"
    return f"{methods_table(record['methods'])}\n\nTime per view: {source}."


def speed_table(record: dict, path: str) -> str:
    """Return the tables of one record, for the sections that it holds."""
    where = f"**{record['gpu']}** with {record['cores']} cores" if record["gpu"] else f"**{record['cores']} cores**"
    parts = [f"{where} ({record['cpu_model']}), torch {record['torch']}; [record]({path})."]
    parts += [table(record[name]) for name, table in SPEED.items() if name in record]
    return "\n\n".join(filter(None, [*parts, _seconds(record)]))


def _training(section: dict) -> str:
    stages = ("loader", "augmentation", "forward", "backward", "optimiser", "end_to_end")
    head = ["ms/step", "batch", *stages[:-1], "end to end", "views/s", "of the ceiling", "memory"]
    rows = []
    for row in section["rows"]:
        cells = [_network(row), row["batch_size"]]
        if "missing" in row:
            rows.append([*cells, *["–"] * len(stages), row["missing"], "–", "–"])
            continue
        memory = row["peak_memory_besides_images"]
        rows.append([
            *cells,
            *(f"{row[f'{name}_ms']:,.2f}" for name in stages),
            f"**{row['views_per_second']['per_second']:,.0f}**",
            f"{row['share_of_ceiling']:.0%}",
            f"{memory / 2**30:.1f} GiB" if memory else "–",
        ])  # fmt: skip
    flops, copy = section["matmul_flops"] / 1e12, section["copy_bytes_per_second"] / 1e9
    dtype = {"bfloat16": "bf16", "float32": "fp32"}[section["matmul_dtype"]]
    note = f"Measured on the same machine: {flops:,.3g} TFLOP/s of {dtype} products, {copy:,.0f} GB/s of copies."
    return f"{make_table(head, rows, left=1)}\n\n{note}"


def _usual(section: dict) -> str:
    head = [
        f"views/s, {_network(section)}, batch {section['batch_size']}",
        "loader alone",
        "end to end",
        "ours ÷",
    ]
    rows = []
    if "ours_views_per_second" in section:
        rows.append(["ours", "–", f"**{section['ours_views_per_second']:,.0f}**", ""])
    for row in section["rows"]:
        if "missing" in row:
            rows.append([row["name"], "–", row["missing"], "–"])
            continue
        speeds = (row["loader_views_per_second"]["per_second"], row["views_per_second"]["per_second"])
        ratio = f"{row['ours_over']:.1f} ×" if "ours_over" in row else "–"
        rows.append([f"{row['name']}, {section['workers']} workers", *(f"{speed:,.0f}" for speed in speeds), ratio])
    return make_table(head, rows, left=1)


def _methods(section: dict) -> str:
    what = f"{_network(section)}, batch {section['batch_size']}"
    head = [f"step of {what}", "views", "ms/step", "views/s", "time per view ÷ plain", "state"]
    rows = []
    for row in section["rows"]:
        first = f"{row['method']}{' (plain: two views, no memory)' * (row is section['rows'][0])}"
        if "missing" in row:
            rows.append([first, "–", "–", row["missing"], "–", "–"])
            continue
        rows.append([
            first,
            row["views"],
            f"{row['end_to_end_ms']:,.2f}",
            f"**{row['views_per_second']['per_second']:,.0f}**",
            f"{row['view_over_plain']:.2f} ×" if "view_over_plain" in row else "–",
            f"{row['keeps_bytes'] / 1e6:,.1f} MB" if row["keeps_bytes"] else "–",
        ])  # fmt: skip
    return make_table(head, rows, left=1)


def _gpu_augmentation(section: dict) -> str:
    """Return the speed on a GPU; the CPU has its own table."""
    rows = [row for row in section["rows"] if "ours_gpu_plain" in row]
    if not rows:
        return ""
    threads = section["threads"]
    columns = {
        "ours_gpu_kernels": "ours, kernels", "ours_gpu_plain": "ours, plain PyTorch",
        "ours_cpu": f"ours, {threads} CPU threads",
        "torchvision_pil": f"torchvision PIL, {threads} processes",
        "torchvision_tensor": f"torchvision v2, {threads} processes",
    }  # fmt: skip
    cells = [[f"{row[name]['per_second']:,.0f}" if name in row else "–" for name in columns] for row in rows]
    named = [[row["family"], *cell] for row, cell in zip(rows, cells, strict=True)]
    return make_table(["images/s", *columns.values()], named, left=1)


def _seconds(record: dict) -> str:
    """Return the seconds of evaluations, of what methods do between epochs, and of starts."""
    parts = {"evaluation": "rows", "methods": "between_epochs", "startup": "rows"}
    found = [row for name, part in parts.items() if name in record for row in record[name][part]]
    rows = [[row["name"], row.get("size", ""), f"{row['median_seconds']:,.2f}"] for row in found]
    return make_table(["", "size", "seconds"], rows, left=1) if rows else ""


def _network(row: dict) -> str:
    name = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "alexnet": "AlexNet"}.get(row["network"], row["network"])
    return name if row["width"] == 64 else f"{name}, width {row['width']}"


SPEED = {
    "training": _training,
    "usual": _usual,  # as older records call the pipeline
    "pipeline": _usual,
    "methods": _methods,
    "augmentation": _gpu_augmentation,
}
TABLES = {
    "results": results_table,
    "speed": speed_tables,
    "augmentation": augmentation_table,
    "methods": methods_tables,
}


def filled(page: str, name: str) -> str:
    """Return a page with its tables written anew; `name` is its path, which links to records are relative to."""
    records = "](../results/" if "/" in name else "](results/"
    for mark, table in TABLES.items():
        place = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
        page = place.sub(lambda m, table=table: m[1] + table().replace("](results/", records) + "\n" + m[2], page)
    return page


def main() -> None:
    for name in (*PAGES, WHOLE):
        path = ROOT / name
        before = path.read_text() if path.exists() else ""
        after = (
            render_markdown(make_document(Summary(ROOT / "results")), path) if name == WHOLE else filled(before, name)
        )
        path.write_text(after)


if __name__ == "__main__":
    main()
