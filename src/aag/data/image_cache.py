"""List and delete the stores of decoded images in the cache folder."""

import shutil
from contextlib import suppress
from pathlib import Path

from aag.data.datasets import data_root


def store_root(root: str | Path | None = None) -> Path:
    """Return the folder that holds all stores; see `aag.data.store`."""
    return data_root(root) / "images"


def list_stores(root: str | Path | None = None) -> dict[Path, int]:
    """Return the size in bytes of each store, by its folder."""
    found = {}
    with suppress(OSError):
        for folder in sorted(store_root(root).iterdir()):
            if folder.is_dir():
                found[folder] = sum(entry.stat().st_size for entry in folder.iterdir())
    return found


def clear_stores(root: str | Path | None = None) -> int:
    """Delete all stores and return the number of bytes freed. Images are decoded again when needed."""
    stores = list_stores(root)
    for folder in stores:
        shutil.rmtree(folder, ignore_errors=True)
    return sum(stores.values()) - sum(list_stores(root).values())
