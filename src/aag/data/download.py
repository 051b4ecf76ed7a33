"""Download one file over HTTP(S): resume after errors, verify the md5, and only then move it to its place."""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from aag.data.archive import file_md5
from aag.errors import AAGError, first_line
from aag.files import explain_write_errors

Progress = Callable[[str, int, int | None], None]
"""Called with the file name, the bytes so far and the total bytes (None if the server does not say)."""

WRITE_ADVICE = "free space there, or set AAG_DATA to a folder that you can write to"

_BLOCK_BYTES = 1 << 18
_MAX_ATTEMPTS = 30  # in total; `retries` limits attempts in a row that receive nothing


class _TransferError(Exception):
    """The transfer stopped early for a reason that may be temporary."""


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
    """Download `url` to `target`. Data go to `<target>.part` first, from which a later call resumes.

    `timeout` and `pause` are in seconds; the pause before another attempt doubles each time.
    """
    part = target.with_name(target.name + ".part")
    if target.exists() and file_md5(target) == md5:
        return target
    with explain_write_errors(target, WRITE_ADVICE):
        target.parent.mkdir(parents=True, exist_ok=True)
        failures = 0  # in a row, without a new byte
        for attempt in range(_MAX_ATTEMPTS):
            start = _size(part)
            try:
                resumed = _transfer(url, part, start, progress, timeout)
            except _TransferError as error:
                failures = 0 if _size(part) > start else failures + 1
                if failures > retries or attempt == _MAX_ATTEMPTS - 1:
                    raise AAGError(_failure(url, target, str(error))) from None
                time.sleep(pause * 2**failures)
                continue
            found = file_md5(part)
            if found == md5:
                os.replace(part, target)
                return target
            part.unlink()
            if not resumed:  # a complete download: the server's file is wrong, not an old .part
                raise AAGError(f"{url} is not the expected file (md5 {found}, expected {md5}); try again later")
    raise AAGError(_failure(url, target, "the server keeps sending damaged data"))


def _transfer(url: str, part: Path, start: int, progress: Progress | None, timeout: float) -> bool:
    """Download the bytes after `start`; return whether the server resumed there.

    Raises OSError for problems with the disk and _TransferError for problems with the network.
    """
    headers = {"User-Agent": "aag", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
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
        total = done + int(length) if length.isdigit() else None
        with part.open("ab" if resumed else "wb") as file:
            while True:
                try:
                    block = response.read(_BLOCK_BYTES)
                except (OSError, http.client.HTTPException) as error:
                    raise _TransferError(first_line(error)) from None
                if not block:
                    break
                file.write(block)
                done += len(block)
                if progress is not None:
                    progress(part.stem, done, total)
        if total is not None and done < total:
            raise _TransferError(f"the connection ended after {done:,} of {total:,} bytes")
        return resumed


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _failure(url: str, target: Path, reason: str) -> str:
    return f"cannot download {url} ({reason}); check the network, or copy the file to {target} yourself"
