"""Fetch one file over http(s): resumed where it broke off, checked, and in place only when whole."""

import errno
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aag.data.archive import md5_of
from aag.errors import AAGError

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes that are there, and the bytes there will be, where the server says so."""

_BLOCK = 1 << 18
_MOST_TRIES = 30  # however much each brings; a try that brings nothing counts against `retries`


class _Broken(Exception):
    """The transfer stopped before its end for a reason that may pass."""


def download(
    url: str,
    target: Path,
    *,
    md5: str,
    progress: Progress | None = None,
    retries: int = 3,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Bring `url` to `target`, by way of `<target>.part`, which a later call goes on with."""
    part = target.with_name(target.name + ".part")
    if target.exists() and md5_of(target) == md5:
        return target
    with disk_told(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        fruitless = 0
        for attempt in range(_MOST_TRIES):
            had = _size(part)
            try:
                resumed = _transfer(url, part, had, progress, timeout)
            except _Broken as broken:
                fruitless = 0 if _size(part) > had else fruitless + 1
                if fruitless > retries or attempt == _MOST_TRIES - 1:
                    raise AAGError(_no_way(url, target, str(broken))) from None
                time.sleep(pause * 2**fruitless)
                continue
            found = md5_of(part)
            if found == md5:
                os.replace(part, target)
                return target
            part.unlink()
            if not resumed:  # fetched in one go: no part left from another time is to blame
                raise AAGError(f"{url} sent another file than expected (md5 {found}, expected {md5}); try again later")
    raise AAGError(_no_way(url, target, "it keeps sending broken data"))


def _transfer(url: str, part: Path, had: int, progress: Progress | None, timeout: float) -> bool:
    """Bring the rest of the file. True if it builds on what was there. OSError is about the disk, _Broken the net."""
    headers = {"User-Agent": "aag", "Accept-Encoding": "identity"} | ({"Range": f"bytes={had}-"} if had else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and had:  # nothing after what is there: whole already, or of another file
            return True
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _Broken(f"the server answered {error.code} {error.reason}") from None
        raise AAGError(_no_way(url, part.with_suffix(""), f"the server answered {error.code} {error.reason}")) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(_reason(error)) from None
    except ValueError:
        raise AAGError(f"not an address to fetch from: {url}") from None
    with response:
        sent_range = response.headers.get("Content-Range", "")
        goes_on = had > 0 and response.status == 206 and sent_range.startswith(f"bytes {had}-")
        if response.status == 206 and not goes_on:
            part.unlink(missing_ok=True)
            raise _Broken("the server sent another part of the file than asked for")
        there = had if goes_on else 0  # a server that ignores Range sends everything again
        length = response.headers.get("Content-Length", "")
        total = there + int(length) if length.isdigit() else None
        with part.open("ab" if goes_on else "wb") as file:
            while True:
                try:
                    block = response.read(_BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    raise _Broken(_reason(error)) from None
                if not block:
                    break
                file.write(block)
                there += len(block)
                if progress is not None:
                    progress(part.stem, there, total)
        if total is not None and there < total:
            raise _Broken(f"the connection ended after {there:,} of {total:,} bytes")
        return goes_on


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    return str(getattr(cause, "strerror", None) or cause) or type(cause).__name__


def _no_way(url: str, target: Path, reason: str) -> str:
    return f"cannot fetch {url} ({reason}); check the network, or bring the file by hand to {target}"


@contextmanager
def disk_told(target: Path) -> Iterator[None]:
    """What the disk refuses, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            line = f"no space left for {target}; free some, or set AAG_DATA to a folder on another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            line = f"no permission to write {target}; set AAG_DATA to a folder of yours"
        else:
            line = f"cannot write {target}: {error.strerror or error}"
        raise AAGError(line) from None
