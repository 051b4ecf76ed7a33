from collections.abc import Callable
from pathlib import Path

import pytest
from shards import encoded, write_folder

from aag.errors import AAGError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set AAG_DATA to a folder that does not exist yet, and work in a folder without ./data."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("AAG_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def refused() -> Callable[..., str]:
    """Check that a call raises an AAGError of one line that contains the given words."""

    def check(call: Callable[[], object], *words: str) -> str:
        with pytest.raises(AAGError) as caught:
            call()
        line = str(caught.value)
        assert "\n" not in line
        for word in words:
            assert word in line, line
        return line

    return check


@pytest.fixture(scope="session")
def images() -> list[bytes]:
    """The content of image files."""
    return encoded(25)


@pytest.fixture
def folder(tmp_path, images, root):
    """The same images as a folder of files."""
    return write_folder(tmp_path / "folder", images)
