"""The decoded folders in the cache folder: where they are, and how to delete them."""

import shutil
from contextlib import suppress
from pathlib import Path

from aag.data.datasets import data_root


def store_root(root: str | Path | None = None) -> Path:
    """Return the folder of the decoded folders; see `aag.data.store`."""
    return data_root(root) / "images"


def list_stores(root: str | Path | None = None) -> dict[Path, int]:
    """Return the folder of each store and its size in bytes."""
    found = {}
    with suppress(OSError):
        for folder in sorted(store_root(root).iterdir()):
            if folder.is_dir():
                found[folder] = sum(entry.stat().st_size for entry in folder.iterdir())
    return found


def clear_stores(root: str | Path | None = None) -> int:
    """Delete all stores; return the bytes freed. Images are decoded again when they are needed."""
    stores = list_stores(root)
    for folder in stores:
        shutil.rmtree(folder, ignore_errors=True)
    return sum(stores.values())
