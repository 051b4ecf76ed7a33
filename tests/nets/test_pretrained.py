"""Weights that timm publishes, from files and for the right network."""

import logging
import pickle
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from aag import AAGError, nets
from aag.nets import EncoderSpec
from aag.nets.pretrained import load_pretrained, pretrained_normalisation

SPEC = EncoderSpec("timm/resnet18", image_size=64)


@pytest.fixture(scope="module")
def donor() -> nn.Module:
    torch.manual_seed(5)
    return timm.create_model("resnet18", pretrained=False)  # with a classifier of 1000 classes


def assert_loaded(backbone: nn.Module, donor: nn.Module) -> None:
    expected = donor.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize("kind", ["safetensors", "pth", "wrapped.bin"])
def test_weights_of_a_file_are_loaded_without_the_classifier(tmp_path, donor, kind):
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        save_file(donor.state_dict(), path)
    else:
        state = {f"module.{name}": value for name, value in donor.state_dict().items()}  # as DataParallel saves it
        torch.save({"state_dict": state, "epoch": 3} if "wrapped" in kind else donor.state_dict(), path)
    encoder = nets.build(SPEC)
    head = encoder.head.weight.clone()
    load_pretrained(encoder, str(path))
    assert_loaded(encoder.backbone, donor)
    assert torch.equal(encoder.head.weight, head)


def test_a_transformer_takes_weights_of_another_size(tmp_path):
    name = "vit_tiny_patch16_224"
    torch.manual_seed(1)
    vit = timm.create_model(name, pretrained=False)
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    encoder = nets.build(EncoderSpec(name, image_size=64))
    load_pretrained(encoder, str(tmp_path / "vit.safetensors"))
    assert torch.equal(encoder.backbone.blocks[3].mlp.fc1.weight, vit.blocks[3].mlp.fc1.weight)
    assert encoder.backbone.pos_embed.shape == (1, 1 + 4 * 4, 192)  # resampled from 14 × 14


def test_the_normalisation_is_that_of_the_weights():
    mean, std = pretrained_normalisation(SPEC, "timm")
    assert mean == pytest.approx((0.485, 0.456, 0.406))
    assert std == pytest.approx((0.229, 0.224, 0.225))
    inception = EncoderSpec("vit_tiny_patch16_224", image_size=224)
    assert pretrained_normalisation(inception, "file.pth")[0] == (0.5, 0.5, 0.5)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_files_that_do_not_fit_are_refused_in_one_line(tmp_path, donor):
    encoder = nets.build(SPEC)

    def refuse(path: object, message: str) -> None:
        with pytest.raises(AAGError, match=message) as caught:
            load_pretrained(encoder, str(path))
        assert "\n" not in str(caught.value)

    refuse(tmp_path / "none.pth", "no such file")
    (tmp_path / "weights.onnx").touch()
    refuse(tmp_path / "weights.onnx", "weight files end in")
    (tmp_path / "broken.safetensors").write_bytes(b"broken")
    refuse(tmp_path / "broken.safetensors", "damaged")
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil(tmp_path / "ran"), protocol=2))
    refuse(tmp_path / "evil.pth", "contains more than weights")
    assert not (tmp_path / "ran").exists()
    other = timm.create_model("resnet34", pretrained=False)
    save_file(other.state_dict(), tmp_path / "resnet34.safetensors")
    refuse(tmp_path / "resnet34.safetensors", r"do not fit resnet18: .*layer1\.2")
    part = {name: value for name, value in donor.state_dict().items() if not name.startswith("layer4")}
    save_file(part, tmp_path / "part.safetensors")
    refuse(tmp_path / "part.safetensors", "Missing key")
    nets.save(encoder, tmp_path / "encoder.safetensors")
    refuse(tmp_path / "encoder.safetensors", "start from it with --from")
    torch.save({f"backbone.{name}": value for name, value in donor.state_dict().items()}, tmp_path / "theirs.pth")
    refuse(tmp_path / "theirs.pth", r"else save backbone\.state_dict\(\) alone")
    torch.save({"epoch": 3}, tmp_path / "numbers.pth")
    refuse(tmp_path / "numbers.pth", "is not a state dict")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("resnet18", "an aag network for small images; use a timm network"),
        ("timm/resnet18+sobel", "a single timm network"),
        ("timm/resnet18-edges", "a single timm network"),
    ],
)
def test_networks_without_published_weights_are_refused(network, message):
    with pytest.raises(AAGError, match=message):
        load_pretrained(nets.build(EncoderSpec(network, image_size=64, width=4)), "timm")


def test_an_unknown_tag_is_refused():
    with pytest.raises(AAGError, match=r"unknown pretrained weights 'resnet18.a1_in2k'; did you mean resnet18.a1_in1k"):
        nets.build(EncoderSpec("resnet18.a1_in2k", image_size=64))


def test_weights_that_cannot_be_had_are_refused(monkeypatch, caplog):
    """Without a network connection, or where the Hub answers with an error."""
    import timm.models._builder as builder

    def offline(*_: object, **__: object) -> None:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s [Retry 4/5].")
        raise OSError("We couldn't connect to the Hub")

    monkeypatch.setattr(builder, "load_state_dict_from_hf", offline)
    encoder = nets.build(EncoderSpec("resnet18.a1_in1k", image_size=64))
    with pytest.raises(
        AAGError, match=r"cannot download the weights of resnet18.a1_in1k .*--pretrained FILE, or leave"
    ):
        load_pretrained(encoder, "timm")
    assert caplog.text == ""  # not a line per retry
