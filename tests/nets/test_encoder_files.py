"""Encoders on disk."""

import json
import os
import random
import resource

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
        (cut, "is damaged: its checksum is wrong"),
        (random_bytes, "is not a safetensors file, or is damaged"),
        (empty, "is not a safetensors file, or is damaged"),
        (foreign, "holds no AAG encoder"),
        (misfit, "do not fit the resnet18"),
        (newer, r"cannot use .*newer\.safetensors: unknown fields .*update aag"),
        (pipe, "not a regular file"),
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


# --- damaged and hostile files ----------------------------------------------------------------------------------------


def test_flipped_bits_do_not_load(encoder, tmp_path):
    path = tmp_path / "encoder.safetensors"
    save(encoder, path, {"epoch": "3"})
    content = path.read_bytes()
    draw = random.Random(0)
    name = content.index(b"sha256")
    for place in [0, 3, 8, 20, name, name + 5, *(draw.randrange(len(content)) for _ in range(40)), len(content) - 1]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :])
        with pytest.raises(AAGError) as caught:
            load(path)
        assert "\n" not in str(caught.value)


def test_a_file_without_a_hash_loads(encoder, tmp_path):
    """As older versions and other programs write them."""
    path = tmp_path / "old.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    save_file(tensors, path, metadata={"spec": SPEC.to_json(), "epoch": "4"})
    assert load(path).extra == {"epoch": "4"}


def test_the_same_encoder_gives_the_same_bytes(encoder, tmp_path):
    extra = {name: name for name in ("epoch", "settings", "b", "a", "d", "c")}
    for name, entries in (("one", extra), ("two", dict(reversed(extra.items())))):
        save(encoder, tmp_path / name, entries)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 2000},
        {"width": 10**12},
        {"width": 10**30},
        {"embedding": 10**9},
        {"network": "resnet50", "width": 4000},
        {"network": "alexnet", "width": None, "image_size": 100_000},
        {"mean": [0.5] * 1000, "std": [0.5] * 1000},
    ],
)
def test_a_small_file_that_claims_a_large_network_allocates_nothing(tmp_path, changes):
    path = tmp_path / "encoder.safetensors"
    spec = {**json.loads(SPEC.to_json()), **changes}
    save_file({"weight": torch.zeros(1)}, path, metadata={"spec": json.dumps(spec)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AAGError, match=r"do not fit the|takes images of 3 channels|must be a number below"):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize(
    "spec",
    [
        "", "3", "[]", "{" * 100_000, "[" * 100_000, '{"width": "8"}', '{"width": null, "network": 3}', '{"head": []}',
        '{"width": -1' + "0" * 400 + "}", '{"width": 1e400}', '{"mean": 3}', '{"mean": "123"}', '{"mean": {"1": 2}}',
        '{"mean": [1' + "0" * 400 + ', 1, 1]}', '{"std": [0, 1, 1]}', '{"image_size": true}', '{"network": ""}',
        '{"network": "custom:"}', '{"resize_size": 1}', '{"netwrok": "resnet18"}', '{"std": null}', "null", "{",
        '{"embedding": [128]}', "[[1, 2]]",
    ],
)  # fmt: skip
def test_specs_of_wrong_types_give_one_line(tmp_path, spec):
    path = tmp_path / "encoder.safetensors"
    save_file({"weight": torch.zeros(1)}, path, metadata={"spec": spec})
    with pytest.raises(AAGError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_headers_of_wrong_types_give_one_line(tmp_path):
    path = tmp_path / "encoder.safetensors"
    for header in (
        b"[]", b"3", b"null", b'"x"', b"{" * 5000, b'{"a": 3}', b'{"a": {"shape": 3}}', b'{"a": {"shape": ["x"]}}',
        b'{"__metadata__": 3}', b'{"__metadata__": {"spec": 3}}', b'{"a": {"shape": [1], "dtype": 3}}', b"\xff",
    ):  # fmt: skip
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(AAGError, match=r"is damaged|holds no AAG encoder"):
            load(path)
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(AAGError, match="is damaged"):
        load(path)


def test_a_file_that_cannot_be_read_is_not_told_as_missing(encoder, tmp_path, monkeypatch):
    save(encoder, tmp_path / "encoder.safetensors")

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    for name in ("open", "lstat"):  # the file, and then the folder too
        monkeypatch.setattr(os, name, denied)
        with pytest.raises(AAGError, match=r"cannot read .*encoder\.safetensors: Permission denied"):
            load(tmp_path)
