from pathlib import Path

import pytest
from PIL import Image

from aag import data, nets
from aag.serving.embedder import Embedder

CLASSES = ("cats", "dogs")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AAG_DATA", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder in a file."""
    path = tmp_path_factory.mktemp("model") / "encoder.safetensors"
    nets.save(nets.build(nets.EncoderSpec(width=4, embedding=16), seed=3), path)
    return path


@pytest.fixture(scope="session")
def embedder(model: Path) -> Embedder:
    return Embedder(model, device="cpu")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty real photographs of 32×32 pixels in two class folders."""
    folder = tmp_path_factory.mktemp("photos")
    for i, image in enumerate(data.load("sample", split="test", limit=50).images):
        path = folder / CLASSES[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder
