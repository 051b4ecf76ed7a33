"""SVHN's cropped digits as published: one MATLAB file per split."""

from pathlib import Path

import numpy as np

from aag.data.archive import check_md5
from aag.data.known import Known
from aag.errors import AAGError


def read(entry: Known, paths: tuple[Path, ...]) -> dict[str, np.ndarray]:
    """The arrays of SVHN, named as in an .npz. `paths` are the train and the test file."""
    out: dict[str, np.ndarray] = {}
    for split, path, archive in zip(("train", "test"), paths, entry.archives, strict=True):
        check_md5(path, archive.md5)
        out[f"{split}_images"], out[f"{split}_labels"] = _read_mat(path)
    return out


def _read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # damaged bytes make scipy's reader raise nearly anything
        reason = str(error).split("\n")[0] or type(error).__name__
        raise AAGError(f"{path} is not a readable .mat file ({reason}); delete it and fetch it again") from None
    images, digits = content.get("X"), content.get("y")
    if images is None or images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise AAGError(f"{path} holds no X of uint8 [32, 32, 3, N]; it is not a file of SVHN")
    count = images.shape[3]
    if digits is None or digits.dtype.kind not in "iuf" or digits.size != count:
        raise AAGError(f"{path} does not hold one digit y for each of its {count} images; it is damaged")
    digits = digits.ravel().astype(np.int64)
    if count == 0 or digits.min() < 1 or digits.max() > 10:
        raise AAGError(f"{path} holds digits outside 1..10; it is not a file of SVHN")
    # MATLAB counts from 1: the digit 0 is written as 10.
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), (digits % 10).astype(np.uint8)
