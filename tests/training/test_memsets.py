"""When memsets of a CUDA graph are replaced. That the replaced graph computes the same is tested on a GPU."""

import logging

import pytest
import torch

from aag.training import memsets


@pytest.mark.parametrize(
    ("torch_version", "driver", "override", "reason"),
    [
        ("2.11.0+cu130", 13000, None, ""),
        ("2.11.1", 13020, "", ""),
        ("2.12.0", 13000, None, "not tested with torch 2.12 and CUDA driver 13"),
        ("2.11.0", 12080, None, "not tested with torch 2.11 and CUDA driver 12"),
        ("2.12.0a0+git", 14000, "1", ""),
        ("2.11.0", 13000, "0", "AAG_REPLACE_MEMSETS is 0"),
        ("2.11.0", 13000, "yes", "AAG_REPLACE_MEMSETS must be 0 or 1, not 'yes'"),
        ("2.11.0", None, None, "no CUDA driver library"),
        ("2.11.0", None, "1", "no CUDA driver library"),
    ],
)
def test_memsets_are_replaced_only_where_tested(
    torch_version: str, driver: int | None, override: str | None, reason: str
) -> None:
    found = memsets.unavailable_reason(torch_version, driver, override)
    assert reason in found
    assert bool(reason) == bool(found)


def test_turned_off_it_leaves_the_graph_alone_and_logs_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(memsets.REPLACE_MEMSETS_VARIABLE, "0")
    memsets._tested_driver.cache_clear()
    with caplog.at_level(logging.INFO, "aag.training"):
        for _ in range(2):
            assert memsets.replace_memsets(None, torch.zeros(1)) == 0  # type: ignore[arg-type]
    memsets._tested_driver.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "memsets stay in the CUDA graph, about 3 % slower: AAG_REPLACE_MEMSETS is 0"
    ]
