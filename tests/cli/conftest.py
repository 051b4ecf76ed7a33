from pathlib import Path

import numpy as np
import pytest

import aag


@pytest.fixture(autouse=True)
def _fresh_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, no data sets, and a terminal of a known width without colours."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("AAG_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def npz(tmp_path_factory) -> Path:
    """96 + 40 photographs with labels."""
    pixels = aag.data.load("sample", split="test", limit=136).images.permute(0, 2, 3, 1).numpy()
    labels = np.arange(136) % 4
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, train_images=pixels[:96], train_labels=labels[:96], test_images=pixels[96:], test_labels=labels[96:])
    return path
