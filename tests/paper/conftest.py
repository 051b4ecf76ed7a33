from pathlib import Path

import pytest

from synthetic import every_kind


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with every kind of record; read only."""
    return every_kind(tmp_path_factory.mktemp("site") / "results")


@pytest.fixture(scope="session")
def page(folder: Path) -> Path:
    """The page of those records, with its Markdown in docs/reproduction.md next to it."""
    from aag.paper.page import write_pages

    out = folder.parent / "reproduce.html"
    write_pages(folder, out, folder.parent / "docs" / "reproduction.md")
    return out
