"""Read images while they are decoded: `aag train --start-early`.

A thread decodes the source into its store; see `aag.data.store`. Results must not depend on the thread's progress, so
the set has one image per listed file. Files that cannot be read have no row in the store; in their place, the first
images are repeated at the end. The statistics and the fingerprint are those of the first block.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

import numpy as np
import torch

from aag.data.arrays import check_options
from aag.data.datasets import DATASETS
from aag.data.encoded import EncodedImages
from aag.data.folder import DEFAULT_SIZE
from aag.data.imageset import ImageSet
from aag.data.listing import Listing, no_image_error
from aag.data.loading import load, source_name
from aag.data.shard_files import find_images
from aag.data.shards import Shards
from aag.data.store import Background, ProgressCallback, Store, StoredImages, map_images, open_images
from aag.data.summary import summarize
from aag.errors import AAGError, first_line
from aag.locks import is_locked
from aag.text import pluralize, printable

BLOCK = 8192  # images; another value changes the results of runs
POLL_SECONDS = 0.05
_log = logging.getLogger(__name__)


def load_early(
    source: str,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    follow: bool = False,
    progress: ProgressCallback | None = None,
) -> ImageSet:
    """Return the training images as soon as the first block is decoded, while a thread decodes the rest.

    `ImageSet.decoding` says which images may be read; close it at the end. follow: another process of this machine has
    called this before. Other options are those of `aag.data.load`.
    """
    check_options(image_size, None)
    encoded, listing = _find_images(source)
    names = listing.images if listing else ()
    decoding = Decoding(encoded, image_size or DEFAULT_SIZE, root=root, names=names, follow=follow)

    def report() -> bool:
        if progress:
            progress(min(decoding.rows, decoding.block), decoding.block)
        return False

    try:
        if not decoding.wait(decoding.block, report) or decoding.images is None:
            raise decoding.failure or AAGError(f"decoding {source} failed")
        report()
        if not decoding.is_ready(len(decoding.images)):
            block, count = f"{decoding.block:,}", f"{len(decoding.images):,}"
            _log.info("training starts with the first %s of %s images; the rest is decoded meanwhile", block, count)
        summary = summarize(decoding.images[: decoding.block])
    except BaseException:
        decoding.close()
        raise
    skipped = tuple(listing.skipped) if listing else ()
    name = printable(source_name(source)) or "images"
    image_set = ImageSet(name, torch.from_numpy(decoding.images), skipped=skipped, decoding=decoding)
    return image_set.with_summary(summary)


def _find_images(source: str) -> tuple[EncodedImages, Listing | None]:
    """Return the training images of a source before they are decoded, and the listing of a folder."""
    advice = "leave out --start-early"
    splits: dict[str, tuple[EncodedImages, Listing | None]]
    shards, files = (None, None) if source in DATASETS else find_images(source)
    if shards is not None:
        splits = {split: (each, None) for split, each in shards.items()}
    elif files is not None:
        splits = {**files}
    else:
        if source not in DATASETS and not os.path.exists(os.path.expanduser(source)):
            load(source)  # says what is wrong
        raise AAGError(f"the images of {source} need no decoding; {advice}")
    images, listing = splits["train"]
    if isinstance(images, Shards):
        images = images.with_count()
    if "test" in splits and splits["test"][0].count != 0:
        raise AAGError(
            f"{source} has a test split, and --start-early does not evaluate; {advice}, or give the train split"
        )
    if images.count is None:
        raise AAGError(f"the number of images in {source} is known only after reading all of them; {advice}")
    if not images.count:
        raise no_image_error(images.location, listing or Listing())
    return images, listing


class Decoding:
    """The images of a source while a thread of this process, or another process of this machine, decodes them.

    `images` is uint8 [N, 3, S, S] for N files, or None before the decoding begins. The first `rows` may be read. An
    error of the thread becomes `failure`. `follow`: another process of this machine has begun to decode; if it has not
    ended, this one only reads. On a file system that machines share, reading another's new pixels would not be safe.
    """

    def __init__(
        self,
        source: EncodedImages,
        size: int,
        *,
        root: str | Path | None = None,
        names: Sequence[str] = (),
        follow: bool = False,
    ) -> None:
        assert source.count
        self.source, self.shape, self.names = source, (source.count, 3, size, size), names
        self.block = min(BLOCK, source.count)
        self.images: np.ndarray | None = None
        self.rows = 0
        self.failure: AAGError | None = None
        self._background = Background()
        self._journal: IO[bytes] | None = None
        self._line = b""  # the last one, where only its start is written
        self._stored: StoredImages | None = None
        self._thread: Thread | None = None
        store = Store(source, size, root, "") if follow else None
        self._lock_file = store.lock_file if store else Path()
        if store and is_locked(self._lock_file):
            self._background.files = store.pixels, store.journal
        else:
            self._thread = Thread(target=self._decode, args=(size, root), name="decoding", daemon=True)
            self._thread.start()

    @property
    def skipped(self) -> tuple[str, ...]:
        """One line "path: reason" per file that cannot be read; empty until all are decoded."""
        if self._stored is None:
            return ()
        names = self.names or self._stored.names
        return tuple(f"{printable(names[i])}: {why}" for i, why in sorted(self._stored.failures.items()))

    @property
    def digest(self) -> str:
        """Hash of all pixels; empty until all are decoded, and in a process that only reads."""
        return self._stored.summary.digest.hex() if self._stored else ""

    def is_ready(self, rows: int) -> bool:
        """Return whether the first `rows` images may be read."""
        if self.rows < rows:
            self._update()
        return self.rows >= rows

    def wait(self, rows: int, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the first `rows` images. Return False if a stop was requested or decoding failed (see `failure`)."""
        while not self.is_ready(rows):
            if self.failure or should_stop():
                return False
            time.sleep(POLL_SECONDS)
        return True

    def close(self) -> None:
        """Stop decoding after the current chunk. The next command continues there."""
        self._background.stop.set()
        if self._thread:
            self._thread.join()
        if self._journal:
            self._journal.close()

    def _decode(self, size: int, root: str | Path | None) -> None:
        """Decode all images; in a thread."""
        try:
            self._stored = open_images(self.source, size, root=root, background=self._background)
            if self._background.files:
                unread = f"; {pluralize(len(self.skipped), 'file')} cannot be read" if self.skipped else ""
                _log.info("all %s images are decoded%s", f"{self.shape[0]:,}", unread)
        except AAGError as error:
            self.failure = error
        except BaseException as error:  # training must not wait for a thread that has ended
            self.failure = AAGError(f"decoding {printable(self.source.location)} failed: {first_line(error)}")
            self.failure.__cause__ = error

    def _update(self) -> None:
        """Update `rows`, the number of decoded images, from the journal."""
        is_alive = self._thread is not None or is_locked(self._lock_file)  # before the journal is read
        if self.images is None and self._background.files:
            with suppress(OSError):  # the thread has renamed or deleted them, and is about to end
                pixels, journal = self._background.files
                self._journal = journal.open("rb")
                self.images = map_images(pixels, self.shape)
        decoded, is_complete = self._read_journal()
        if self._thread:
            is_complete = self._stored is not None
        if self._stored:
            decoded = len(self._stored.images)
            if self.images is None:
                self.images = self._extend(self._stored)
        if is_complete and not decoded:
            first = f" (first: {self.skipped[0]})" if self.skipped else ""
            location, files = printable(self.source.location), pluralize(self.shape[0], "file")
            self.failure = AAGError(f"no readable image in {location}: {files} with an image extension{first}")
        elif is_complete and self.images is not None:
            missing = np.arange(self.shape[0] - decoded)
            self.images[decoded:] = self.images[missing % decoded]  # in this process's copy of the pages
            self.rows = self.shape[0]
        elif self.images is not None:
            self.rows = max(self.rows, decoded)
            if not is_alive:
                location = printable(self.source.location)
                self.failure = AAGError(f"the process that decoded {location} has ended; run the same command again")

    def _read_journal(self) -> tuple[int, bool]:
        """Read what was added to the journal; return the number of rows, and whether they are all."""
        rows, is_complete = self.rows, False
        if self._journal:
            *lines, self._line = (self._line + self._journal.read()).split(b"\n")
            for entry in map(json.loads, lines):
                is_complete = "complete" in entry
                rows = entry.get("rows", rows)
        return rows, is_complete

    def _extend(self, stored: StoredImages) -> np.ndarray:
        """Return decoded images with room for the rows that are missing."""
        if len(stored.images) == self.shape[0]:
            return stored.images
        with suppress(OSError):  # a store without write permission
            if stored.file:
                if stored.file.stat().st_size < np.prod(self.shape):
                    os.truncate(stored.file, int(np.prod(self.shape)))
                return map_images(stored.file, self.shape)
        images = np.empty(self.shape, np.uint8)
        images[: len(stored.images)] = stored.images
        return images
