"""The journal of a store: one JSON line per chunk of images that was written, and a last line when it is complete."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from aag.data.encoded import Label, Part
from aag.data.parallel_decode import Chunk
from aag.data.summary import PixelSummary, summarize_chunk

COMPLETE = b'{"complete": true}\n'


@dataclass
class JournalState:
    """What a journal says about its store. `names` and `labels` include images that failed; see `Part`."""

    files: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    summary: PixelSummary = field(default_factory=PixelSummary)
    names: list[str] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    position: tuple[int, ...] = ()
    length: int = 0  # of the journal in bytes, up to the end of the last line that counts
    complete: bool = False

    def add(self, part: Part, chunk: Chunk) -> bytes:
        """Update the state by a chunk that was decoded from a part, and return its line of the journal."""
        failures = {self.files + place: reason for place, reason in chunk.failures.items()}
        self.failures |= failures
        self.files += chunk.files
        self.summary.add(chunk.summary)
        self.names += part.names
        self.labels += part.labels
        self.position = part.position
        entry: dict[str, Any] = {
            "files": self.files,
            "rows": self.summary.count,
            "sums": self.summary.sums.tolist(),
            "digest": self.summary.digest.hex(),
            "failures": list(failures.items()),
        }
        if part.position:
            entry |= {"names": list(part.names), "labels": list(part.labels), "position": part.position}
        return json.dumps(entry).encode() + b"\n"

    def read_entry(self, entry: dict[str, Any]) -> None:
        """Update the state from a line of the journal. Raises KeyError, TypeError or ValueError if it is damaged."""
        summary = PixelSummary(entry["rows"], np.array(entry["sums"]), bytes.fromhex(entry["digest"]))
        failures = {place: reason for place, reason in entry["failures"]}
        names, labels = _as_list(entry.get("names", [])), _as_list(entry.get("labels", []))
        position = tuple(map(int, entry.get("position", ())))
        self.files, self.summary, self.position = entry["files"], summary, position
        self.failures |= failures
        self.names += names
        self.labels += labels


def read_journal(journal: Path, pixels: Path, row_shape: Sequence[int], *, verify: bool = False,
    check_stop: Callable[[], None] = lambda: None,
) -> JournalState:  # fmt: skip
    """Read a journal. With `verify`, stop at the first chunk with pixels that do not match their hash.

    `check_stop` is called before each chunk; it may raise.
    """
    state = JournalState()
    with (
        suppress(OSError),
        journal.open("rb") as lines,
        pixels.open("rb") if pixels.exists() else nullcontext() as file,
    ):
        for line in lines:
            check_stop()
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # damaged, or cut off
                entry = json.loads(line if line.endswith(b"\n") else b"")
                if entry.get("complete"):
                    state.complete = True
                    break
                if verify and not _is_intact(file, state, entry, row_shape):
                    break
                state.read_entry(entry)
                state.length += len(line)
                continue
            break
    return state


def _is_intact(pixels: IO[bytes] | None, state: JournalState, entry: dict[str, Any], row_shape: Sequence[int]) -> bool:
    rows = entry["rows"] - state.summary.count
    length = rows * int(np.prod(row_shape))
    content = pixels.read(length) if pixels else b""
    if len(content) != length:
        return False
    images = np.frombuffer(content, np.uint8).reshape(rows, *row_shape)
    summary = PixelSummary(state.summary.count, state.summary.sums, state.summary.digest)
    summary.add(summarize_chunk(images))
    return summary.digest.hex() == entry["digest"]


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value
