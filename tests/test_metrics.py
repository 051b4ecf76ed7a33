"""metrics.jsonl as a damaged disk, another program or an attacker may leave it."""

import json
import os
import random

import pytest

from aag.errors import AAGError
from aag.evaluate.health import verdict
from aag.metrics import MAX_DAMAGED, parse_rows
from aag.nets import EncoderSpec, build
from aag.records import make_record
from aag.runs import Run, run_status, summarize
from aag.serving.card import model_card
from aag.serving.curves import make_charts
from aag.training import recipe_settings

HEALTH = {"rank": 3.0, "dimensions": 8, "alignment": 0.1, "uniformity": -1.0, "agreement": 0.5, "images": 96}
ROWS = [
    {"kind": "start", "epoch": 0, "step": 0, "gpu": None, "images": 96},
    {"kind": "steps", "epoch": 1, "step": 10, "loss": 4.0},
    {"kind": "epoch", "epoch": 1, "step": 10, "loss": 4.0, "lr": 0.1, "seconds": 1.0, "views_per_second": 9.0},
    {"kind": "knn", "epoch": 1, "step": 10, "knn": 31.0},
    {"kind": "health", "epoch": 1, "step": 10, **HEALTH},
    {"kind": "mine", "epoch": 1, "step": 10, "text": "of a user's own callback"},
]
VALUES = [None, True, "x", [], {}, [1], -1, 10**400, "\ud800", 1e400]


def text(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_whole_rows_are_read():
    assert parse_rows(text(*ROWS)) == ROWS


@pytest.mark.parametrize(
    "line",
    [
        "", "3", "null", "[]", "{}", '"kind"', '{"kind": "epoch"}', "{" * 100_000, "[" * 100_000, '{"a":' * 100_000,
        '{"kind": [], "epoch": 1, "step": 1}', '{"kind": "x", "epoch": 1.0, "step": 1}',
        '{"kind": "x", "epoch": true, "step": 1}', '{"kind": "x", "epoch": -1, "step": 1}',
        '{"kind": "x", "epoch": ' + "9" * 5000 + ', "step": 1}', '{"kind": "knn", "epoch": 1, "step": 1}',
        '{"kind": "knn", "epoch": 1, "step": 1, "knn": "31"}', '{"kind": "knn", "epoch": 1, "step": 1, "knn": null}',
    ],
)  # fmt: skip
def test_malformed_rows_are_skipped(line):
    assert parse_rows(f"{text(ROWS[0])}{line}\n{text(ROWS[3])}") == [ROWS[0], ROWS[3]]


def test_millions_of_damaged_lines_are_not_read(tmp_path):
    assert parse_rows(f"{text(ROWS[0])}\n\n{text(ROWS[3])}") == [ROWS[0], ROWS[3]]
    assert parse_rows(text(ROWS[0]) + "\n" * MAX_DAMAGED + text(ROWS[3])) == [ROWS[0]]
    run = Run(tmp_path)
    run.metrics_file.write_text(text(*ROWS))
    os.truncate(run.metrics_file, 10**12)
    with pytest.raises(AAGError, match=r"cannot read .*metrics\.jsonl: it has more than 1.0 GB$"):
        run.metrics()


def test_no_reader_fails_on_wrong_types(tmp_path):
    """Every value of every row replaced by each wrong one, in random combinations."""
    run = Run(tmp_path / "run")
    settings = recipe_settings("paper", "cifar10").replace(epochs=1).resolve("fp32")
    with run.lock():
        run.start(settings.to_json())
    results = [{"name": "kNN (embedding)", "accuracy": 31.0, "protocol": {}}]
    run.evaluation_file.write_text(json.dumps({"epoch": 1, "results": results}))
    draw, encoder = random.Random(0), build(EncoderSpec("resnet18", width=4))
    for _ in range(100):
        rows = [
            {name: draw.choice(VALUES) if draw.random() < 0.15 else value for name, value in row.items()}
            for row in ROWS
            if draw.random() < 0.9
        ]
        run.metrics_file.write_text(text(*rows), errors="surrogatepass")
        summarize(run, 1)
        run_status(run)
        make_record(run)
        verdict(run.metrics())
        make_charts({"run": run.metrics()})
        model_card(encoder, run)
