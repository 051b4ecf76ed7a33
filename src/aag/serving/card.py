"""The model card of an encoder: README.md with the front matter that the Hugging Face Hub reads."""

import json
from collections.abc import Mapping
from typing import Any

from aag import __version__
from aag.data.datasets import DATASETS
from aag.errors import AAGError
from aag.nets import NETWORKS, Encoder, parameter_count
from aag.pages.markdown import escape, make_table
from aag.runs import Run, flatten
from aag.text import duration, readable_value

HIDDEN_FIELDS = ("evaluation", "layer", "data")  # parts of a protocol that other columns show
HEALTH_TITLES = {
    "rank": "effective rank (RankMe)",
    "alignment": "alignment of two views (lower is better)",
    "uniformity": "uniformity (lower is better)",
    "agreement": "two views of an image find each other",
}
CITATION = """```bibtex
@article{tu2021aag,
  title = {AAG: Self-Supervised Representation Learning by Auxiliary Augmentation with GNT-Xent Loss},
  author = {Tu, Yanlun and Feng, Jianxing and Yang, Yang},
  year = {2021}
}
```"""


def model_card(encoder: Encoder, run: Run | None = None, usage: str = "", uses_timm: bool = False) -> str:
    """Return the card of an encoder as Markdown; with its run, also the data, settings, numbers and provenance.

    usage: Python code that loads the model from the card's folder. uses_timm: whether timm can load it.
    """
    spec = encoder.spec
    name = run.name if run else f"{spec.network}, {spec.image_size} px"
    sections = {
        "What is it?": _about(encoder, run),
        "How do I load it?": f"```python\n{usage}\n```" if usage else "",
        "What was it trained on?": _data(run) if run else "",
        "How good is it?": _numbers(run) if run else "",
        "With which settings?": _settings(run) if run else "",
        "What made it?": _provenance(run) if run else "",
        "What are its limits?": _limits(encoder),
        "How do I cite it?": CITATION,
    }
    parts = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join([_front_matter(uses_timm, spec.network), f"# {escape(name)}", *parts]) + "\n"


def _front_matter(uses_timm: bool, network: str) -> str:
    tags = ["self-supervised-learning", "contrastive-learning", "image-embeddings", "aag"]
    lines = ["library_name: timm" if uses_timm else "library_name: aag", "pipeline_tag: image-feature-extraction"]
    tags += [] if network in NETWORKS or uses_timm else [network]
    # JSON strings are YAML strings, whatever is in them.
    return "\n".join(["---", *lines, "tags:", *(f"- {json.dumps(tag)}" for tag in tags), "---"])


def _about(encoder: Encoder, run: Run | None) -> str:
    spec = encoder.spec
    trained = "An image encoder trained without labels"
    if run:
        trained += f" by the method {escape(_source_name(str(run.settings()['method']['name'])))}"
    width = f", width {spec.width}" if spec.width else ""
    crop = f" (the centre of {spec.source_size} px)" if spec.source_size != spec.image_size else ""
    rows = [
        ["network", escape(f"{spec.network}{width}, head {spec.head}")],
        ["parameters", f"{parameter_count(encoder):,}"],
        ["input", f"RGB images of {spec.image_size}×{spec.image_size} px{crop}" if spec.channels == 3 else
         f"images of {spec.image_size}×{spec.image_size} px, {spec.channels} channels"],
        ["mean, standard deviation", f"{_rounded(spec.mean)}, {_rounded(spec.std)}"],
        ["features", f"{encoder.feature_dim} dimensions, for classifiers"],
        ["embedding", f"{encoder.embedding_dim} dimensions, unit length, for search and clustering"],
    ]  # fmt: skip
    return f"{trained}, made with aag {__version__}.\n\n{make_table(['part', 'is'], rows)}"


def _rounded(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:.4f}" for value in values) + ")"


def _data(run: Run) -> str:
    data = run.settings()["data"]
    known = DATASETS.get(str(data["source"]))
    start = next((row for row in reversed(run.metrics()) if row["kind"] == "start"), {})
    count = start.get("images") or (known.train if known else None)
    rows = [["source", escape(_source_name(str(data["source"])))]]
    rows += [["images", f"{count:,}"]] if count else []
    rows += [["size", f"{data['image_size']}×{data['image_size']} px"], ["labels in training", "none"]]
    return make_table(["", ""], rows)


def _source_name(source: str) -> str:
    """Return the last part of a path. The card is published, and the full path would reveal the machine's folders."""
    return source if source in DATASETS else source.replace("\\", "/").rstrip("/").rpartition("/")[2] or "images"


def _numbers(run: Run) -> str:
    rows = []
    try:
        evaluation = run.evaluation()
        results = evaluation["results"]
    except AAGError:
        results = []
    holdout = run.settings()["data"].get("holdout")
    held_out = f", held-out {100 * holdout:g} % of the labelled images" if holdout else ""
    for row in results:
        protocol = ", ".join(f"{name} {value}" for name, value in row["protocol"].items() if name not in HIDDEN_FIELDS)
        data = escape(str(row["protocol"].get("data"))) + held_out
        rows.append([row["name"], f"{row['accuracy']:.2f} %", data, escape(protocol)])
    metrics = run.metrics()
    if not results and (knn := [row for row in metrics if row["kind"] == "knn"]):
        protocol = f"weighted kNN during training, epoch {knn[-1]['epoch']}"
        rows.append(["kNN (embedding)", f"{knn[-1]['knn']:.2f} %", f"test split{held_out}", protocol])
    if health := [row for row in metrics if row["kind"] == "health"]:
        last = health[-1]
        for name, title in HEALTH_TITLES.items():
            if name in last:
                total = f" of {last['dimensions']}" if name == "rank" and "dimensions" in last else ""
                protocol = f"label-free, epoch {last['epoch']}"
                value = f"{100 * last[name]:.3g} %" if name == "agreement" else f"{last[name]:.3g}{total}"
                rows.append([title, value, "training images", protocol])
    if not rows:
        return "Not evaluated: `aag evaluate` needs labelled test images."
    return make_table(["measure", "value", "data", "protocol"], rows)


def _settings(run: Run) -> str:
    settings = flatten(run.settings())
    for name in ("data", "method", "start_from", "pretrained"):
        if settings.get(name) and not str(settings[name]).startswith("hf-hub:"):
            settings[name] = _source_name(str(settings[name]))
    rows = [[escape(name), escape(readable_value(value))] for name, value in settings.items()]
    return make_table(["setting", "value"], rows)


def _provenance(run: Run) -> str:
    rows = run.metrics()
    start: Mapping[str, Any] = next((row for row in reversed(rows) if row["kind"] == "start"), {})
    names = ("gpu", "cpu", "cuda", "python", "aag", "torch", "timm", "commit", "runtime")
    found = [[name, escape(str(start[name]))] for name in names if start.get(name)]
    if seconds := [row["seconds"] for row in rows if row["kind"] == "epoch" and "seconds" in row]:
        found.append(["training time", duration(seconds[-1])])
    return make_table(["", ""], found) if found else ""


def _limits(encoder: Encoder) -> str:
    size = encoder.spec.image_size
    return "\n".join([
        f"- It takes images of {size}×{size} px. Others must be cropped to a square and resized first.",
        "- It learned from images alone. Similar means similar in appearance, as its training views define it.",
        "- It inherits the biases of its training images. Test it on your own before you rely on it.",
        "- Similarities of embeddings are not probabilities; choose thresholds on labelled examples.",
    ])  # fmt: skip
