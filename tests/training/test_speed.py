"""Measuring the speed of a run."""

import time

import pytest

from aag import ImageSet
from aag.methods.and_ import AND
from aag.training import RunSettings, recipe_settings
from aag.training.speed import measure_speed


@pytest.fixture
def settings() -> RunSettings:
    return recipe_settings("demo", "sample", "and").replace(width=4, batch_size=16, image_size=8)


@pytest.mark.parametrize("rounds", [1, 12, 3_000_000])
def test_the_speed_of_a_run_of_any_number_of_rounds_is_measured(settings, photographs, rounds):
    settings = settings.replace(rounds=rounds, epochs=rounds, warmup_epochs=0).resolve()
    images = ImageSet("images", photographs[:32, :, :8, :8].contiguous())
    speed = measure_speed(settings, (images, None), seconds=0.1, device="cpu", compile="off")
    assert 0 < speed.epoch < 60
    assert speed.start > 0


def test_what_a_method_prepares_for_an_epoch_counts_once_per_epoch(settings, photographs):
    class Slow(AND):
        def before_epoch(self, epoch, extract):
            time.sleep(0.5)

    settings = settings.replace(image_size=8, rounds=1, epochs=1, batch_size=2).resolve()
    images = ImageSet("images", photographs[:200, :, :8, :8].contiguous())
    method = Slow(settings.method_settings)
    speed = measure_speed(settings, (images, None), seconds=0.2, method=method, device="cpu", compile="off")
    assert 0.5 < speed.epoch < 10  # and not 0.5 s for each of its 100 steps
