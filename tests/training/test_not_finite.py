"""NaN in training: never saved, rolled back, and retried once at half the learning rate where that is asked for."""

from collections.abc import Callable

import pytest
import torch
from small_runs import assert_same, stop_after

from aag import AAGError
from aag.training import Callback, Trainer, checkpoint


@pytest.fixture
def nan_at(monkeypatch) -> Callable[..., None]:
    """Makes the weights NaN after a step, while the learning rate is at least this share of the schedule's."""

    def plan(epoch: int, step: int, factor: float = 1.0, loss: bool = True) -> None:
        real = Trainer.train_step

        def train_step(self: Trainer, at_epoch: int, at_step: int, lr: float) -> torch.Tensor:
            statistics = real(self, at_epoch, at_step, lr)
            if (at_epoch, at_step) == (epoch, step) and self.progress.lr_factor >= factor:
                next(self.encoder.parameters()).data.fill_(torch.nan)
                return statistics * torch.nan if loss else statistics
            return statistics

        monkeypatch.setattr(Trainer, "train_step", train_step)

    return plan


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("step", [2, 5])  # within an epoch, and its last step
def test_a_bad_state_is_never_saved(tiny, nan_at, loss, step):
    nan_at(0, step, loss=loss)
    with pytest.raises(
        AAGError, match=r"no longer finite.*checkpoint is in .*--on-nan retry resumes.*try a lower --lr"
    ):
        tiny.train(epochs=1)
    for path in tiny.run.checkpoints():
        tensors, state = checkpoint.load(path)
        assert all(torch.isfinite(value).all() for value in tensors.values())
        assert state["step"] <= step


def test_retry_goes_back_to_the_checkpoint_and_lowers_the_rate_once(tiny, nan_at, caplog):
    nan_at(1, 2)
    options = {"on_nan": "retry", "schedule": "constant", "knn_every": 0}
    run = tiny.train(**options).run
    (retry,) = [row for row in run.metrics() if row["kind"] == "retry"]
    assert (retry["epoch"], retry["step"], retry["lr_factor"]) == (1, 8, 0.5)
    assert caplog.messages == [
        "the loss is no longer finite (epoch 2, step 3); "
        "resuming from the checkpoint at epoch 2, step 2, with 0.5 times the learning rate"
    ]
    assert checkpoint.load(run.checkpoint)[1]["lr_factor"] == 0.5
    first, second = (row["lr"] for row in run.metrics() if row["kind"] == "epoch")
    assert second == first / 2
    # Stopped after the retry, and resumed: the same bits.
    assert not tiny.train("parts", should_stop=stop_after(11), **options).complete
    assert_same(run, tiny.train("parts", **options | {"on_nan": "stop"}).run)


def test_a_rollback_over_a_change_of_size_has_the_earlier_views(tiny, nan_at):
    """Views have 16 pixels in the first two epochs; the checkpoint is of the second, the failure in the third."""
    sizes = []

    class Sizes(Callback):
        def on_step(self, trainer, loss):
            sizes.append((trainer.epoch, trainer.batches.batch(trainer.epoch, 0).views.shape[-1]))

    options = {"epochs": 3, "low_res_size": 16, "low_res_until": 0.6, "on_nan": "retry", "checkpoint_minutes": 60.0}
    assert not tiny.train(should_stop=stop_after(10), **options).complete
    nan_at(2, 1)
    run = tiny.train(callbacks=[Sizes()], **options).run
    assert [row["kind"] for row in run.metrics()].count("retry") == 1
    assert set(sizes) == {(1, 16), (2, 32)}
    assert sizes.count((1, 16)) == 4  # the last two steps of that epoch, twice


def test_a_second_failure_stops(tiny, nan_at):
    nan_at(0, 3, factor=0.0)
    with pytest.raises(AAGError, match=r"\(epoch 1, step 4\); half the learning rate did not help; the last good"):
        tiny.train(on_nan="retry", epochs=1)
    assert checkpoint.load(tiny.run.checkpoint)[1]["lr_factor"] == 0.5
