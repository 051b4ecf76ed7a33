from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aag.config import TrainConfig


@pytest.fixture
def tiny(tmp_path: Path, photographs: torch.Tensor) -> TrainConfig:
    """A run of seconds: 96 + 40 photographs, a very narrow ResNet-18, 2 epochs of 6 steps."""
    pixels = photographs.permute(0, 2, 3, 1).numpy()
    labels = np.arange(136) % 4
    np.savez(
        tmp_path / "tiny.npz",
        train_images=pixels[:96], train_labels=labels[:96], test_images=pixels[96:136], test_labels=labels[96:],
    )  # fmt: skip
    config = TrainConfig(data=str(tmp_path / "tiny.npz"), out=tmp_path / "run", device="cpu")
    return replace(config, network="resnet18", width=4, epochs=2, batch_size=16, knn_every=1, checkpoint_minutes=0)
