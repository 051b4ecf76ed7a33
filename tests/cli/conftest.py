from collections.abc import Callable
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
def make_npz(tmp_path_factory) -> Callable[[int, int], Path]:
    """Writes so many training and test photographs with labels."""

    def make(train: int, test: int) -> Path:
        photographs = aag.data.load("sample", split="test", limit=train + test).images
        pixels, labels = photographs.permute(0, 2, 3, 1).numpy(), np.arange(train + test) % 4
        path = tmp_path_factory.mktemp("data") / "tiny.npz"
        np.savez(
            path, train_images=pixels[:train], train_labels=labels[:train],
            test_images=pixels[train:], test_labels=labels[train:],
        )  # fmt: skip
        return path

    return make


@pytest.fixture(scope="module")
def npz(make_npz) -> Path:
    """96 + 40 photographs with labels."""
    return make_npz(96, 40)
