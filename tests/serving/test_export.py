"""Encoders in other formats: they load without aag, for any batch, and give the encoder's numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn

import aag
from aag.data.decode import decode
from aag.errors import AAGError
from aag.nets import EncoderSpec, build, save
from aag.serving import export_check, export_encoder, push_to_hub
from aag.serving.export_check import check_outputs
from aag.serving.formats import ExportedEncoder

OWN = [
    EncoderSpec("resnet18", width=4), EncoderSpec("resnet18", width=4, image_size=24, resize_size=28, head="none"),
    EncoderSpec("resnet50", width=4), EncoderSpec("alexnet", image_size=16),
    EncoderSpec("alexnet-ip", head="mlp", image_size=16), EncoderSpec("amdim", width=2, depth=2),
    EncoderSpec("resnet18-edges", width=4), EncoderSpec("resnet18+sobel", width=4),
]  # fmt: skip
TIMM = [
    EncoderSpec("test_vit", image_size=64),
    EncoderSpec("test_convnext.r160_in1k", image_size=64, resize_size=72, head="mlp", head_width=40),
    EncoderSpec("timm/test_efficientnet", head="none", image_size=64, mean=(0.5,), std=(0.2,)),
]  # fmt: skip


def name_of(spec: EncoderSpec) -> str:
    return f"{spec.network}-{spec.head}"


def make(spec: EncoderSpec) -> aag.nets.Encoder:
    """An encoder whose batch norms have seen images."""
    encoder = build(spec)
    with torch.no_grad():
        encoder(torch.rand(8, spec.channels, spec.image_size, spec.image_size))
    return encoder.eval()


def some_images(spec: EncoderSpec, count: int = 5) -> torch.Tensor:
    return torch.randint(0, 256, (count, spec.channels, spec.image_size, spec.image_size), dtype=torch.uint8)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("spec", OWN + TIMM, ids=name_of)
def test_torchscript_needs_torch_alone_and_takes_any_batch(spec, tmp_path):
    encoder = make(spec)
    made = export_encoder(encoder, "torchscript", tmp_path / "encoder.pt")
    assert os.listdir(tmp_path) == ["encoder.pt"]
    model = torch.jit.load(made.path)
    for count in (1, 2, 7):
        images = some_images(spec, count)
        for ours, theirs in zip(encoder.encode(images), model(images), strict=True):
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", [OWN[0], TIMM[0]], ids=name_of)
def test_onnx_gives_the_same_numbers_for_any_batch(spec, tmp_path, capfd):
    check_onnx(spec, tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("spec", OWN[1:] + TIMM[1:], ids=name_of)
def test_onnx_of_the_other_networks(spec, tmp_path):
    check_onnx(spec, tmp_path)


def check_onnx(spec, folder):
    onnxruntime = pytest.importorskip("onnxruntime")
    encoder = make(spec)
    made = export_encoder(encoder, "onnx", folder / "encoder.onnx")
    assert os.listdir(folder) == ["encoder.onnx"]  # weights inside
    assert max(made.difference.values()) < 1e-4
    session = onnxruntime.InferenceSession(made.path)
    assert [each.name for each in session.get_outputs()] == ["features", "embedding"]
    assert json.loads(session.get_modelmeta().custom_metadata_map["spec"])["network"] == spec.network
    for count in (1, 2, 7):
        images = some_images(spec, count)
        for ours, theirs in zip(encoder.encode(images), session.run(None, {"images": images.numpy()}), strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-4)


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("aag.serving.formats.find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(AAGError, match=r"needs onnxscript; .*pip install onnx onnxruntime onnxscript"):
        export_encoder(make(OWN[0]), "onnx", tmp_path / "e.onnx")
    assert os.listdir(tmp_path) == []


WITHOUT_AAG = """
import runpy, sys, torch
sys.modules["aag"] = None  # importing it fails
for folder in sys.argv[1:]:
    loader = runpy.run_path(f"{folder}/load_encoder.py")
    encoder = loader["load_encoder"]()
    with torch.no_grad():
        outputs = encoder(torch.load(f"{folder}/images.pt"))
    photos = [loader["read_image"](name, encoder) for name in ("photo.png", "photo.jpg")]
    torch.save((*outputs, photos), f"{folder}/outputs.pt")
