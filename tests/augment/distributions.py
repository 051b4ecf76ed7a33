"""Compare what augmentations draw with the expected probabilities."""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from aag.augment.ops import WITHOUT_MAGNITUDE as WITHOUT_MAGNITUDE

P_VALUE = 1e-3  # seeds are fixed, so a test that passes once always passes


def blank(count: int, height: int = 32, width: int = 32) -> Tensor:
    """Return black images that share one image's memory."""
    return torch.zeros(1, 3, height, width, dtype=torch.uint8).expand(count, -1, -1, -1)


def assert_distributed(counts: Counter, expected: dict) -> None:
    """Test counts against probabilities by χ²; rare outcomes are pooled, unexpected ones fail."""
    assert set(counts) <= {outcome for outcome, p in expected.items() if p > 0}
    total = sum(counts.values())
    common = [outcome for outcome, p in expected.items() if p * total >= 5]
    observed = [counts[outcome] for outcome in common]
    wanted = [expected[outcome] * total for outcome in common]
    if total - sum(wanted) > 1:
        observed.append(total - sum(observed))
        wanted.append(total - sum(wanted))
    scale = sum(observed) / sum(wanted)  # 1 but for rounding
    assert scale == pytest.approx(1, abs=1e-3)
    assert chisquare(observed, [w * scale for w in wanted]).pvalue > P_VALUE
