"""Targets: files of run folders and records, tables of embeddings and labels, encoders and checkpoints."""

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aag import nets
from aag.evaluate.health import verdict
from aag.methods import load_method
from aag.nets import EncoderSpec
from aag.paper.results import Results
from aag.records import make_record
from aag.runs import Run, run_status, summarize
from aag.serving.labels import read_labels
from aag.serving.table import EmbeddingTable, read_table, write_table
from aag.training import RunSettings, checkpoint, recipe_settings
from fuzz.target import Target

NAMES = [f"class {number % 2}/picture {number}.png" for number in range(4)]


def _settings() -> dict[str, Any]:
    chosen = recipe_settings("auto", "sample", "simclr").replace(epochs=2, image_size=32)
    return {"name": "sample-simclr", **chosen.resolve("fp32").to_json()}


def _rows() -> list[dict[str, Any]]:
    health = {"rank": 9.5, "dimensions": 128, "alignment": 0.2, "uniformity": -2.5, "images": 256, "agreement": 0.4}
    rows: list[dict[str, Any]] = [{"kind": "start", "epoch": 0, "step": 0, "gpu": "", "cpu": "x", "torch": "2.11"}]
    for epoch in range(3):
        at = {"epoch": epoch, "step": 200 * epoch}
        rows += [{"kind": "knn", **at, "knn": 30.0 + epoch}, {"kind": "health", **at, **health}]
        if epoch:
            rows += [{"kind": "steps", **at, "loss": 1.5, "lr": 0.03, "positive_cosine": 0.5}]
            rows += [{"kind": "epoch", **at, "loss": 1.5, "lr": 0.03, "seconds": 3.5, "views_per_second": 900.0}]
    return rows


def _evaluation() -> dict[str, Any]:
    result = {"name": "kNN (embedding)", "accuracy": 40.0, "protocol": {"evaluation": "knn", "k": 200}}
    return {"epoch": 2, "results": [result]}


def _jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


STRANGE = (None, True, -1, 0, 10**30, 0.5, float("nan"), 1e300, "", "x\n\u2028", [], [1], {}, {"a": 1})


def variants(content: Any) -> Iterator[Any]:
    """Yield JSON content with each of its values replaced by something strange: changed bytes seldom change a type."""
    yield from STRANGE
    if isinstance(content, dict):
        for name in content:
            yield {key: value for key, value in content.items() if key != name}
            yield from ({**content, name: value} for value in variants(content[name]))
    elif isinstance(content, list):
        for place in range(len(content)):
            yield from ([*content[:place], value, *content[place + 1 :]] for value in variants(content[place]))


def _variant_seeds(content: Any) -> list[bytes]:
    """Return the content and its variants; of a list, as lines."""
    dump = _jsonl if isinstance(content, list) else lambda value: json.dumps(value).encode()
    whole = [content] * 100  # whose bytes alone are damaged
    return [dump(value) for value in (*whole, *variants(content)) if type(value) is type(content)]


FILES = {
    "config.json": lambda: json.dumps(_settings(), indent=1).encode(),
    "metrics.jsonl": lambda: _jsonl(_rows()),
    "evaluation.json": lambda: json.dumps(_evaluation()).encode(),
}
CONTENTS: dict[str, Callable[[], Any]] = {
    "config.json": _settings,
    "metrics.jsonl": _rows,
    "evaluation.json": _evaluation,
}


def _in_run(name: str, path: Path, read: Callable[[Run], object]) -> object:
    """Read a run whose file of this name is the input; the others are whole."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for each, make in FILES.items():
            (Path(folder) / each).write_bytes(path.read_bytes() if each == name else make())
        return read(Run(folder))


def _read_run(run: Run) -> None:
    run_status(run)
    RunSettings.from_json(run.settings())
    summarize(run, 2)
    verdict(run.metrics())
    make_record(run)


def _read_record(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        (Path(folder) / "record.json").write_bytes(path.read_bytes())
        Results(Path(folder))


@cache
def _record_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        for name, make in FILES.items():
            (Path(folder) / name).write_bytes(make())
        return _variant_seeds(make_record(Run(folder)))


def _table() -> EmbeddingTable:
    random = np.random.default_rng(0)
    vectors = torch.from_numpy(random.normal(size=(4, 6)).astype(np.float32))
    return EmbeddingTable(NAMES, vectors, vectors.clone(), None, {"label": ["a", "b", "a", "b"]}, {"network": "x"})


def _table_seeds(suffix: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{suffix}"
        write_table(path, _table())
        return [path.read_bytes()]


def _label_seeds() -> list[bytes]:
    lines = "".join(f"{name},{'ab'[number % 2]}\r\n" for number, name in enumerate(NAMES))
    return [f"path,label\r\n{lines}".encode(), f'label,path,more\n"a ""b""",{NAMES[0]},1\n'.encode()]


@cache
def _encoder_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.safetensors"
        nets.save(nets.build(EncoderSpec("resnet18", width=1, embedding=4, image_size=8)), path, {"epoch": "2"})
        return [path.read_bytes()]


@cache
def _checkpoint_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.ckpt"
        tensors = {"encoder.weight": torch.ones(3, 2), "optimizer.momentum": torch.zeros(6)}
        state = {"settings": _settings(), "images": "0123", "spec": "{}", "threads": 1, "epoch": 1, "step": 200}
        state["processes"] = 1
        checkpoint.save(path, tensors, {**state, "seconds": 3.5, "lr_factor": 1.0})
        return [path.read_bytes()]


def _method_seeds() -> list[bytes]:
    return [b"aag", b"super-and", b"no_such_file.py:Mine", b"~/no such folder/mine.py:Mine"]


TARGETS = {
    **{
        name.replace(".", "-"): Target(
            lambda make=make: _variant_seeds(make()),
            lambda path, name=name: _in_run(name, path, _read_run),
            Path(name).suffix,
        )
        for name, make in CONTENTS.items()
    },
    "record": Target(_record_seeds, _read_record, ".json"),
    "embeddings-parquet": Target(lambda: _table_seeds(".parquet"), read_table, ".parquet"),
    "embeddings-csv": Target(lambda: _table_seeds(".csv"), read_table, ".csv"),
    "embeddings-npz": Target(lambda: _table_seeds(".npz"), read_table, ".npz"),
    "labels": Target(_label_seeds, lambda path: read_labels(path, _table()), ".csv"),
    "spec": Target(
        lambda: _variant_seeds(json.loads(EncoderSpec("resnet18").to_json())),
        lambda path: EncoderSpec.from_json(path.read_text(errors="replace")),
        ".json",
    ),
    "method": Target(_method_seeds, lambda path: load_method(path.read_text(errors="replace"))),
    "encoder": Target(_encoder_seeds, nets.load, ".safetensors"),
    "checkpoint": Target(_checkpoint_seeds, checkpoint.load, ".ckpt"),
}
