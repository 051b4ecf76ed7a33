from functools import cache

import pytest
import torch


@cache
def _photographs() -> torch.Tensor:
    from aag import data

    return data.load("sample", split="test").images


@pytest.fixture
def photographs() -> torch.Tensor:
    """Real colour photographs, uint8 [1000, 3, 32, 32]."""
    return _photographs()
