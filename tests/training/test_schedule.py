"""Learning rates of the paper's two schedules."""

from dataclasses import replace
from itertools import pairwise

import pytest

from aag.config import TrainConfig
from aag.training.schedule import learning_rate

PAPER = TrainConfig()


def test_cosine_falls_from_the_peak_to_zero_without_restarts():
    rates = [learning_rate(PAPER, step, 390) for step in range(200 * 390)]
    assert rates[0] == 0.03
    assert rates[100 * 390] == pytest.approx(0.015)
    assert 0 <= rates[-1] < 1e-8
    assert all(a >= b for a, b in pairwise(rates))


def test_steps_drop_to_a_tenth_at_120_and_160_of_200_epochs():
    config = replace(PAPER, schedule="step")
    at = {epoch: learning_rate(config, epoch * 390, 390) for epoch in (0, 119, 120, 159, 160, 199)}
    expected = {0: 0.03, 119: 0.03, 120: 0.003, 159: 0.003, 160: 0.0003, 199: 0.0003}
    assert at == pytest.approx(expected)


@pytest.mark.parametrize(("batch", "peak"), [(32, 0.0075), (128, 0.03), (256, 0.06)])
def test_the_peak_grows_with_the_batch(batch, peak):
    assert learning_rate(replace(PAPER, batch_size=batch), 0, 100) == pytest.approx(peak)


def test_only_batches_above_256_warm_up_for_ten_epochs():
    config = replace(PAPER, batch_size=512)
    assert learning_rate(config, 0, 97) == pytest.approx(0.12 / 970)
    assert learning_rate(config, 969, 97) == pytest.approx(0.12)
    assert learning_rate(replace(config, warmup_epochs=0), 0, 97) == pytest.approx(0.12)
    assert learning_rate(replace(PAPER, warmup_epochs=2), 0, 10) == pytest.approx(0.03 / 20)


def test_an_automatic_warm_up_leaves_half_of_a_short_run():
    config = replace(PAPER, batch_size=512, epochs=4)
    rates = [learning_rate(config, step, 10) for step in range(40)]
    assert max(rates) == pytest.approx(0.12)
    assert rates.index(max(rates)) in (19, 20)
    assert rates[-1] < 0.01
