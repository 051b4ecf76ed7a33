"""Find the images that a source names: image files below a folder or a URL, or shards.

Shards are named by a file, a pattern, a folder, a URL, or a data set of the Hugging Face Hub.
"""

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from aag.data.encoded import ImageFiles
from aag.data.hub import PREFIX, find_hub_files
from aag.data.listing import TEST_NAMES, Listing, is_folder, is_image, list_images, split_folders
from aag.data.remote import RemoteFile, connect, find_files, is_url, list_remote, retry, stat_file
from aag.data.shards import SHARD_KINDS, Shard, Shards
from aag.errors import AAGError

MAX_SHARDS = 1_000_000  # that a pattern may name
_COMPRESSED = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")


def is_remote(source: str) -> bool:
    """Return whether a source is a URL or a data set of the Hub."""
    return is_url(source) or source.startswith(PREFIX)


def is_sharded(source: str) -> bool:
    """Return whether a source is read as shards, without asking a remote store."""
    if source.startswith(PREFIX) or source.lower().endswith((*SHARD_KINDS, *_COMPRESSED)):
        return True
    return not is_url(source) and bool(_folder_shards(Path(os.path.expanduser(source))))


def find_images(source: str) -> tuple[dict[str, Shards] | None, dict[str, tuple[ImageFiles, Listing]] | None]:
    """Return the shards of each split, or else the image files: train, and test where there is one.

    Both are None if the source names neither. A URL is listed once, which can take minutes.
    """
    if is_url(source) and not source.lower().endswith((*SHARD_KINDS, *_COMPRESSED)):
        files = find_files(source)
        shards = [] if any(map(is_image, files)) else _listed_shards(source, files)
        return (_split(source, shards), None) if shards else (None, list_remote(source, files))
    if (found := _find_shards(source)) is not None:
        return found, None
    folder = Path(os.path.expanduser(source))
    return None, list_local(folder) if os.path.isdir(folder) else None


def list_local(folder: Path) -> dict[str, tuple[ImageFiles, Listing]]:
    """Return the image files of each split of a folder."""
    listings = {split: (path, list_images(path)) for split, path in split_folders(folder).items()}
    return {split: (ImageFiles(path, listing.images), listing) for split, (path, listing) in listings.items()}


