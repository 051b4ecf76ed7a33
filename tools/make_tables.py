"""Fills the README's tables from the records under results/: numbers are never typed.

python tools/make_tables.py            # writes README.md
python tools/make_tables.py --check    # fails if README.md is not what the records say
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAPER_KNN = {("cifar10", "resnet18", 200): 88.3}  # Table 1, by data set, network and epochs


def results_table() -> str:
    """One row for each record of a training run."""
    lines = [
        "| run | epochs | kNN (128-d) | paper | linear (512-d) | training | views a second | seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("*.json"))]
    for record in sorted(records, key=lambda record: (-record["settings"]["epochs"], -record["knn"]["last"])):
        settings = record["settings"]
        by_name = {result["name"]: result for result in record["evaluation"]}
        key = (settings["data"], settings["network"], settings["epochs"])
        standard = settings["recipe"] == "paper" and "=" not in record["name"]
        paper = PAPER_KNN.get(key) if standard else None
        minutes, seconds = divmod(round(record["seconds"]), 60)
        gpu = record["sessions"][-1]["gpu"] or record["sessions"][-1]["cpu"]
        what = f"{settings['data']}, {settings['network']}, `{settings['recipe']}`{_changes(record)}"
        name = f"[{what}](results/{record['name']}.json)"
        lines.append(
            f"| {name} | {settings['epochs']} | **{record['knn']['last']:.2f}** | {paper or '–'} "
            f"| {by_name['linear (features)']['accuracy']:.2f} | {minutes} min {seconds:02d} s on one {gpu} "
            f"| {record['views_per_second']:,.0f} | {settings['seed']} |"
        )
    return "\n".join(lines)


def _changes(record: dict) -> str:
    crop = record["settings"]["auxiliary_crop"]
    words = {"none": "no crop before the policy", "padded": "padded crop before the policy", "resized": ""}[crop]
    return f", {words}" if words else ""


def filled(readme: str) -> str:
    mark = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
    return mark.sub(lambda found: found[1] + results_table() + "\n" + found[2], readme)


def main() -> None:
    path = ROOT / "README.md"
    before = path.read_text()
    after = filled(before)
    if "--check" in sys.argv:
        sys.exit("README.md is not what results/ says; run make tables" if after != before else 0)
    path.write_text(after)


if __name__ == "__main__":
    main()
