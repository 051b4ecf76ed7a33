from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import SmallRuns


@pytest.fixture
def tiny(tmp_path: Path, photographs: torch.Tensor) -> SmallRuns:
    pixels = photographs.permute(0, 2, 3, 1).numpy()
    labels = np.arange(136) % 4
    np.savez(
        tmp_path / "tiny.npz",
        train_images=pixels[:96], train_labels=labels[:96], test_images=pixels[96:136], test_labels=labels[96:],
    )  # fmt: skip
    return SmallRuns(tmp_path, tmp_path / "tiny.npz")
