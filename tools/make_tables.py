"""Fill the tables of README.md and docs/ from the records under results/: no number is typed by hand.

Also write the drawing of the framework.
"""

import json
import re
from pathlib import Path

from aag.bench import SECTIONS
from aag.bench.tables import tables
from aag.pages.markdown import make_table, render_markdown
from aag.paper.drawing import draw_framework_file
from aag.paper.page import make_document
from aag.paper.summary import Summary
from run_tables import ROOT, method_runs_table, methods_table, race_table, results_table

PAGES = ("README.md", "docs/methods.md", "docs/benchmarks.md", "docs/race.md")  # with tables in their places
WHOLE = "docs/reproduction.md"  # written from its first line to its last
DRAWING = "docs/images/framework.svg"


def augmentation_table() -> str:
    """Return batched augmentation next to torchvision's, from the newest CPU benchmark."""
    measured = [found for found in benchmarks() if not found[0]["gpu"] and "augmentation" in found[0]]
    if not measured:
        return "No record yet."
    record, path = measured[-1]
    threads, cpu = record["threads"], record["cpu_model"]
    head = ["images/s (per core)", "ours, batched", "torchvision on PIL images", "torchvision v2 on tensors", "ratios"]
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
    current = [each for each in found if each[0].get("format") == 2 and not each[0]["quick"]]
    return sorted(current, key=lambda each: each[0]["date"])


def speed_tables() -> str:
    """Return each device's newest measurement of each section."""
    shown: set[tuple[str, str]] = set()
    newest = []
    for record, path in reversed(benchmarks()):
        device = record["gpu"] or record["cpu_model"]
        older = {name for name in SECTIONS if (device, name) in shown}
        shown |= {(device, name) for name in SECTIONS if name in record}
        if any(name in record for name in set(SECTIONS) - older):
            newest.append(({name: value for name, value in record.items() if name not in older}, path))
    ordered = sorted(newest, key=lambda found: (found[0]["gpu"] is None, found[0]["gpu"] or ""))
    tables = [speed_table(record, path.relative_to(ROOT).as_posix()) for record, path in ordered]
    return "\n\n".join(tables) or "No record yet."


def methods_tables() -> str:
    """Return the table of methods with their newest measurement on a GPU."""
    measured = [found for found in benchmarks() if found[0]["gpu"] and "methods" in found[0]]
    if not measured:
        return methods_table(None)
    record, path = measured[-1]
    source = f"[{record['gpu']}, {record['date']}](../{path.relative_to(ROOT).as_posix()})"
    return f"{methods_table(record['methods'])}\n\nTime per view: {source}."


def speed_table(record: dict, path: str) -> str:
    """Return the tables of one record: one per section, and one of all that is timed in seconds."""
    where = f"**{record['gpu']}** with {record['cores']} cores" if record["gpu"] else f"**{record['cores']} cores**"
    parts = [f"{where} ({record['cpu_model']}), torch {record['torch']}; [record]({path})."]
    seconds = []
    for table in tables(record):
        columns = [name for name in table.columns if name not in table.extra]
        if "seconds" in columns:
            seconds += table.cells(columns)
        elif record["gpu"] or not table.title.startswith("Augmentation"):  # the CPU's augmentation has its own table
            parts += filter(None, [make_table(columns, table.cells(columns), left=1), table.note])
    return "\n\n".join([*parts, *([make_table(["", "size", "seconds"], seconds, left=1)] if seconds else [])])


TABLES = {
    "results": results_table,
    "speed": speed_tables,
    "augmentation": augmentation_table,
    "methods": methods_tables,
    "method-runs": method_runs_table,
    "race": race_table,
}


def filled(page: str, name: str) -> str:
    """Return a page with its tables written anew; `name` is its path, which links to records are relative to."""
    records = "](../results/" if "/" in name else "](results/"
    for mark, table in TABLES.items():
        place = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
        page = place.sub(lambda m, table=table: m[1] + table().replace("](results/", records) + "\n" + m[2], page)
    return page


def main() -> None:
    for name in PAGES:
        (ROOT / name).write_text(filled((ROOT / name).read_text(), name))
    (ROOT / DRAWING).write_text(draw_framework_file())
    (ROOT / WHOLE).write_text(render_markdown(make_document(Summary(ROOT / "results")), ROOT / WHOLE))


if __name__ == "__main__":
    main()
