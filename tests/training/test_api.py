"""aag.train: images, methods and networks by name or as objects; starting from other weights; training longer."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from small_runs import DEFAULTS, losses, rows, state, stop_after
from torch import nn

import aag
from aag import AAGError
from aag.methods.simclr import SimCLR, SimCLRSettings
from aag.runs import Run, flatten
from aag.training import TrainResult, api


@pytest.fixture
def train(tmp_path, photographs):
    """Train on the same 96 photographs, given in whatever way."""

    def train(images: Any = None, out: str = "run", **changes: Any) -> TrainResult:
        options = DEFAULTS | {"epochs": 1, "batch_size": 48} | changes
        return aag.train(photographs[:96] if images is None else images, out=tmp_path / out, **options)

    return train


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_may_be_a_tensor_an_array_a_path_or_an_image_set(train, photographs, tmp_path):
    pixels = photographs[:96].permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "images.npz", images=pixels)
    ways = {
        "tensor": photographs[:96],
        "array": pixels,
        "path": tmp_path / "images.npz",
        "text": str(tmp_path / "images.npz"),
        "set": aag.ImageSet("images", photographs[:96]),
        "pair": (photographs[:96], photographs[96:100]),
    }
    found = {name: losses(train(images, name)) for name, images in ways.items()}
    assert all(each == found["tensor"] for each in found.values())
    assert Run(tmp_path / "tensor").settings()["data"] == {
        "source": "images",
        "image_size": 32,
        "resize_size": None,
        "holdout": None,
    }
    small = train(photographs[:96], "small", image_size=16)
    assert small.encoder.spec.image_size == small.run.settings()["data"]["image_size"] == 16


def test_a_labelled_pair_is_evaluated_by_knn(train, photographs):
    labels = torch.arange(60) % 2
    pair = tuple(
        aag.ImageSet("mine", photographs[rows], labels[: len(photographs[rows])], ("a", "b"), split=split)
        for rows, split in ((slice(60), "train"), (slice(60, 80), "test"))
    )
    result = train(pair, batch_size=32)
    assert result.summary.knn_untrained is not None
    assert result.summary.knn_last == result.summary.knn_best


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(8, 3, 16, 16), "give uint8 with values 0..255"),
        (torch.zeros(8, 3, 16, 16, dtype=torch.uint8).to_sparse(), "are torch.sparse_coo on cpu; give a dense tensor"),
        (torch.zeros(8, 3, 16, 16, dtype=torch.uint8, device="meta"), "are torch.strided on meta; give a dense tensor"),
        (torch.zeros(8, 16, 16, dtype=torch.uint8), r"expected \[N, C, H, W\]"),
        ([1, 2, 3], "expected an ImageSet.*; stack the images of a list or Dataset"),
        ("nowhere/images", "no such file or folder: nowhere/images"),
    ],
)
def test_other_images_are_refused(train, images, message, tmp_path):
    with pytest.raises(AAGError, match=message):
        train(images)
    assert not (tmp_path / "run").exists()


# --- networks and methods ---------------------------------------------------------------------------------------------


def test_a_network_that_is_not_built_is_refused(train):
    with pytest.raises(AAGError, match=r"network is a name or an nn.Module object, not <class"):
        train(network=MyBackbone)


class MyBackbone(nn.Module):
    """Any module from images to features."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm = nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images)).relu().mean(dim=(2, 3))


def test_a_backbone_of_ones_own_is_trained_saved_and_loaded(train, photographs):
    network = MyBackbone()
    before = network.conv.weight.clone()
    result = train(network=network, batch_size=16)
    assert result.complete
    assert result.encoder.backbone is network
    assert not torch.equal(network.conv.weight, before)
    assert result.run.settings()["encoder"]["network"] == "custom:MyBackbone"
    with pytest.raises(AAGError, match="pass backbone=MyBackbone"):
        aag.load(result.run.folder)
    encoder = aag.load(result.run.folder, backbone=MyBackbone())
    assert torch.equal(encoder.embed(photographs[:4]), result.encoder.embed(photographs[:4]))


def test_a_method_object_trains_as_its_name_does(train):
    named = train(out="named", method="simclr", temperature=0.3, optimizer="sgd")
    made = train(method=SimCLR(SimCLRSettings(temperature=0.3)), optimizer="sgd")
    by_class = train(out="class", method=SimCLR, temperature=0.3, optimizer="sgd")
    for result in (made, by_class):
        assert rows(result.run) == rows(named.run)
        assert result.run.settings() == named.run.settings()
    with pytest.raises(AAGError, match="set temperature there"):
        train(out="other", method=SimCLR(), temperature=0.3)
    with pytest.raises(AAGError, match="or a subclass of Method, not <class 'int'>"):
        train(out="other", method=int)


