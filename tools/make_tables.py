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
