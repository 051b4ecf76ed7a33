"""Hash the content of files, to choose which images are held out. Hashes are kept in the cache folder."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from aag.data.arrays import run_in_threads
from aag.data.store import Store
from aag.data.summary import file_hash
from aag.files import atomic_write_path, open_regular

_log = logging.getLogger(__name__)


def hash_files(folder: Path, paths: Sequence[str], root: str | Path | None = None) -> np.ndarray:
    """Return a hash uint64 [N] of each file's content. Files are read once; then the hashes are in the cache folder."""
    store = Store(folder, paths, 0, root, "hashes")
    file = store.folder / f"{store.key}.npy"
    with suppress(OSError, ValueError, EOFError):
        if len(kept := np.load(file)) == len(paths):
            return np.asarray(kept, np.uint64)
    hashes = np.zeros(len(paths), np.uint64)

    def hash_range(indices: range) -> None:
        for i in indices:
            with suppress(OSError), open_regular(folder / paths[i]) as file:  # decoding gives the reason
                hashes[i] = file_hash(file)

    run_in_threads(hash_range, len(paths))
    try:
        with store.lock():
            with atomic_write_path(file) as temporary, temporary.open("xb") as out:
                np.save(out, hashes)
            store.delete_stale()
    except OSError as error:
        _log.warning("cannot write %s: %s", file, error.strerror or error)
    return hashes