def test_a_class_of_ones_own_is_known_by_its_name(train):
    class Closer(SimCLR):
        """SimCLR without negatives: it collapses, and that is fine here."""

        def loss(self, embeddings, index):
            output = super().loss(embeddings, index)
            return output._replace(loss=1 - output.log[0] + 0 * output.loss)

    result = train(method=Closer())
    settings = result.run.settings()
    assert settings["method"]["name"] == "closer"
    assert settings["train"]["optimizer"] == "lars"  # the recipe of the method that it extends
    assert "simclr-closer" in result.run.name
    with pytest.raises(AAGError, match="unknown option of --method closer 'queue'"):
        train(out="other", method=Closer(), queue=3)


def test_lists_paths_and_devices_are_options_too(train, tmp_path):
    train(out="first")
    options = {"freeze": ["backbone.stem"], "start_from": tmp_path / "first", "device": torch.device("cpu")}
    settings = train(**options).run.settings()["train"]
    assert (settings["freeze"], settings["start_from"]) == (["backbone.stem"], str(tmp_path / "first"))
    with pytest.raises(AAGError, match="leave data= out"):
        train(data="cifar10")


# --- other weights to start from --------------------------------------------------------------------------------------


def test_a_run_starts_from_the_weights_of_another(train, tmp_path):
    first = train()
    weights = aag.load(first.run.folder).state_dict()
    for number, start in enumerate((first.run.folder, first.run.encoder_file)):
        frozen = train(out=f"frozen{number}", start_from=str(start), lr=0.0, method="isif", bn_group_size=0)
        parameters = dict(frozen.encoder.named_parameters())
        assert all(torch.equal(value, weights[name]) for name, value in parameters.items())
    assert state(frozen.run)[1]["settings"]["train"]["start_from"] == str(first.run.encoder_file)
    # A head of another size starts anew.
    smaller = train(out="smaller", start_from=str(first.run.folder), lr=0.0, embedding=8).encoder
    assert all(torch.equal(value, weights[f"backbone.{name}"]) for name, value in smaller.backbone.named_parameters())
    assert smaller.embedding_dim == 8


def test_a_head_that_fits_in_part_starts_anew(train):
    first = train(head="mlp", head_width=24)
    other = train(out="other", start_from=str(first.run.folder), lr=0.0, head="mlp", head_width=40).encoder
    last, first_last = (encoder.head[-1].weight for encoder in (other, first.encoder))
    assert last.shape == first_last.shape
    assert not torch.equal(last, first_last)


def test_a_backbone_of_ones_own_starts_from_weights_of_an_earlier_run(train):
    def make():
        return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16))

    net = make()
    net(torch.zeros(1, 3, 32, 32))
    first = train(out="mine", network=net)
    other = copy.deepcopy(net)
    nn.init.zeros_(other[0].weight)
    second = train(out="more", network=other, start_from=str(first.run.folder), lr=0.0)
    assert torch.equal(second.encoder.backbone[0].weight, first.encoder.backbone[0].weight)


def test_weights_that_do_not_fit_are_refused(train):
    first = train()
    with pytest.raises(AAGError, match=r"of resnet18 \(width 4\) and do not fit resnet18 \(width 8\)"):
        train(out="wide", start_from=str(first.run.folder), width=8)
    with pytest.raises(AAGError, match=r"\(width 4\) and do not fit timm/resnet10t; give the same network and size$"):
        train(out="timm", start_from=str(first.run.folder), network="timm/resnet10t")
    with pytest.raises(AAGError, match="no such file or folder: nowhere"):
        train(out="other", start_from="nowhere")


def test_a_run_resumes_without_the_weights_it_started_from(train):
    first = train()
    options = {"out": "second", "start_from": str(first.run.folder), "epochs": 2}
    assert not train(**options, should_stop=stop_after(1)).complete
    first.run.encoder_file.unlink()
    assert train(**options).complete


