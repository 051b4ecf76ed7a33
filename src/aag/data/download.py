"""Download one file over HTTP(S): resume after errors, verify size and checksums, and only then move it to its path.

No more than the expected size is written. Redirects from https to http are refused. Connections that are too slow count
as broken.
"""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aag.data.archive import find_mismatch
from aag.data.datasets import Archive
from aag.errors import AAGError, first_line
from aag.files import explain_write_errors

DownloadCallback = Callable[[str, int, int | None], None]
"""Called with the name of the file, the bytes so far and all bytes (None if the server does not say)."""

WRITE_ADVICE = "free space there, or set AAG_DATA to a folder that you can write to"

_BLOCK_BYTES = 1 << 18
_MAX_BYTES = 10_000_000_000  # of a file whose size is not known
_MIN_BYTES_PER_SECOND = 1000  # on average over the time that may pass without any byte
_MAX_ATTEMPTS = 30  # in total; `retries` limits attempts in a row that receive nothing


class _TransferError(Exception):
    """The transfer stopped early for a reason that may be temporary."""


def download(
    url: str,
    target: Path,
    archive: Archive,
    *,
    progress: DownloadCallback | None = None,
    retries: int = 3,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Download `url` to `target`. Data go to `<target>.part` first, from which a later call resumes.

    `timeout` and `pause` are in seconds; the pause before another attempt doubles each time.
    """
    part = target.with_name(target.name + ".part")
    if urlsplit(url).scheme not in ("http", "https"):
        raise AAGError(f"not a valid URL: {url}; it must start with https:// or http://")
    if target.exists() and not find_mismatch(target, archive):
        return target
    if part.exists() and not part.is_file():  # opening a pipe would block
        raise AAGError(f"{part} is not a regular file; delete it")
    limit = archive.size or _MAX_BYTES
    with explain_write_errors(target, WRITE_ADVICE):
        target.parent.mkdir(parents=True, exist_ok=True)
        failures = 0  # in a row, without a new byte
        for attempt in range(_MAX_ATTEMPTS):
            if (start := _size(part)) > limit:
                part.unlink()
                start = 0
            try:
                resumed = _transfer(url, part, start, limit, progress, timeout)
            except _TransferError as error:
                failures = 0 if _size(part) > start else failures + 1
                if failures > retries or attempt == _MAX_ATTEMPTS - 1:
                    raise AAGError(_failure(url, target, str(error))) from None
                time.sleep(pause * 2**failures)
                continue
            mismatch = find_mismatch(part, archive)
            if mismatch is None:
                os.replace(part, target)
                return target
            part.unlink()
            if not resumed:  # a complete download: the server's file is wrong, not an old .part
                raise AAGError(f"{url} is not the expected file ({mismatch}); try again later")
    raise AAGError(_failure(url, target, "the server keeps sending damaged data"))


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects that keep the connection encrypted."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if urlsplit(newurl).scheme not in {"https", req.type}:
            raise AAGError(f"{req.full_url} redirects to {newurl}, which is not https; try again later")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request, timeout: float) -> Any:
    opener = urllib.request.OpenerDirector()  # without the handlers of ftp, file and data
    for handler in (
        urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor, _SafeRedirects,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener.open(request, timeout=timeout)


def _transfer(url: str, part: Path, start: int, limit: int, progress: DownloadCallback | None, timeout: float) -> bool:
    """Download the bytes after `start`, up to `limit` in all; return whether the server resumed there.

    Raises OSError for problems with the disk and _TransferError for problems with the network.
    """
    headers = {"User-Agent": "aag", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = _open(urllib.request.Request(url, headers=headers), timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # no byte after `start`: complete already, or part of another file
            return True
        reason = f"the server answered {error.code} {error.reason}"
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _TransferError(reason) from None
        raise AAGError(_failure(url, part.with_suffix(""), reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _TransferError(first_line(getattr(error, "reason", None) or error)) from None
    except ValueError:
        raise AAGError(f"not a valid URL: {url}") from None
    with response:
        sent_range = response.headers.get("Content-Range", "")
        resumed = start > 0 and response.status == 206 and sent_range.startswith(f"bytes {start}-")
        if response.status == 206 and not resumed:
            part.unlink(missing_ok=True)
            raise _TransferError("the server sent the wrong range of bytes")
        done = start if resumed else 0  # a server that ignores Range sends the whole file
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() and len(length) < 20 else None
        window, received = time.monotonic(), 0
        with part.open("ab" if resumed else "wb") as file:
            while True:
                try:
                    block = response.read1(_BLOCK_BYTES)
                except (OSError, http.client.HTTPException) as error:
                    raise _TransferError(first_line(error)) from None
                if not block:
                    break
                if max(done + len(block), total or 0) > limit:
                    part.unlink()
                    raise AAGError(f"{url} is not the expected file (more than {limit:,} bytes); try again later")
                file.write(block)
                done, received = done + len(block), received + len(block)
                if (elapsed := time.monotonic() - window) > timeout:
                    if received < _MIN_BYTES_PER_SECOND * elapsed:
                        raise _TransferError(f"{received:,} bytes in {elapsed:.0f} s")
                    window, received = time.monotonic(), 0
                if progress is not None:
                    progress(part.stem, done, total)
        if total is not None and done < total:
            raise _TransferError(f"the connection ended after {done:,} of {total:,} bytes")
        return resumed


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _failure(url: str, target: Path, reason: str) -> str:
    return f"cannot download {url} ({reason}); check the network, or copy the file to {target} yourself"
