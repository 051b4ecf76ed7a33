from functools import cache

import pytest
import torch

# Test processes run side by side, and threads that wait for a core held by another cost more than they bring.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same weights whichever tests ran before: narrow networks now and then start with a dead unit."""
    torch.manual_seed(0)


@cache
def _photographs() -> torch.Tensor:
    from aag import data

    return data.load("sample", split="test").images


@pytest.fixture
def photographs() -> torch.Tensor:
    """Real colour photographs, uint8 [1000, 3, 32, 32]."""
    return _photographs()
