"""Read the arrays of an .npz after checking their sizes: a small file can claim, or expand to, any size.

`numpy.load` allocates what a header says. Here the header must agree with the archive's directory, and arrays must fit
into memory, before anything is allocated. Pickled objects are refused.
"""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from aag.data.memory import available_memory
from aag.files import open_regular
from aag.text import readable_bytes

# Deflate can shrink zeros a thousandfold, and photographs hardly at all.
_MAX_EXPANSION = 200
_FREE_EXPANSION = 1_000_000_000  # bytes; arrays up to this size may expand by any factor


@dataclass(frozen=True)
class ArrayHeader:
    """What an array's header says."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Size of the array, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzArrays:
    """The arrays in an open .npz, by name. Use `open_arrays`."""

    def __init__(self, archive: zipfile.ZipFile, file_bytes: int) -> None:
        self._archive, self._file_bytes = archive, file_bytes
        self._members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
        self._headers: dict[str, ArrayHeader] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def header(self, name: str) -> ArrayHeader:
        """Return the shape and the type of an array, after checking its size. Raises ValueError."""
        if name not in self._headers:
            with self._open(name) as member:
                self._headers[name] = _read_header(member, name)
            found, nbytes = self._members[name].file_size, self._headers[name].nbytes
            if nbytes > found:
                raise ValueError(f"the header of {name} says {nbytes:,} bytes, but it has {found:,}")
            if nbytes > max(_FREE_EXPANSION, _MAX_EXPANSION * self._file_bytes):
                packed = f"{readable_bytes(nbytes)} in a file of {readable_bytes(self._file_bytes)}"
                raise ValueError(f"{name} has {packed}, which is suspicious; if you trust it, use np.savez")
        return self._headers[name]

    def check_memory(self, needed: int) -> None:
        """Raise MemoryError if fewer bytes of memory are free."""
        free = available_memory()
        if needed > free:
            raise MemoryError(f"it needs {readable_bytes(needed)} of memory, but {readable_bytes(free)} are free")

    def __getitem__(self, name: str) -> np.ndarray:
        self.check_memory(self.header(name).nbytes)
        with self._open(name) as member:
            array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
            return array

    def _open(self, name: str) -> IO[bytes]:
        member = self._members[name]
        # The other methods are not NumPy's, and LZMA allocates what the file says.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed by a method that NumPy does not use; save it with np.savez")
        return self._archive.open(member)


@contextmanager
def open_arrays(path: Path) -> Iterator[NpzArrays]:
    """Open an .npz. Raises OSError, ValueError, MemoryError and what zipfile and zlib raise for damaged files."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        yield NpzArrays(archive, path.stat().st_size)


def _read_header(member: IO[bytes], name: str) -> ArrayHeader:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    else:
        raise ValueError(f"{name} has the format version {version[0]}.{version[1]}, expected 1.0 or 2.0")
    if dtype.hasobject:
        raise ValueError("it contains pickled objects, which are not read; save plain uint8 and integer arrays")
    if any(length < 0 for length in shape):
        raise ValueError(f"{name} has the shape {list(shape)}")
    return ArrayHeader(tuple(shape), dtype)
