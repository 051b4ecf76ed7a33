"""Read files of object stores and web servers through fsspec: s3://, gs://, https:// and others.

This process reads all files, in threads, because the worker processes have no credentials. Temporary errors are
retried.
"""

import hashlib
import io
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np

from aag.data.decode import UnreadableImageError
from aag.data.encoded import MAX_FILE_BYTES, PART_BYTES, ImageFiles, Item, Part, part_length
from aag.data.listing import Listing, split_names
from aag.errors import AAGError, first_line
from aag.text import printable, readable_bytes

BLOCK_BYTES, BLOCKS_AHEAD = 2**22, 8  # of a shard that are read ahead in parallel
ATTEMPTS, RETRY_SECONDS = 5, 0.5  # the time doubles with each attempt
_STAMPS = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "Last-Modified",
           "mtime", "created")  # fmt: skip
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError,
              ImportError, ValueError, TypeError)  # fmt: skip
_log = logging.getLogger(__name__)
T = TypeVar("T")


class RemoteFile(NamedTuple):
    """A file as its store lists it: `stamp` changes with its content."""

    path: str
    size: int
    stamp: str


def is_url(source: str) -> bool:
    return re.match(r"[A-Za-z][\w+.:-]+://", source) is not None


def connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    from fsspec.core import url_to_fs

    try:
        if urlsplit(url).password:
            what = "the URL contains a password, which the run folder would keep"
            raise AAGError(f"{what}; use the environment or ~/.netrc")
        system, path = url_to_fs(url)
    except AAGError:
        raise
    except (ImportError, ValueError) as error:  # "Install s3fs to access S3"; "Protocol not known: x"
        raise AAGError(f"cannot open {url}: {first_line(error)}") from error
    except Exception as error:  # no credentials, for example
        raise AAGError(f"cannot connect to {url}: {first_line(error)}") from error
    return system, str(path)


def stat_file(url: str) -> RemoteFile:
    """Return the size and the stamp of a file."""
    system, path = connect(url)
    info = retry(lambda: system.info(path), url)
    if info.get("size") is None or info.get("type") == "directory":
        raise AAGError(f"{url} is not a file of known size; give the URL of a shard, or download it first")
    return _remote_file(info)


def find_files(url: str) -> dict[str, RemoteFile]:
    """List all files below a URL, by their paths relative to it. Hidden ones are left out."""
    if url.startswith("http"):
        raise AAGError(
            f"{url} is not a shard, and a web server cannot be listed; give shards, such as https://…/train-{{000..009}}.tar"
        )
    system, path = connect(url)
    base = path.rstrip("/") + "/"
    found = {}
    for name, info in retry(lambda: system.find(path, detail=True), url).items():
        relative = name[len(base) :] if name.startswith(base) else name.lstrip("/")
        if not any(part.startswith(".") for part in relative.split("/")):
            found[relative] = _remote_file(info | {"name": name})
    if not found:
        raise AAGError(f"no file below {url}")
    return dict(sorted(found.items()))


def list_remote(url: str, files: dict[str, RemoteFile]) -> dict[str, tuple[ImageFiles, Listing]]:
    """Return the image files of each split below a URL, as `split_folders` and `list_images` do for a folder.

    files: those that `find_files` found.
    """
    out: dict[str, tuple[ImageFiles, Listing]] = {}
    for split, prefix in split_names(files).items():
        listing = Listing()
        for name in files:
            if name.startswith(prefix):
                listing.add(name[len(prefix) :])
        images = [files[prefix + name] for name in listing.images]
        remote = RemoteFiles(f"{url.rstrip('/')}/{prefix}".rstrip("/"), listing.images, images)
        out[split] = remote, listing
    return out


class RemoteFiles(ImageFiles):
    """Image files below a URL."""

    def __init__(self, url: str, paths: Sequence[str], files: Sequence[RemoteFile]) -> None:
        self.folder, self.paths, self.location, self.files = Path(), paths, url, files

    def select(self, indices: Sequence[int] | np.ndarray) -> Self:
        return type(self)(self.location, [self.paths[i] for i in indices], [self.files[i] for i in indices])

    def key(self) -> str:
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.path}\0{file.size}\0{file.stamp}\0".encode())
        return digest.hexdigest()

    def parts(self, done: int, position: tuple[int, ...], size: int) -> Iterator[Part]:
        length, start = part_length(size, len(self.paths) - done), done
        while start < len(self.paths):
            stop, total = start + 1, self.files[start].size
            while stop < min(start + length, len(self.paths)) and total + self.files[stop].size <= PART_BYTES:
                total += self.files[stop].size
                stop += 1
            yield _RemotePart(self.paths[start:stop], files=self.files[start:stop])
            start = stop

    def load(self, part: Part) -> Part:
        """Read all files of a part, in parallel where the store can."""
        assert isinstance(part, _RemotePart)
        system, _ = connect(self.location)
        items: list[Item] = [_size_error(file) for file in part.files]
        pending = [i for i, file in enumerate(part.files) if 0 < file.size <= MAX_FILE_BYTES]
        failed: dict[int, Exception] = {}
        for attempt in range(ATTEMPTS):
            paths, ends = [part.files[i].path for i in pending], [part.files[i].size for i in pending]
            try:
                results = system.cat_ranges(paths, [0] * len(paths), ends, on_error="return") if paths else []
            except Exception as error:
                results = [error] * len(paths)
            failed = {}
            for i, content in zip(pending, results, strict=True):
                if not isinstance(content, Exception):
                    items[i] = bytes(content)
                elif is_transient(content):
                    failed[i] = content
                else:
                    items[i] = UnreadableImageError(first_line(content)[:120])
            pending = list(failed)
            if not pending:
                return replace(part, items=items)
            _wait(attempt, str(part.items[pending[0]]), failed[pending[0]])
        raise _read_error(f"{self.location}/{part.items[pending[0]]!s}", failed[pending[0]])


