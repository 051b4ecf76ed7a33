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
    base = recipe_config(settings["recipe"], settings["data"]).identity()
    told = ("data", "network", "epochs", "seed")
    changed = {name: value for name, value in settings.items() if name not in told and value != base.get(name)}
    return "".join(f", `--{name.replace('_', '-')} {value}`" for name, value in changed.items())


def augmentation_table() -> str:
    """Batched augmentation beside torchvision's, from the newest CPU benchmark."""
    path = max((ROOT / "results" / "bench").glob("cpu-*.json"))
    record = json.loads(path.read_text())
    threads, cpu = record["threads"], record["cpu_model"]
    lines = [
        "| images a second | ours, batched | torchvision on PIL images | torchvision v2 on tensors | ratios |",
        "|---|---|---|---|---|",
    ]
    for row in record["augmentation"]["rows"]:
        speeds = [row[name]["per_second"] for name in ("ours_cpu", "torchvision_pil", "torchvision_tensor")]
        ratios = f"{row['ours_cpu_over_pil']:.1f} ×, {row['ours_cpu_over_tensor']:.1f} ×"
        lines.append(f"| {row['family']} | " + " | ".join(f"{speed:,.0f}" for speed in speeds) + f" | {ratios} |")
    source = f"[record]({path.relative_to(ROOT).as_posix()})"
    lines += ["", f"{cpu}, {threads} threads of ours against {threads} processes of torchvision's; {source}."]
    return "\n".join(lines)


def filled(readme: str) -> str:
    for name, table in (("results", results_table), ("augmentation", augmentation_table)):
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
