"""Defaults for a folder of images, and epochs for a number of minutes."""

from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from small_runs import assert_same, state, stop_after

import aag
from aag import AAGError
from aag.training import recipe_settings, run_name
from aag.training.defaults import (
    choose_for_folder,
    choose_image_size,
    epochs_reason,
    epochs_within,
    evaluation_interval,
    folder_options,
    halve_until_it_fits,
    plan_run,
    slow_network_warning,
    with_epochs,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def folder(tmp_path: Path, photographs: torch.Tensor) -> Path:
    path = tmp_path / "photos"
    path.mkdir()
    for number, image in enumerate(photographs[:40]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"{number}.png")
    return path


def enlarge(folder: Path, side: int) -> None:
    for path in folder.iterdir():
        Image.open(path).resize((side, side)).save(path)


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "count", "cpu", "size"),
    [
        (32, 100, False, 32), (48, 100, False, 64), (100, 100, False, 128), (192, 100, False, 224),
        (4000, 9, False, 224),        (4000, 100, True, 64), (4000, 3000, True, 32), (20, 9, True, 32),
    ],
)  # fmt: skip
def test_image_size(side, count, cpu, size):
    assert choose_image_size(side, count, cpu)[0] == size


def test_choices_for_a_gpu(folder):
    settings = recipe_settings("auto", str(folder))
    small, choices = choose_for_folder(settings, (), GPU)
    assert (small.data.image_size, small.data.resize_size, small.encoder.network) == (32, None, "resnet18")
    assert (small.train.batch_size, small.train.epochs) == (8, 1000)
    assert {each.name for each in choices} == {"image_size", "network", "batch_size", "epochs"}
    enlarge(folder, 300)
    large, _ = choose_for_folder(settings, (), GPU)
    assert (large.data.image_size, large.data.resize_size, large.encoder.network) == (224, 256, "timm/resnet18")
    kept, choices = choose_for_folder(settings.replace(image_size=128, epochs=7), ("image_size", "epochs"), GPU)
    assert (kept.data.image_size, kept.data.resize_size, kept.train.epochs) == (128, 146, 7)
    assert not {"image_size", "epochs"} & {each.name for each in choices}


@pytest.mark.parametrize("method", ["moco", "simclr", "super-and", "amdim", "deepcluster", "instance"])
@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_choices_keep_to_what_a_method_needs(folder, method, device):
    enlarge(folder, 100)
    settings, _ = choose_for_folder(recipe_settings("auto", str(folder), method), (), device)
    resolved = settings.resolve("fp32")
    assert resolved.method == method
    if method == "amdim":
        assert (resolved.encoder.network, resolved.data.image_size) == ("amdim", 32)
    if method == "super-and" and device == GPU:
        assert resolved.encoder.network == "timm/resnet18+sobel"


def test_very_few_images_give_the_smallest_batch(folder):
    for path in sorted(folder.iterdir())[9:]:
        path.unlink()
    settings, _ = choose_for_folder(recipe_settings("auto", str(folder), "amdim"), (), CPU)
    assert settings.train.batch_size == 2


def test_with_epochs_keeps_rounds_and_warm_up_possible():
    settings = recipe_settings("auto", "cifar10").replace(epochs=40, rounds=4, warmup_epochs=5)
    short = with_epochs(settings, 11).train
    assert (short.epochs, short.rounds, short.warmup_epochs) == (8, 4, 1)
    assert with_epochs(settings, 1).train.epochs == 4


def test_the_warm_up_fits_the_epochs_that_minutes_choose(tmp_path):
    settings = recipe_settings("demo").replace(optimizer="lars")  # 9 epochs
    plan = plan_run(settings, "demo", (), tmp_path / "run", 60.0, CPU, for_folder=False)
    assert with_epochs(plan.settings, 500).resolve().train.warmup_epochs == 10


def test_epochs_within_a_time():
    assert epochs_within(600, 1.0, 0.0, 5) == 600
    assert epochs_within(600, 1.0, 5.0, 5) == 295  # each epoch pays a fifth of an evaluation, and two more
    assert epochs_within(1, 60.0, 5.0, 5) == 1
    assert epochs_within(40, 2.0, 2.0, 5) == 9  # every epoch is evaluated in so short a run
    assert epochs_within(60, 1.0, 5.0, 1000) == 8
    assert epochs_within(60, 1.0, 5.0, 1000, adapt=False) == 49  # as --knn-every 1000 asks
    assert [evaluation_interval(5, epochs) for epochs in (3, 20, 50, 200)] == [1, 2, 5, 5]
    assert evaluation_interval(0, 100) == 0


def test_a_batch_is_halved_until_it_fits():
    assert halve_until_it_fits(128, lambda batch: batch <= 40) == 32
    with pytest.raises(AAGError, match="too little memory"):
        halve_until_it_fits(128, lambda batch: False)


def test_slow_choices_are_told():
    settings = recipe_settings("auto", "cifar10")
    assert "use --network timm/resnet18" in slow_network_warning(settings, 128, CPU)
    assert "slow at 128×128 on a CPU" in slow_network_warning(settings, 128, CPU)
    assert not slow_network_warning(settings, 64, CPU)
    assert not slow_network_warning(settings.replace(network="timm/resnet18"), 224, GPU)


# --- the name ---------------------------------------------------------------------------------------------------------


