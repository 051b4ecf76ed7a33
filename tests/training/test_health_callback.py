"""Health while training: logged for every method, without any effect on training; the verdict on a run."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from small_runs import DEFAULTS, state

import aag
from aag.evaluate.health import verdict
from aag.methods import methods
from aag.training import Trainer, TrainSettings
from aag.training.callbacks import Callback, Health
from aag.training.progress import Progress

VICREG = f"{Path(__file__).parents[2] / 'examples' / 'vicreg.py'}:VICReg"
OPTIONS: dict[str, dict[str, Any]] = {
    "deepcluster": {"clusters": 4},
    "isif": {"bn_group_size": 0},
    "moco": {"queue": 32, "bn_group_size": 0},
    "simclr": {"optimizer": "sgd"},
    VICREG: {"expander": 16},
}


def health_rows(run: aag.Run) -> list[dict[str, Any]]:
    return [row for row in run.metrics() if row["kind"] == "health"]


@pytest.mark.parametrize("method", [*methods(), VICREG], ids=lambda name: Path(name).name)
def test_health_is_logged_for_every_method_without_labels(tmp_path, photographs, method):
    options = (
        DEFAULTS
        | {"epochs": 1, "rounds": 1, "warmup_epochs": 0, "method": method, "lr": 1e-3}
        | OPTIONS.get(method, {})
    )
    result = aag.train(photographs[:48], out=tmp_path / "run", **options)
    rows = health_rows(result.run)
    assert [row["epoch"] for row in rows] == [0, 1]
    for row in rows:
        assert {"rank", "dimensions", "alignment", "uniformity", "agreement", "evaluation_seconds"} < row.keys()
        assert 1 <= row["rank"] <= row["dimensions"]
        assert 0 <= row["agreement"] <= 1
        assert row["images"] == 48
    assert result.verdict


def test_it_has_no_effect_on_training(photographs):
    def train(*callbacks: Callback) -> dict[str, torch.Tensor]:
        images = aag.ImageSet("photographs", photographs[:64])
        encoder = aag.nets.build(aag.nets.EncoderSpec(width=4))
        settings = TrainSettings(epochs=2, batch_size=32)
        trainer = Trainer(encoder, methods()["aag"](), images, settings, device="cpu", callbacks=callbacks)
        assert trainer.fit()
        return {name: value.clone() for name, value in trainer.step.state().items()}

    without, measured = train(), train(Health(every=1))
    assert all(torch.equal(value, measured[name]) for name, value in without.items())


def test_views_of_larger_stored_images_are_measured_at_their_size(tmp_path, photographs):
    result = aag.train(photographs[:48], out=tmp_path / "run", **DEFAULTS | {"image_size": 24, "resize_size": 32})
    assert len(health_rows(result.run)) == 3
    assert state(result.run)[1]["epoch"] == 2


# --- the progress bar -------------------------------------------------------------------------------------------------


def test_the_bar_shows_health_within_80_columns_and_warns_once_of_a_collapse(photographs, monkeypatch):
    monkeypatch.setattr("aag.evaluate.health.MIN_STEPS", 1)

    class Collapse(Callback):
        def on_epoch(self, trainer: Trainer) -> None:
            for parameter in trainer.encoder.head.parameters():
                parameter.data.zero_()
            trainer.encoder.head.bias.data[0] = 1.0

    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    images = aag.ImageSet("photographs", photographs[:64])
    encoder = aag.nets.build(aag.nets.EncoderSpec(width=4, image_size=32))
    with Progress(console) as progress:
        callbacks = (Collapse(), Health(1), progress)
        settings = TrainSettings(epochs=3, batch_size=32)
        Trainer(encoder, methods()["aag"](), images, settings, device="cpu", callbacks=callbacks).fit()
    text = out.getvalue()
    assert text.count("warning: collapse") == 1
    assert "rank 1/128  agree 0 %" in text
    progress.bar.update(progress.task, epoch=1000, epochs=1000, loss="-12.34", score="  rank 128/128  agree 100 %")
    with console.capture() as shown:
        console.print(progress.bar.get_renderable())
    line = shown.get().splitlines()[0]
    assert line.rstrip().endswith("left")
    assert "agree 100 %" in line


# --- the verdict ------------------------------------------------------------------------------------------------------


def rows(
    agreement: list[float], *, rank: float = 30.0, uniformity: float = -2.0, anneals: bool = True
) -> list[dict[str, Any]]:
    """Rows of a run with one evaluation every 10 epochs."""
    found = []
    epochs = max(1, 10 * (len(agreement) - 1))
    for number, value in enumerate(agreement):
        epoch = 10 * number
        lr = 0.03 * (1 - epoch / epochs) if anneals else 0.03
        found.append({"kind": "epoch", "epoch": epoch, "step": 20 * epoch, "lr": lr, "loss": 1.0})
        health = {"rank": rank, "dimensions": 128, "images": 2048, "uniformity": uniformity, "agreement": value}
        found.append({"kind": "health", "epoch": epoch, "step": 20 * epoch, **health})
    return found


RISING = [0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
FLAT_EARLY = [0.02, 0.59, 0.6, 0.6, 0.6, 0.6, 0.64, 0.7, 0.76]  # the falling learning rate lifts the end


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (rows(RISING), "still improving: more epochs may help (--epochs 160)"),
        (rows(FLAT_EARLY), "more epochs will add little"),
        (rows(FLAT_EARLY, anneals=False), "still improving"),
        (rows([*RISING, 0.8, 0.8, 0.8, 0.8], anneals=False), "more epochs will add little"),
        (rows(RISING, rank=1.2), "Collapsed: images get nearly the same embedding (rank 1 of 128)"),
        (rows(RISING, uniformity=-0.001), "Collapsed"),
        (rows([0.02] * 9), "Little learned"),
        (rows([0.02, 0.2, 0.3]), "too few evaluations"),
        ([{**row, "epoch": row["epoch"] // 10} for row in rows([0.02, 0.2])], "too few epochs"),
        (rows([0.02]), ""),
        ([{**row, "step": 60} for row in rows([0.02, 0.1], rank=1.2)], "Too early to judge, after 60 steps"),
        ([{**row, "step": 1} for row in rows([0.02, 0.1])], "Too early to judge, after 1 step:"),
        ([], ""),
    ],
)
def test_verdict(found, message):
    said = verdict(found)
    assert message in said if message else said == ""
    assert said.count("\n") == 0


def test_the_verdict_goes_by_knn_where_there_are_labels():
    flat = [{"kind": "knn", "epoch": 10 * i, "step": 0, "knn": knn} for i, knn in enumerate([30, *[80] * 8])]
    assert "more epochs will add little" in verdict([*rows(RISING), *flat])
