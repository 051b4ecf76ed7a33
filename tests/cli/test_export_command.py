"""aag export"""

import json
from pathlib import Path

import pytest
import torch
from commands import aag_, refused

from aag.nets import EncoderSpec, build, save


@pytest.fixture
def model() -> Path:
    save(build(EncoderSpec("resnet18", width=4)), "encoder.safetensors")
    return Path("encoder.safetensors")


def test_export_writes_checks_and_says_how_to_load(model):
    ran = aag_("export", model, "--format", "torchscript", "-o", "out/e.pt")
    assert ran.code == 0
    assert "written out/e.pt" in ran.words
    assert "largest difference from the encoder: features 0.0e+00" in ran.words
    assert 'torch.jit.load("out/e.pt")' in ran.out
    assert torch.jit.load("out/e.pt")(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))[1].shape == (2, 128)


def test_json_is_alone_on_stdout(model):
    ran = aag_("export", model, "--format", "safetensors", "--json")
    assert [Path(row["file"]).name for row in json.loads(ran.out)] == ["encoder.safetensors", "load_encoder.py"]
    assert Path("export/load_encoder.py").exists()


def test_mistakes_are_one_line(model):
    assert "no such file or folder: nothing" in refused("export", "nothing")
    assert "--format takes one of onnx" in refused("export", model, "--format", "coreml")
    assert "use --format hub" in refused("export", model, "--format", "onnx", "--push", "me/mine")
    Path("text.safetensors").write_text("no tensors")
    assert "is not a safetensors file, or is damaged" in refused("export", "text.safetensors")
    Path("empty").mkdir()
    assert "not a run folder" in refused("export", "empty")
