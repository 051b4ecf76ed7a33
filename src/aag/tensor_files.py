"""Read and write safetensors files with a content hash. The same content always gives the same bytes."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from aag.errors import AAGError, first_line
from aag.files import open_regular, write_bytes

HASH = "sha256"  # its name in the header
MAX_HEADER = 10_000_000  # bytes; a network of ten thousand tensors has a tenth of that
_METADATA = "__metadata__"


class DamagedFileError(AAGError):
    """A file whose content is not what was written."""


@dataclass(frozen=True)
class Header:
    """What a safetensors file says about itself before its data."""

    content: dict[str, Any]  # by tensor, as the format has it

    @property
    def metadata(self) -> dict[str, str]:
        """The texts that the file was saved with, without the hash."""
        return {name: text for name, text in self.content.get(_METADATA, {}).items() if name != HASH}

    @property
    def hash(self) -> str | None:
        """The content hash; None where the file has none, as those of older versions and of other programs."""
        return self.content.get(_METADATA, {}).get(HASH)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(entry["shape"]) for name, entry in self.content.items() if name != _METADATA}


class EncodedFile(NamedTuple):
    """The content of a file, the same for the same tensors and metadata."""

    head: bytes
    data: memoryview
    hash: str


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> EncodedFile:
    """Return a file's content. The tensors are row-major, on the CPU, and share no memory.

    safetensors writes metadata in any order; here it is sorted.
    """
    raw = memoryview(to_bytes(dict(tensors), dict(metadata)))
    size = 8 + int.from_bytes(raw[:8], "little")
    content, data = json.loads(bytes(raw[8:size])), raw[size:]
    digest = _start_hash(content)
    digest.update(data)
    content[_METADATA] = {**content.get(_METADATA, {}), HASH: digest.hexdigest()}
    text = _canonical(content)
    text += b" " * (-len(text) % 8)  # the format aligns the data
    return EncodedFile(len(text).to_bytes(8, "little") + text, data, digest.hexdigest())


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file atomically."""
    encoded = encode(tensors, metadata)
    write_bytes(path, encoded.head, encoded.data)


def read_header(path: Path) -> Header:
    """Read and check what comes before the data, and nothing else."""
    with _open(path) as file:
        return _parse_header(path, file)


def read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Read a file and check its hash, if it has one."""
    header = verify(path)
    return header, read_tensors(path)


def verify(path: Path) -> Header:
    """Return the header of a file. Raise a DamagedFileError unless the content has the hash in it, if there is one."""
    with _open(path) as file:
        header = _parse_header(path, file)
        if header.hash is not None:
            digest, buffer = _start_hash(header.content), memoryview(bytearray(2**20))
            while count := file.readinto(buffer):  # type: ignore[attr-defined]
                digest.update(buffer[:count])
            if digest.hexdigest() != header.hash:
                raise DamagedFileError(f"{path} is damaged: its checksum is wrong")
        elif any(re.fullmatch("[0-9a-f]{64}", text) for text in header.metadata.values()):
            raise DamagedFileError(f"{path} is damaged: its checksum has an unknown name")
    return header


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file whose header was read before."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise _not_safetensors(path, first_line(error)) from error


def to_row_major(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that safetensors accepts; channels-last and tied weights are not what it takes."""
    return {
        name: tensor.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)
        for name, tensor in tensors.items()
    }


def _open(path: Path) -> IO[bytes]:
    try:
        return open_regular(path)
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from error


def _parse_header(path: Path, file: IO[bytes]) -> Header:
    try:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= MAX_HEADER:
            raise ValueError(f"a header of {size:,} bytes")
        content = json.loads(file.read(size))
        metadata = content.get(_METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("metadata that is not text")
        header = Header(content)
        if not all(isinstance(length, int) for shape in header.shapes.values() for length in shape):
            raise ValueError("shapes that are not numbers")
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _not_safetensors(path, first_line(error)) from error
    return header


def _not_safetensors(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(f"{path} is not a safetensors file, or is damaged: {reason[:100]}")


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _start_hash(content: Mapping[str, Any]) -> Any:
    """Return a hash of the header without its hash: names, types, shapes, places and metadata."""
    metadata = {name: text for name, text in content.get(_METADATA, {}).items() if name != HASH}
    digest = hashlib.sha256(_canonical({**content, _METADATA: metadata}))
    digest.update(b"\n")
    return digest