@pytest.mark.parametrize("encoder", ["whole", "missing", "damaged"])
def test_a_run_resumes_with_the_normalisation_of_its_pretrained_weights(train, tmp_path, monkeypatch, encoder):
    weights = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_resnet", pretrained=False).state_dict(), weights)
    options = {"network": "test_resnet", "pretrained": weights, "batch_size": 16}
    stopped = train(**options, should_stop=stop_after(1))
    assert not stopped.complete
    weights.unlink()
    if encoder == "whole":  # its header is enough
        monkeypatch.setattr(api, "Checkpoints", lambda run: pytest.fail("read a checkpoint"))
    elif encoder == "missing":
        stopped.run.encoder_file.unlink()
    else:
        stopped.run.encoder_file.write_bytes(b"damaged")
    resumed = train(**options)
    assert resumed.complete
    assert (resumed.encoder.spec.mean, resumed.encoder.spec.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


# --- the identity of a run --------------------------------------------------------------------------------------------


def test_a_run_with_a_constant_rate_trains_longer_as_if_it_always_had(train):
    options = {"schedule": "constant", "batch_size": 16}
    whole = train(out="whole", epochs=3, **options)
    train(epochs=1, **options)
    longer = train(epochs=3, **options)
    assert longer.complete
    assert longer.run.settings()["train"]["epochs"] == 3
    (tensors, _), (expected, _) = state(longer.run), state(whole.run)
    assert all(torch.equal(value, expected[name]) for name, value in tensors.items())
    assert losses(longer) == losses(whole)
    with pytest.raises(AAGError, match=r"\(epochs 3 there, 2 here\); choose another --out$"):
        train(epochs=2, **options)


def test_a_run_whose_rate_depends_on_its_epochs_does_not_and_says_what_to_do(train, tmp_path):
    first = train(epochs=1)
    with pytest.raises(AAGError, match=r"epochs 1 there, 2 here.*cannot be extended; .* use --from .*run with another"):
        train(epochs=2)
    assert first.run.settings()["train"]["epochs"] == 1
    assert train(out="more", epochs=2, start_from=str(tmp_path / "run")).complete


def test_precision_is_resolved_and_part_of_the_identity(train):
    result = train()
    config = json.loads(result.run.config_file.read_text())
    assert config["train"]["precision"] == "fp32"
    assert train(precision="fp32").complete  # what auto stands for here: the same run
    config["train"]["precision"] = "bf16"
    result.run.config_file.write_text(json.dumps(config))
    with pytest.raises(AAGError, match="precision bf16 there, fp32 here"):
        train()


def test_automatic_values_are_resolved_before_they_are_compared(train):
    result = train()
    assert "auto" not in flatten(result.run.settings()).values()
    assert result.run.settings()["train"]["warmup_epochs"] == 0
    assert train(head="linear", policy="cifar10", auxiliary_crop="resized", warmup_epochs=0).complete
    with pytest.raises(AAGError, match="head linear there, mlp here"):
        train(head="mlp")


def test_the_folder_is_checked_before_the_images_are_loaded(train, tmp_path, monkeypatch):
    train()
    monkeypatch.setattr(aag.data, "load_pair", lambda *_, **__: pytest.fail("images were loaded"))
    with pytest.raises(AAGError, match="holds a run with other settings"):
        train("sample")


def test_options_that_have_no_effect_are_refused(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AAGError, match="--nesterov has no effect with --optimizer lars"):
        train(optimizer="lars", nesterov=True)
    with pytest.raises(AAGError, match="--decay-by has no effect with --schedule cosine"):
        train(decay_by=0.5)
    with pytest.raises(AAGError, match="unknown option of --method aag 'clusters'"):
        train(clusters=5)
    assert not Path("runs").exists()


def test_views_may_be_smaller_than_the_stored_images(tmp_path):
    options = {"width": 4, "epochs": 1, "batch_size": 16, "device": "cpu"}
    images = torch.randint(0, 256, (40, 3, 36, 36), dtype=torch.uint8)
    result = aag.train(images, image_size=32, resize_size=36, out=tmp_path / "run", **options)
    spec = result.encoder.spec
    assert (spec.image_size, spec.resize_size) == (32, 36)
    assert torch.equal(result.encoder.embed(images), result.encoder.embed(images[:, :, 2:34, 2:34].contiguous()))
    assert aag.load(result.run.folder).spec == spec
    assert aag.train(images, image_size=32, resize_size=36, out=tmp_path / "run", **options).complete  # resumes
    with pytest.raises(AAGError, match="--resize-size 36 needs the --image-size"):
        aag.train(images, resize_size=36, out=tmp_path / "other", **options)
    with pytest.raises(AAGError, match="--resize-size 30 is smaller"):
        aag.train(images, image_size=32, resize_size=30, out=tmp_path / "other", **options)
