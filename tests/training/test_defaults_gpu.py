"""Defaults on a GPU: the batch that fits, epochs for a number of minutes, and health beside captured steps."""

import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from small_runs import losses

import aag
from aag.training import recipe_settings
from aag.training.defaults import fit_batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_a_folder_trains_by_defaults_within_the_minutes(tmp_path, photographs, monkeypatch):
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(photographs):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "photos" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    aag.train("photos", out="warm", epochs=1)  # compiles
    before = time.monotonic()
    result = aag.train("photos", minutes=0.2)
    assert result.complete
    assert result.run.folder == Path("runs/photos-auto-seed0-minutes=0.2")
    assert 5 < time.monotonic() - before < 25
    assert result.run.settings()["train"]["batch_size"] == 128
    assert result.verdict


def test_the_batch_is_halved_to_what_fits(monkeypatch):
    settings = recipe_settings("auto", "cifar10").replace(network="resnet50", image_size=64, batch_size=512)
    device, settings = torch.device("cuda"), settings.resolve("bf16")
    before = torch.cuda.memory_allocated()  # of other tests in this process
    assert fit_batch(settings.replace(batch_size=16), device) == 16
    free = torch.cuda.mem_get_info
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (12 << 30, free()[1]))
    assert 8 <= fit_batch(settings, device) < 512
    assert torch.cuda.memory_allocated() < before + (1 << 30)


def test_health_leaves_captured_steps_alone(tiny):
    rare, often = (tiny.train(f"run{every}", knn_every=every, device="cuda", width=16) for every in (0, 1))
    assert len([row for row in often.run.metrics() if row["kind"] == "health"]) == 3
    assert losses(often) == pytest.approx(losses(rare), rel=1e-3)
