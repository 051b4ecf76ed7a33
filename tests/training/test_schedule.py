"""Learning rates of the paper's two schedules."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from aag.settings import TrainSettings
from aag.training.schedule import learning_rate


def rates(steps_per_epoch: int, steps: Iterable[int], **changes: Any) -> list[float]:
    """Learning rates of the paper's settings, with changes."""
    settings = TrainSettings(**changes).resolve()
    return [learning_rate(settings, step, steps_per_epoch) for step in steps]


def rate(step: int, steps_per_epoch: int, **changes: Any) -> float:
    return rates(steps_per_epoch, [step], **changes)[0]


def test_cosine_falls_from_the_peak_to_zero_without_restarts():
    found = rates(390, range(200 * 390))
    assert found[0] == 0.03
    assert found[100 * 390] == pytest.approx(0.015)
    assert 0 <= found[-1] < 1e-8
    assert all(a >= b for a, b in pairwise(found))


def test_a_cosine_after_a_warm_up_falls_to_zero_as_well():
    found = rates(10, range(100), epochs=10, warmup_epochs=2)
    assert found[19] == found[20] == 0.03
    assert found[60] == pytest.approx(0.015)  # half of what is left
    assert found[99] < 1e-4


def test_steps_drop_to_a_tenth_at_120_and_160_of_200_epochs():
    at = {epoch: rate(epoch * 390, 390, schedule="step") for epoch in (0, 119, 120, 159, 160, 199)}
    expected = {0: 0.03, 119: 0.03, 120: 0.003, 159: 0.003, 160: 0.0003, 199: 0.0003}
    assert at == pytest.approx(expected)


def test_each_drop_may_have_its_own_factor():
    found = [rate(epoch * 10, 10, schedule="step", decay_by=(0.1, 0.5)) for epoch in (119, 120, 160)]  # ISIF's
    assert found == pytest.approx([0.03, 0.003, 0.0015])
    assert rate(1999, 10, schedule="step", decay_by=0.2) == rate(1999, 10, schedule="step", decay_by=(0.2, 0.2))
    assert TrainSettings(decay_by=(0.2,)) == TrainSettings(decay_by=0.2)
    assert rate(1999, 10, schedule="step", decay_at=(0.6,)) == pytest.approx(0.003)


@pytest.mark.parametrize(("batch", "peak"), [(32, 0.0075), (128, 0.03), (256, 0.06)])
def test_the_peak_grows_with_the_batch(batch, peak):
    assert rate(0, 100, batch_size=batch) == rate(0, 100, batch_size=batch // 4, accumulate=4) == pytest.approx(peak)


def test_only_batches_above_256_and_lars_warm_up_for_ten_epochs():
    assert rate(0, 97, batch_size=512) == pytest.approx(0.12 / 970)
    assert rate(969, 97, batch_size=512) == pytest.approx(0.12)
    assert rate(0, 97, batch_size=512, warmup_epochs=0) == pytest.approx(0.12)
    assert rate(0, 10, warmup_epochs=2) == pytest.approx(0.03 / 20)
    assert rate(0, 10, optimizer="lars") == pytest.approx(0.03 / 100)


def test_the_schedule_restarts_in_each_round():
    found = rates(10, range(60), epochs=6, rounds=3, warmup_epochs=1)
    assert found[:20] == found[20:40] == found[40:]
    assert found[0] == pytest.approx(0.003)
    assert max(found) == found[9] == found[10] == pytest.approx(0.03)
    assert found[19] < 0.001