def _find_shards(source: str) -> dict[str, Shards] | None:
    """Return the shards of each split; None for a file or a folder without shards.

    A pattern may have braces ({000..099}, {a,b}) and wildcards (*). In a folder or a pattern, subfolders or file names
    that begin with train and test (or val) are the splits.
    """
    if source.startswith(PREFIX):
        found = find_hub_files(source)
        return {
            split: Shards(f"{source} {split}", [_local_shard(path, path.stem) for path in paths], follow_paths=True)
            for split, paths in found.items()
        }
    if source.lower().endswith(_COMPRESSED):
        raise AAGError(f"{source} is compressed, which hardly shrinks images; decompress it to a .tar")
    if is_url(source):
        shards = _remote_shards(source)
    elif source.lower().endswith(SHARD_KINDS) and not os.path.isdir(os.path.expanduser(source)):
        shards = _pattern_shards(source)
    else:
        shards = _folder_shards(Path(os.path.expanduser(source)))
    return _split(source, shards) if shards else None


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern as a shell does: a{1..3} is a1 a2 a3, {00..10} keeps the zeros, a{x,y} is ax ay."""
    parts: list[list[str]] = []
    for text in re.split(r"(\{[^{}]*\})", pattern):
        if numbers := re.fullmatch(r"\{(\d+)\.\.(\d+)\}", text):
            first, last = (int(number) for number in numbers.groups())
            if abs(last - first) >= MAX_SHARDS:
                raise AAGError(f"the pattern {pattern} names more than {MAX_SHARDS:,} shards; use a smaller range")
            width = max(map(len, numbers.groups())) if any(len(n) > 1 and n[0] == "0" for n in numbers.groups()) else 0
            step = 1 if last >= first else -1
            parts.append([f"{number:0{width}}" for number in range(first, last + step, step)])
        elif text.startswith("{") and "," in text:
            parts.append(text[1:-1].split(","))
        else:
            parts.append([text])
    names = map("".join, itertools.product(*parts))
    return itertools.islice(names, MAX_SHARDS)


def _pattern_shards(source: str) -> list[Shard]:
    pattern = os.path.expanduser(source)
    names = [pattern] if os.path.exists(pattern) else list(expand_braces(pattern))
    paths = []
    for name in names:
        if glob.has_magic(name) and not os.path.exists(name):
            matches = sorted(glob.glob(name))
            if not matches:
                raise AAGError(f"no file matches {name}")
            paths += matches
        else:
            paths.append(name)
    base = _common_folder(paths)
    return [_local_shard(Path(path), os.path.relpath(path, base)) for path in paths]


def _remote_shards(source: str) -> list[Shard]:
    urls: list[str] = []
    for url in expand_braces(source):
        if "*" in url and not url.startswith("http"):  # ? begins a web address's query
            system, path = connect(url)
            urls += [system.unstrip_protocol(match) for match in sorted(retry(partial(system.glob, path), url))]
        else:
            urls.append(url)
    if not urls:
        raise AAGError(f"no file matches {source}")
    base = urls[0].rpartition("/")[0] + "/"
    with ThreadPoolExecutor(16) as pool:
        return [
            _remote_shard(url, url.removeprefix(base), file)
            for url, file in zip(urls, pool.map(stat_file, urls), strict=True)
        ]


def _listed_shards(url: str, files: dict[str, RemoteFile]) -> list[Shard]:
    base = url.rstrip("/")
    return [_remote_shard(f"{base}/{name}", name, file) for name, file in files.items() if _is_shard(name)]


def _folder_shards(folder: Path) -> list[Shard]:
    """Return the shards in a folder and in its subfolders for splits.

    None are returned where images or other subfolders are: an archive next to its extracted images is not a shard.
    """
    shards: list[Shard] = []
    subfolders = ("data", "train", *TEST_NAMES)
    is_dict = os.path.isfile(folder / "dataset_dict.json")  # of datasets, whose splits may have any name
    for place in (folder, *(folder / name for name in subfolders)):
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    is_known = place == folder and (entry.name in subfolders or is_dict)
                    is_other_folder = is_folder(entry) and not is_known and not entry.name.startswith(".")
                    if is_image(entry.name) or is_other_folder:
                        return []
                    if _is_shard(entry.name) and os.path.isfile(entry.path):
                        shards.append(_local_shard(Path(entry.path), os.path.relpath(entry.path, folder)))
        except (OSError, ValueError):  # missing, unreadable, or a null character in the name
            continue
    return sorted(shards, key=lambda shard: shard.path)


def _split(source: str, shards: list[Shard]) -> dict[str, Shards]:
    """Return the shards by split, where there are both."""
    by_name: dict[str, list[Shard]] = {}
    for shard in shards:
        folder, _, file = shard.name.lower().rpartition("/")
        words = (folder.split("/")[0], re.split(r"[^a-z]", file)[0])
        by_name.setdefault(next((word for word in words if word in ("train", *TEST_NAMES)), ""), []).append(shard)
    test = next((by_name[name] for name in TEST_NAMES if name in by_name), None)
    splits = {"train": by_name["train"], "test": test} if "train" in by_name and test else {"train": shards}
    location = source if is_url(source) else os.path.abspath(os.path.expanduser(source))
    return {split: Shards(f"{location} {split}".removesuffix(" train"), own) for split, own in splits.items()}


def _local_shard(path: Path, name: str) -> Shard:
    try:
        status = os.stat(path)
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from None
    if not path.is_file():  # reading a pipe would block
        raise AAGError(f"{path} is not a regular file")
    name = os.path.splitext(name.replace(os.sep, "/"))[0]
    return Shard(os.path.abspath(path), name, status.st_size, str(status.st_mtime_ns))


def _remote_shard(url: str, name: str, file: RemoteFile) -> Shard:
    return Shard(url, os.path.splitext(name)[0], file.size, file.stamp)


def _is_shard(name: str) -> bool:
    # datasets keeps the results of transformations next to the data, as cache-….arrow.
    base = name.rpartition("/")[2]
    return base.lower().endswith(SHARD_KINDS) and not base.startswith((".", "cache-", "indices"))


def _common_folder(paths: Iterable[str]) -> str:
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