"""


def test_plain_torch_loads_every_encoder_without_aag(tmp_path):
    """In a process where importing aag fails; also an image file gets the pixels that aag gives it."""
    Image.fromarray(torch.randint(0, 256, (90, 70, 3), dtype=torch.uint8).numpy()).save(tmp_path / "photo.png")
    large = torch.randint(0, 256, (800, 1000, 3), dtype=torch.uint8)  # aag decodes it at a fraction of its size
    Image.fromarray(large.numpy()).save(tmp_path / "photo.jpg")
    encoders = {f"encoder {number}": make(spec) for number, spec in enumerate(OWN + TIMM)}
    for name, encoder in encoders.items():
        made = export_encoder(encoder, "safetensors", tmp_path / name / "my encoder.safetensors")
        assert sorted(path.name for path in made.files) == ["load_encoder.py", "my encoder.safetensors"]
        images = some_images(encoder.spec)
        torch.save(images, tmp_path / name / "images.pt")
        assert torch.equal(aag.load(made.path).embed(images), encoder.embed(images))  # aag reads it, too
    environment = os.environ | {"PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", WITHOUT_AAG, *encoders], cwd=tmp_path, check=True, env=environment)
    for name, encoder in encoders.items():
        spec = encoder.spec
        *found, photos = torch.load(tmp_path / name / "outputs.pt")
        for ours, theirs in zip(encoder.encode(torch.load(tmp_path / name / "images.pt")), found, strict=True):
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
        start = (spec.source_size - spec.image_size) // 2
        centre = slice(start, start + spec.image_size)
        for file, photo in zip(("photo.png", "photo.jpg"), photos, strict=True):
            whole = torch.from_numpy(decode(tmp_path / file, spec.source_size).copy()).permute(2, 0, 1)
            assert torch.equal(photo, whole[:, centre, centre])


def test_the_loader_shows_only_what_its_network_needs(tmp_path):
    export_encoder(make(OWN[0]), "safetensors", tmp_path / "e.safetensors")
    source = (tmp_path / "load_encoder.py").read_text()
    assert "class ResNet" in source
    assert not {"sobel", "AlexNet", "timm", "only:"} & set(source.replace("(", " ").split())
    assert len(source.splitlines()) < 140


@pytest.mark.parametrize("spec", TIMM, ids=name_of)
def test_timm_loads_its_backbone_from_the_file(spec, tmp_path):
    import timm

    encoder = make(spec)
    made = export_encoder(encoder, "timm", tmp_path / "w.safetensors")
    namespace: dict = {}
    images = some_images(spec)
    code = made.usage.rpartition("\n")[0]  # without the line that applies it
    exec(code, namespace)
    with torch.no_grad():
        features = namespace["model"](encoder.normalise(images))
    torch.testing.assert_close(features, encoder.features(images), atol=1e-5, rtol=1e-5)
    assert timm.is_model(spec.network.removeprefix("timm/"))


@pytest.mark.parametrize("spec", [OWN[0], OWN[6]], ids=name_of)
def test_timm_does_not_know_our_networks(spec, tmp_path):
    with pytest.raises(AAGError, match=r"not one of timm's networks; use --format safetensors, onnx or torchscript"):
        export_encoder(make(spec), "timm", tmp_path / "w.safetensors")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("spec", [OWN[0], *TIMM], ids=name_of)
def test_a_hub_folder_is_complete(spec, tmp_path):
    encoder = make(spec)
    made = export_encoder(encoder, "hub", tmp_path / "hub")
    names = {path.name for path in made.files}
    assert {"README.md", "config.json", "load_encoder.py", "model.safetensors"} <= names
    images = some_images(spec)
    if spec in TIMM:
        import timm

        model = timm.create_model(f"local-dir:{made.path}", pretrained=True).eval()
        with torch.no_grad():
            features = model(encoder.normalise(images))
        torch.testing.assert_close(features, encoder.features(images), atol=1e-5, rtol=1e-5)
        assert timm.data.resolve_model_data_config(model)["mean"] == list(spec.mean)
    with torch.no_grad():
        _, embedding = export_check.load_source(made.path / "load_encoder.py")(images)
    torch.testing.assert_close(embedding, encoder.embed(images), atol=1e-5, rtol=1e-5)


def test_a_wrong_export_is_refused_and_leaves_nothing(monkeypatch, tmp_path):
    """The exported file computes something else: the old file stays as it was."""
    path = tmp_path / "encoder.pt"
    path.write_bytes(b"old")
    monkeypatch.setattr(
        ExportedEncoder, "forward", lambda self, images: tuple(1.1 * each for each in self.encoder(images))
    )
    with pytest.raises(AAGError, match=r"resnet18 as torchscript differs from PyTorch by .* nothing is written"):
        export_encoder(make(OWN[0]), "torchscript", path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["encoder.pt"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of file sizes")
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("format", ["torchscript", "safetensors"])
def test_a_full_disk_is_one_line_and_leaves_nothing(format, tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(AAGError, match=r"cannot write .*File too large"):
            export_encoder(make(OWN[0]), format, tmp_path / "encoder.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_the_check_sees_a_batch_of_another_size():
    encoder = make(OWN[0])
    with pytest.raises(AAGError, match=r"batch of 3"):
        check_outputs(encoder, lambda images: tuple(each[:1] for each in encoder.encode(images)), "onnx")


def test_the_callers_encoder_and_random_state_stay_as_they_were(tmp_path):
    encoder = make(EncoderSpec("resnet18", width=4, bn_group_size=4)).train()
    state = torch.get_rng_state()
    export_encoder(encoder, "torchscript", tmp_path / "e.pt")
    assert encoder.training
    assert encoder.spec.bn_group_size == 4
    assert torch.equal(torch.get_rng_state(), state)


def test_an_own_backbone_can_be_traced_but_not_written_as_source(tmp_path):
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    encoder = build(EncoderSpec(), backbone=backbone).eval()
    export_encoder(encoder, "torchscript", tmp_path / "e.pt")
    with pytest.raises(AAGError, match=r"code of your backbone .* use --format onnx or torchscript"):
        export_encoder(encoder, "safetensors", tmp_path / "e.safetensors")


def test_files_go_next_to_the_encoder_by_default(tmp_path):
    save(make(OWN[0]), tmp_path / "encoder.safetensors", {"epoch": "7"})
    made = export_encoder(tmp_path, "safetensors")
    assert made.path == tmp_path / "export" / "encoder.safetensors"
    with safe_open(made.path, framework="pt") as file:
        assert file.metadata()["epoch"] == "7"
    with pytest.raises(AAGError, match="is the encoder itself"):
        export_encoder(tmp_path, "safetensors", tmp_path)


@pytest.mark.parametrize(
    ("format", "out", "message"),
    [
        ("coreml", "x", "unknown format 'coreml'"),
        ("hub", "file", "is a file; --format hub writes a folder"),
        ("onnx", None, "give out=PATH"),
        ("torchscript", "file/e.pt", "cannot write"),
    ],
)
def test_mistakes(format, out, message, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AAGError, match=message):
        export_encoder(make(OWN[0]), format, out and tmp_path / out)


def test_names_with_quotes_stay_inside_their_strings(tmp_path):
    path = tmp_path / "a'\"\\.safetensors"
    export_encoder(make(OWN[0]), "safetensors", path)
    assert path.exists()


def test_pushing_without_a_network_says_so_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "README.md").write_text("x")
    with pytest.raises(AAGError, match=r"cannot push to me/mine: .*; the folder .* is complete") as error:
        push_to_hub(Path(tmp_path), "me/mine")
    assert "\n" not in str(error.value)
