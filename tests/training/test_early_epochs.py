"""How a run starts: smaller views in the first epochs, residual blocks as the identity, random scales of batch norm."""

import pytest
import torch
from small_runs import assert_same, stop_after

import aag
from aag import AAGError, nets
from aag.nets import EncoderSpec
from aag.training import Callback, TrainSettings
from aag.training.encoders import zero_init_residual


class ViewSizes(Callback):
    """Notes the side of the views in each epoch."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def on_step(self, trainer, loss):
        seen = trainer.epoch, trainer.batches.batch(trainer.epoch, trainer.progress.step - 1).views.shape[-1]
        if seen not in self.found:
            self.found.append(seen)


# --- smaller views ----------------------------------------------------------------------------------------------------


def test_the_first_epochs_have_smaller_views(tiny):
    sizes = ViewSizes()
    result = tiny.train(epochs=4, low_res_size=16, low_res_until=0.5, callbacks=[sizes])
    assert sizes.found == [(0, 16), (1, 16), (2, 32), (3, 32)]
    assert result.encoder.spec.image_size == 32
    assert result.encoder.embed(torch.zeros(2, 3, 32, 32)).shape == (2, 128)


@pytest.mark.parametrize("stops", [[3], [6, 1], [9], [7, 7, 3]])
def test_such_a_run_resumes_bit_for_bit(tiny, stops):
    """Stopped before, at and after the change of size, which is after 12 of 24 steps."""
    options = {"epochs": 4, "low_res_size": 16}
    whole = tiny.train("whole", **options)
    for steps in stops:
        assert not tiny.train(should_stop=stop_after(steps), **options).complete
    assert_same(whole.run, tiny.train(**options).run)


def test_smaller_views_change_training_but_not_the_views_of_health(tiny):
    low, plain = (
        tiny.train(name, epochs=2, **options).run for name, options in (("low", {"low_res_size": 16}), ("plain", {}))
    )
    first, second = ([row for row in run.metrics() if row["kind"] == "health"] for run in (low, plain))
    untimed = [{k: v for k, v in rows[0].items() if "seconds" not in k} for rows in (first, second)]
    assert untimed[0] == untimed[1]  # of the same, untrained weights
    assert first[-1]["rank"] != second[-1]["rank"]
    assert low.settings()["train"]["low_res_size"] == 16
    assert "low_res_until" not in plain.settings()["train"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low_res_size": 32}, "--low-res-size 32 is not below the image size of 32"),
        ({"low_res_size": 16, "network": "alexnet", "width": None}, "alexnet takes images of one size only"),
        ({"low_res_size": 16, "low_res_until": 1.0}, "--low-res-until must be above 0 and below 1, not 1"),
        ({"low_res_until": 0.3}, "--low-res-until has no effect without --low-res-size"),
        ({"low_res_size": 16, "epochs": 1}, "--low-res-until 0.5 is 0 of 1 epoch; train for more"),
        (
            {"low_res_size": 16, "auxiliary_crop": "none"},
            "cannot shrink the views of AuxiliaryAugment without a resized",
        ),
    ],
)
def test_sizes_that_make_no_sense_are_refused(tiny, options, message):
    with pytest.raises(AAGError, match=message):
        tiny.train(**options)


# --- residual blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["resnet18", "resnet50", "resnet18+sobel"])
def test_a_residual_block_starts_as_its_shortcut(network):
    encoder = nets.build(EncoderSpec(network, width=4), seed=0)
    usual = nets.build(EncoderSpec(network, width=4), seed=0)
    zero_init_residual(encoder)
    changed = [name for name, value in encoder.state_dict().items() if not torch.equal(value, usual.state_dict()[name])]
    blocks = [part for part in encoder.modules() if isinstance(part, nets.resnet.Block)]
    assert len(changed) == len(blocks)
    same_shape = next(block for block in blocks if block.shortcut is None)
    x = torch.rand(2, same_shape.residual[0].conv.in_channels, 8, 8)
    assert torch.equal(same_shape(x, x)[0], x)


def test_training_starts_with_zero_residuals_and_leaves_them(tiny):
    seen = []

    class FirstWeights(Callback):
        def on_start(self, trainer):
            seen.append(
                [block.residual[-1].norm.weight.abs().sum().item() for block in trainer.encoder.backbone.blocks]
            )

    result = tiny.train(zero_init_residual=True, callbacks=[FirstWeights()])
    assert not any(seen[0])
    assert all(block.residual[-1].norm.weight.any() for block in result.encoder.backbone.blocks)
    with pytest.raises(AAGError, match="for our resnet18 and resnet50, not for alexnet"):
        tiny.train("other", zero_init_residual=True, network="alexnet", width=None)


def test_weights_to_start_from_are_not_overwritten():
    with pytest.raises(AAGError, match="--zero-init-residual would change the weights to start from"):
        TrainSettings(start_from="runs/x", zero_init_residual=True)
    assert "zero_init_residual" not in aag.settings.to_json(TrainSettings())
