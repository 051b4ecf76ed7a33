import os
import tempfile
from functools import cache

# Before torch: test processes run side by side, and threads that wait for a busy core cost more than they bring. The
# environment is inherited by the commands that tests start; it also keeps training from choosing a number itself.
os.environ["OMP_NUM_THREADS"] = "1"
# Containers often set this. Without cached bytecode, each process that tests start compiles all of torch.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
import torch

torch.set_num_threads(1)

# Decoded images go to a folder of their own, not to the developer's cache. Data sets in AAG_DATA are used if it is set.
_cache = tempfile.TemporaryDirectory(prefix="aag-tests-", ignore_cleanup_errors=True)
os.environ["AAG_DATA"] = os.environ.get("AAG_DATA") or _cache.name


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
