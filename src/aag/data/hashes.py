"""Hash the content of files, to choose which images are held out. Hashes are kept in the cache folder."""

import logging
from contextlib import suppress
from pathlib import Path

import numpy as np

from aag.data.arrays import map_in_threads
from aag.data.encoded import ImageFiles, Part
from aag.data.store import Store
from aag.data.summary import content_hash, file_hash
from aag.files import atomic_write_path, open_regular

_log = logging.getLogger(__name__)


def hash_files(files: ImageFiles, root: str | Path | None = None) -> np.ndarray:
    """Return a hash uint64 [N] of each file's content. They are stored in the cache folder until a file changes."""
    store = Store(files, 0, root, "hashes")
    file = store.folder / f"{store.key}.npy"
    with suppress(OSError, ValueError, EOFError):
        if len(kept := np.load(file)) == files.count:
            return np.asarray(kept, np.uint64)
    parts = map_in_threads(lambda part: _hash_part(files.load(part)), files.parts(0, (), 0))
    hashes = np.array([each for part in parts for each in part], np.uint64)
    try:
        with store.lock():
            with atomic_write_path(file) as temporary, temporary.open("xb") as out:
                np.save(out, hashes)
            store.delete_stale()
    except OSError as error:
        _log.warning("cannot write %s: %s", file, error.strerror or error)
    return hashes


def _hash_part(part: Part) -> list[int]:
    """Return the hash of each item's content; 0 for unreadable items, whose reason decoding gives."""
    hashes = [0] * len(part.items)
    for place, item in enumerate(part.items):
        if isinstance(item, bytes):
            hashes[place] = content_hash(item)
        elif isinstance(item, str):
            with suppress(OSError), open_regular(part.folder / item) as file:
                hashes[place] = file_hash(file)
    return hashes
