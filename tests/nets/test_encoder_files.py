"""Encoders on disk."""

import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import aag
from aag.errors import AAGError
from aag.nets import EncoderSpec, build, load, save

SPEC = EncoderSpec("resnet18", width=8, embedding=16, head="mlp", mean=(0.5, 0.5, 0.5))


@pytest.fixture
def encoder():
    encoder = build(SPEC, seed=2).to(memory_format=torch.channels_last)
    encoder(torch.rand(8, 3, 16, 16))  # changes the running statistics
    return encoder


def test_round_trip_is_bit_exact(encoder, tmp_path):
    save(encoder, tmp_path / "encoder.safetensors", {"epoch": "200"})
    for path in (tmp_path, str(tmp_path / "encoder.safetensors")):
        again = aag.load(path)
        assert again.spec == SPEC
        assert not again.training
        assert again.state_dict().keys() == encoder.state_dict().keys()
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in encoder.state_dict().items())
        images = torch.rand(3, 3, 32, 32)
        assert torch.equal(again.embed(images), encoder.embed(images))
    with safe_open(tmp_path / "encoder.safetensors", framework="pt") as file:
        assert file.metadata()["epoch"] == "200"


def test_loading_draws_no_random_numbers(encoder, tmp_path):
    save(encoder, tmp_path / "e.safetensors")
    state = torch.get_rng_state()
    load(tmp_path / "e.safetensors")
    assert torch.equal(torch.get_rng_state(), state)


def test_saving_again_replaces_and_leaves_nothing_else(encoder, tmp_path):
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(b"old")
    save(encoder, path)
    assert os.listdir(tmp_path) == ["encoder.safetensors"]
    load(path)


def test_a_failed_save_keeps_the_old_file(encoder, tmp_path, monkeypatch):
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AAGError, match=r"cannot write .*No space left on device"):
        save(encoder, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["encoder.safetensors"]


def test_saving_into_a_missing_folder(encoder, tmp_path):
    with pytest.raises(AAGError, match=r"cannot write .*No such file or directory"):
        save(encoder, tmp_path / "nowhere" / "encoder.safetensors")


def test_files_that_cannot_be_loaded_give_one_line(encoder, tmp_path):
    whole = tmp_path / "whole.safetensors"
    save(encoder, whole)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:-100])
    random_bytes = tmp_path / "random.safetensors"
    random_bytes.write_bytes(b"\xff" * 64)
    empty = tmp_path / "empty.safetensors"
    empty.touch()
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign)
    misfit = tmp_path / "misfit.safetensors"
    save_file({"weight": torch.zeros(3)}, misfit, metadata={"spec": SPEC.to_json()})
    newer = tmp_path / "newer.safetensors"
    save_file({"weight": torch.zeros(3)}, newer, metadata={"spec": '{"from_the_future": 1}'})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    folder = tmp_path / "run"
    folder.mkdir()
    for path, line in [
        (tmp_path / "nowhere", "no such file or folder"),
        (folder, "no encoder.safetensors in "),
        (cut, "is not a safetensors file, or is damaged"),
        (random_bytes, "is not a safetensors file, or is damaged"),
        (empty, "is not a safetensors file, or is damaged"),
        (foreign, "holds no AAG encoder"),
        (misfit, "do not fit the resnet18"),
        (newer, r"cannot use .*newer\.safetensors: unknown fields .*update aag"),
        (pipe, "no regular file"),
    ]:
        with pytest.raises(AAGError, match=line) as caught:
            load(path)
        assert "\n" not in str(caught.value)


def test_a_device_that_does_not_exist(encoder, tmp_path):
    save(encoder, tmp_path / "e.safetensors")
    with pytest.raises(AAGError, match="cannot use device 'cuda:99'"):
        load(tmp_path / "e.safetensors", device="cuda:99")


def test_a_custom_encoder_needs_its_backbone(encoder, tmp_path):
    def backbone(features: int = 4) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, features, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    path, images = tmp_path / "encoder.safetensors", torch.rand(2, 3, 32, 32)
    mine = build(EncoderSpec(embedding=8), backbone=backbone())
    save(mine, path)
    with pytest.raises(AAGError, match=r"your own backbone Sequential; pass backbone=Sequential\(\.\.\.\)"):
        load(path)
    with pytest.raises(AAGError, match="do not fit the custom:Sequential"):
        load(path, backbone=backbone(5))
    again = load(path, backbone=backbone())
    assert again.spec == mine.spec
    assert torch.equal(again.embed(images), mine.embed(images))
    save(encoder, path)
    with pytest.raises(AAGError, match="holds a resnet18, which needs no backbone="):
        load(path, backbone=backbone())
