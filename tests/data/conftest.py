from collections.abc import Callable
from pathlib import Path

import pytest

from aag.errors import AAGError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for data sets, and a working folder without a ./data of its own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("AAG_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def refused() -> Callable[..., str]:
    """Call something that must fail as a user's mistake: one line that names each of the given words."""

    def check(call: Callable[[], object], *words: str) -> str:
        with pytest.raises(AAGError) as caught:
            call()
        line = str(caught.value)
        assert "\n" not in line
        for word in words:
            assert word in line, line
        return line

    return check