def test_the_name_holds_what_is_given_and_nothing_chosen(folder):
    settings = recipe_settings("auto", str(folder))
    choosable = folder_options(settings)
    assert run_name(settings, choosable=choosable) == "photos-auto-seed0"
    assert run_name(settings.replace(network="timm/resnet18", epochs=7), choosable=choosable) == "photos-auto-seed0"
    same_as_recipe = run_name(settings, choosable=choosable, given={"epochs", "network"}, minutes=60)
    assert same_as_recipe == "photos-resnet18-auto-seed0-epochs=200-minutes=60"
    moco = recipe_settings("auto", str(folder), "moco")
    assert run_name(moco.replace(temperature=0.3), choosable=folder_options(moco)) == (
        "photos-auto-moco-seed0-temperature=0.3"
    )


# --- training ---------------------------------------------------------------------------------------------------------


def test_a_folder_trains_by_defaults_and_resumes_exactly(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    options = {"minutes": 0.02, "width": 4, "device": "cpu", "checkpoint_minutes": 0.0}
    assert not aag.train("photos", **options, should_stop=stop_after(3)).complete
    (run,) = Path("runs").iterdir()
    assert run.name == "photos-auto-seed0-width=4-minutes=0.02"
    epochs = aag.Run(run).settings()["train"]["epochs"]
    with monkeypatch.context() as patch:
        patch.setattr("aag.training.api.measure_speed", lambda *_, **__: pytest.fail("measured again"))
        patch.setattr("aag.training.defaults.survey", lambda *_: pytest.fail("surveyed again"))
        result = aag.train("photos", **options)
    assert result.complete
    assert result.run.folder == Path(run)
    settings = result.run.settings()
    assert settings["train"]["epochs"] == epochs
    assert (settings["data"]["image_size"], settings["train"]["batch_size"]) == (32, 8)
    whole = aag.train("photos", **options | {"out": "whole", "minutes": None, "epochs": epochs, "knn_every": 1})
    (tensors, _), (expected, _) = state(result.run), state(whole.run)
    assert all(torch.equal(value, expected[name]) for name, value in tensors.items())


def test_epochs_that_do_not_fit_into_the_minutes_are_told():
    assert epochs_reason(2.0, 1.64, minutes=1) == "fit into 1 minute, at 1.6 s each"
    assert epochs_reason(2.0, 183.0, minutes=60) == "fit into 60 minutes, at 3 min 03 s each"
    assert epochs_reason(2.0, 183.0, minutes=1) == "the minimum: one takes 3 min 03 s, more than 1 minute"


def test_minutes_choose_the_epochs_of_any_data(tmp_path, photographs):
    options = {"width": 4, "batch_size": 16, "device": "cpu", "out": tmp_path / "run"}
    result = aag.train(photographs[:48], minutes=0.02, **options)
    assert result.complete
    assert result.run.settings()["train"]["epochs"] >= 1
    with pytest.raises(AAGError, match="leave out --epochs or --minutes"):
        aag.train(photographs[:48], minutes=0.05, epochs=3, **options)
    with pytest.raises(AAGError, match="--minutes must be above 0"):
        aag.train(photographs[:48], minutes=0, **options)


def test_a_recipe_that_is_named_is_kept_for_a_folder(folder, tmp_path):
    options = {"epochs": 1, "width": 4, "batch_size": 8, "device": "cpu"}
    settings = aag.train(folder, recipe="paper", out=tmp_path / "run", **options).run.settings()
    assert settings["train"]["lr"] == 0.03
    assert settings["data"]["image_size"] == 32


# --- pretrained weights -----------------------------------------------------------------------------------------------


def test_training_starts_from_pretrained_weights_and_resumes_without_them(tmp_path, photographs):
    torch.manual_seed(3)
    donor = timm.create_model("test_resnet", pretrained=False)
    save_file(donor.state_dict(), tmp_path / "weights.safetensors")
    options = {
        "network": "test_resnet", "pretrained": str(tmp_path / "weights.safetensors"), "lr": 0.0, "epochs": 2,
        "batch_size": 16, "device": "cpu", "checkpoint_minutes": 0.0,
    }  # fmt: skip
    images = photographs[:32]
    whole = aag.train(images, out=tmp_path / "whole", **options)
    for name, parameter in whole.encoder.backbone.named_parameters():
        assert torch.equal(parameter, donor.get_parameter(name))
    assert whole.encoder.spec.mean == donor.pretrained_cfg["mean"] == (0.5, 0.5, 0.5)
    assert not aag.train(images, out=tmp_path / "run", **options, should_stop=stop_after(1)).complete
    (tmp_path / "weights.safetensors").unlink()
    assert_same(aag.train(images, out=tmp_path / "run", **options).run, whole.run)


def test_a_tag_is_never_trained_from_scratch(tmp_path, photographs, monkeypatch):
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *_, **__: 1 / 0)
    with pytest.raises(AAGError, match=r"cannot download the weights of resnet18\.a1_in1k"):
        aag.train(photographs[:32], network="resnet18.a1_in1k", out=tmp_path / "run", batch_size=16, device="cpu")
    assert not (tmp_path / "run").exists()
    with pytest.raises(AAGError, match="leave one out"):
        aag.train(photographs[:32], pretrained="timm", start_from="runs/x", out=tmp_path / "run")