@dataclass(frozen=True)
class _RemotePart(Part):
    files: Sequence[RemoteFile] = ()


def _size_error(file: RemoteFile) -> UnreadableImageError:
    if not file.size:
        return UnreadableImageError("empty file")
    return UnreadableImageError(f"its {readable_bytes(file.size)} exceed {readable_bytes(MAX_FILE_BYTES)}")


def open_remote(url: str, size: int) -> IO[bytes]:
    """Open a file that is read ahead in blocks, in parallel."""
    return io.BufferedReader(_BlockReader(url, size), 2**16)


class _BlockReader(io.RawIOBase):
    """A file whose next blocks are read ahead."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.size, self._at = url, size, 0
        self._system, self._path = connect(url)
        self._pool = ThreadPoolExecutor(BLOCKS_AHEAD, thread_name_prefix="read")
        self._blocks: dict[int, Future[bytes]] = {}
        if url.startswith("http") and size > BLOCK_BYTES:
            retry(self._check_ranges, url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self.size:
            return 0
        number, start = divmod(self._at, BLOCK_BYTES)
        content = self._block(number)[start : start + len(buffer)]
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._blocks.clear()
        super().close()

    def _check_ranges(self) -> None:
        """Read the last byte: a server without range requests would send the whole file for each block."""
        try:
            with self._system.open(self._path, block_size=1024, cache_type="none", size=self.size) as file:
                file.seek(self.size - 1)
                if len(file.read(1)) == 1:
                    return
        except ValueError:  # "The HTTP server doesn't appear to support range requests"
            pass
        raise AAGError(f"the server of {self.url} does not serve parts of files (range requests); download it first")

    def _block(self, number: int) -> bytes:
        window = range(number, min(number + BLOCKS_AHEAD, -(-self.size // BLOCK_BYTES)))
        for old in self._blocks.keys() - {number - 1, *window}:
            self._blocks.pop(old).cancel()
        for each in window:
            if each not in self._blocks:
                self._blocks[each] = self._pool.submit(self._fetch, each)
        return self._blocks[number].result()

    def _fetch(self, number: int) -> bytes:
        start, end = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, self.size)
        content = retry(lambda: self._system.cat_file(self._path, start=start, end=end), self.url)
        if len(content) != end - start:
            raise AAGError(f"{self.url} changed, or its server does not serve parts of files; download the file first")
        return bytes(content)


def retry(call: Callable[[], T], url: str) -> T:
    """Call a function; retry after temporary errors. Raise AAGError if it still fails."""
    for attempt in range(ATTEMPTS):
        try:
            return call()
        except AAGError:
            raise
        except Exception as error:
            if not is_transient(error):
                raise _read_error(url, error) from error
            _wait(attempt, url, error)
            last = error
    raise _read_error(url, last) from last


def is_transient(error: BaseException) -> bool:
    """Return whether an error is temporary. fsspec wraps a server's errors into FileNotFoundError."""
    while error.__cause__ is not None:
        error = error.__cause__
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status >= 500 or status in (408, 429)
    return not isinstance(error, _PERMANENT)


def _read_error(url: str, error: BaseException) -> AAGError:
    if not is_transient(error):
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else first_line(error)
        return AAGError(f"cannot read {printable(url)}: {reason}")
    advice = "images decoded so far are kept; run the same command again to continue"
    return AAGError(f"cannot read {printable(url)} after {ATTEMPTS} attempts: {first_line(error)}; {advice}")


def _wait(attempt: int, what: str, error: BaseException) -> None:
    if attempt + 1 < ATTEMPTS:
        _log.info("retrying to read %s after an error: %s", printable(what), first_line(error))
        time.sleep(RETRY_SECONDS * 2**attempt)


def _remote_file(info: dict[str, Any]) -> RemoteFile:
    stamp = next((str(info[name]) for name in _STAMPS if info.get(name) is not None), "")
    return RemoteFile(str(info["name"]), int(info.get("size") or 0), stamp)
