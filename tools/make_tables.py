"""Fills the README's tables from the records under results/: numbers are never typed.

python tools/make_tables.py            # writes README.md
python tools/make_tables.py --check    # fails if README.md is not what the records say
"""

import json
import re
import sys
from pathlib import Path

from aag.config import recipe_config

ROOT = Path(__file__).parent.parent
PAPER_KNN = {("cifar10", "resnet18", 200): 88.3}  # Table 1, by data set, network and epochs


def results_table() -> str:
    """One row for each record of a training run."""
    lines = [
        "| run | epochs | kNN | paper | linear | training | views a second | seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("*.json"))]
    for record in sorted(records, key=lambda record: (-record["settings"]["epochs"], -(record["knn"]["last"] or 0))):
        settings, session = record["settings"], record["sessions"][-1]
        changes = _changes(settings)
        paper = None if changes else PAPER_KNN.get((settings["data"], settings["network"], settings["epochs"]))
        linear = [result for result in record["evaluation"] if result["protocol"]["evaluation"] == "linear"]
        minutes, seconds = divmod(round(record["seconds"]), 60)
        what = f"{settings['data']}, {settings['network']}, `{settings['recipe']}`{changes}"
        cells = [
            f"[{what}](results/{record['name']}.json)",
            settings["epochs"],
            f"**{record['knn']['last']:.2f}**" if record["knn"]["last"] else "–",
            paper or "–",
            f"{linear[0]['accuracy']:.2f}" if linear else "–",
            f"{minutes} min {seconds:02d} s on one {session['gpu'] or session['cpu']}",
            f"{record['views_per_second']:,.0f}",
            settings["seed"],
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _changes(settings: dict) -> str:
    """What differs from the recipe, as options."""
    base = recipe_config(settings["recipe"], settings["data"], settings["method"]).identity()
    told = ("data", "network", "epochs", "seed")
    changed = {name: value for name, value in settings.items() if name not in told and value != base.get(name)}
    return "".join(f", `--{name.replace('_', '-')} {value}`" for name, value in changed.items())


def augmentation_table() -> str:
    """Batched augmentation beside torchvision's, from the newest CPU benchmark."""
    path = max((ROOT / "results" / "bench").glob("cpu-*.json"))
    record = json.loads(path.read_text())
    threads, cpu = record["threads"], record["cpu_model"]
    lines = [
        "| images a second (a core) | ours, batched | torchvision on PIL images | torchvision v2 on tensors | ratios |",
        "|---|---|---|---|---|",
    ]
    for row in record["augmentation"]["rows"]:
        speeds = [row[name]["per_second"] for name in ("ours_cpu", "torchvision_pil", "torchvision_tensor")]
        ratios = f"{row['ours_cpu_over_pil']:.1f} ×, {row['ours_cpu_over_tensor']:.1f} ×"
        cells = [f"{speed:,.0f} ({speed / threads:,.0f})" for speed in speeds]
        lines.append(f"| {row['family']} | " + " | ".join(cells) + f" | {ratios} |")
    source = f"[record]({path.relative_to(ROOT).as_posix()})"
    lines += ["", f"{cpu}, {threads} threads of ours against {threads} processes of torchvision's; {source}."]
    return "\n".join(lines)


def speed_tables() -> str:
    """Training by stage, the usual way, augmentation, evaluation and start-up: the newest record of each device."""
    newest: dict[str, tuple[dict, Path]] = {}
    for path in (ROOT / "results" / "bench").glob("*.json"):
        record = json.loads(path.read_text())
        where = record["gpu"] or record["cpu_model"]
        if record.get("format") == 2 and not record["quick"]:
            newest[where] = max((record, path), newest.get(where, (record, path)), key=lambda found: found[0]["date"])
    ordered = sorted(newest.values(), key=lambda found: (found[0]["gpu"] is None, found[0]["gpu"] or ""))
    told = [speed_table(record, path.relative_to(ROOT).as_posix()) for record, path in ordered]
    return "\n\n".join(told) or "No record yet."


def speed_table(record: dict, path: str) -> str:
    """What one record says, for the sections it holds."""
    where = f"**{record['gpu']}** with {record['cores']} cores" if record["gpu"] else f"**{record['cores']} cores**"
    parts = [f"{where} ({record['cpu_model']}), torch {record['torch']}; [record]({path})."]
    parts += [table(record[name]) for name, table in SPEED.items() if name in record]
    return "\n\n".join(filter(None, [*parts, _seconds(record)]))


def _training(section: dict) -> str:
    stages = ("loader", "augmentation", "forward", "backward", "optimiser", "end_to_end")
    head = ["ms a step", "batch", *stages[:-1], "end to end", "views a second", "of the ceiling", "memory"]
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
    note = f"Measured beside it: {flops:,.3g} TFLOP/s of {dtype} products, {copy:,.0f} GB/s of copies."
    return f"{_markdown(head, rows)}\n\n{note}"


def _usual(section: dict) -> str:
    head = [
        f"views a second, {_network(section)}, batch {section['batch_size']}",
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
    return _markdown(head, rows)


def _gpu_augmentation(section: dict) -> str:
    """On a GPU; the CPU has its own table."""
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
    return _markdown(["images a second", *columns.values()], named)


def _seconds(record: dict) -> str:
    """Of evaluations and starts."""
    sections = [record[name] for name in ("evaluation", "startup") if name in record]
    rows = [[row["name"], row.get("size", ""), f"{row['median_seconds']:,.2f}"] for s in sections for row in s["rows"]]
    return _markdown(["", "size", "seconds"], rows) if rows else ""


def _network(row: dict) -> str:
    name = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "alexnet": "AlexNet"}.get(row["network"], row["network"])
    return name if row["width"] == 64 else f"{name}, width {row['width']}"


def _markdown(head: list, rows: list[list]) -> str:
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]])


SPEED = {"training": _training, "usual": _usual, "augmentation": _gpu_augmentation}


def filled(readme: str) -> str:
    for name, table in (("results", results_table), ("speed", speed_tables), ("augmentation", augmentation_table)):
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        readme = mark.sub(lambda found, table=table: found[1] + table() + "\n" + found[2], readme)
    return readme


def main() -> None:
    path = ROOT / "README.md"
    before = path.read_text()
    after = filled(before)
    if "--check" in sys.argv:
        sys.exit("README.md is not what results/ says; run make tables" if after != before else 0)
    path.write_text(after)


if __name__ == "__main__":
    main()
