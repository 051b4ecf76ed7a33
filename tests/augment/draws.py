"""Looking at what augmentations draw, and how often."""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

CHANCE = 1e-3  # the seeds are fixed, so a test that passes once always does
PLAIN = {"Identity", "AutoContrast", "Equalize", "Invert"}  # operations without a magnitude


def blank(count: int, height: int = 32, width: int = 32) -> Tensor:
    """Images that take no memory: for looking at draws."""
    return torch.zeros(1, 3, height, width, dtype=torch.uint8).expand(count, -1, -1, -1)


def assert_distributed(counts: Counter, expected: dict) -> None:
    """A χ² test of counts against probabilities; the rare outcomes are taken together, others may not occur."""
    assert set(counts) <= {outcome for outcome, p in expected.items() if p > 0}
    total = sum(counts.values())
    often = [outcome for outcome, p in expected.items() if p * total >= 5]
    observed = [counts[outcome] for outcome in often]
    wanted = [expected[outcome] * total for outcome in often]
    if total - sum(wanted) > 1:
        observed.append(total - sum(observed))
        wanted.append(total - sum(wanted))
    scale = sum(observed) / sum(wanted)  # 1 but for rounding
    assert scale == pytest.approx(1, abs=1e-3)
    assert chisquare(observed, [w * scale for w in wanted]).pvalue > CHANCE
