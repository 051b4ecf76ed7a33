"""Decode in worker processes: with small files, threads would mostly wait for the GIL.

A server process imports what decoding needs and forks a worker for each connection. Workers start in milliseconds and
share memory. They copy no state of this process, so scripts need no `if __name__ == "__main__"`. If a damaged file
kills a worker, only that file is lost. Linux only; other systems use threads.

A message is JSON. Contents and pixels follow it as they are: a worker that a hostile file took over cannot make
this process run code. Before it decodes a large picture, a worker asks for memory: `{"reserve": bytes}`; it returns it
by `{"reserve": 0}`.
"""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock, local
from typing import Any

import numpy as np

from aag.data import memory
from aag.data.decode import UnreadableImageError
from aag.data.encoded import Item
from aag.data.parallel_decode import Chunk, decode_chunk, join_chunks
from aag.data.summary import ChunkSummary, summarize_chunk

_LENGTH = struct.Struct("<Q")
_START_SECONDS = 60.0
_YES, _NO = b"y", b"n"
_MAX_MESSAGE = 1 << 24  # bytes; names and reasons of a few hundred files
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY", re.IGNORECASE)


class WorkersUnavailableError(Exception):
    """The server process cannot start on this machine."""


class Workers:
    """Worker processes, one for each thread that calls `decode`. `close` ends them."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair()
        self._lock, self._connections, self._all = Lock(), local(), list[socket.socket]()
        code = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from aag.data.workers import serve; serve(0)"
        try:
            with there:
                self._server = subprocess.Popen(
                    [sys.executable, "-c", code, json.dumps(sys.path)],
                    stdin=there.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    env=_environment() | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
        except OSError as error:
            raise WorkersUnavailableError(str(error)) from error
        self._here.settimeout(_START_SECONDS)
        with suppress(OSError):
            if self._here.recv(1):
                return
        self.close()
        raise WorkersUnavailableError("the server did not start")

    def decode(self, folder: Path, paths: Sequence[Item], size: int) -> Chunk:
        """Decode a few images in this thread's worker; see `decode_chunk`."""
        try:
            return self._ask(folder, paths, size)
        except (OSError, EOFError, ValueError):  # the worker died
            if self._here.fileno() < 0:  # closed meanwhile
                raise
            if self._server.poll() is not None:  # the server, too: no file is to blame
                return decode_chunk(folder, paths, size)
            self._connections.__dict__.pop("own", None)
        if len(paths) > 1:
            return join_chunks([self.decode(folder, [path], size) for path in paths])
        none = np.empty((0, 3, size, size), np.uint8)
        return Chunk(none, summarize_chunk(none), {0: "the decoder crashed"}, 1)

    def close(self) -> None:
        """End the server and its workers."""
        for connection in (self._here, *self._all):
            connection.close()
        self._server.kill()
        self._server.wait()

    def _ask(self, folder: Path, paths: Sequence[Item], size: int) -> Chunk:
        if not hasattr(self._connections, "own"):
            own, there = socket.socketpair()
            with there, self._lock:
                socket.send_fds(self._here, [b"w"], [there.fileno()])
                self._all.append(own)
            self._connections.own = own
        connection: socket.socket = self._connections.own
        _send(
            connection, {"folder": os.path.abspath(folder), "items": [_describe(item) for item in paths], "size": size}
        )
        for item in paths:
            if isinstance(item, bytes):
                connection.sendall(item)
        with ExitStack() as reserved:  # also returned if the worker dies
            while "reserve" in (answer := _receive(connection)):
                reserved.close()
                if answer["reserve"]:
                    connection.sendall(_try_to_reserve(reserved, answer["reserve"]))
        images = np.empty((len(answer["digests"]), 3, size, size), np.uint8)
        _receive_into(connection, images)
        summary = ChunkSummary(np.array(answer["sums"]), [bytes.fromhex(digest) for digest in answer["digests"]])
        failures = {int(place): str(reason) for place, reason in answer["failures"]}
        return Chunk(images, summary, failures, len(paths))


def _environment() -> dict[str, str]:
    """Return the environment without secrets: decoders of hostile files need none."""
    return {name: value for name, value in os.environ.items() if not _SECRET.search(name)}


def serve(control_fd: int) -> None:
    """Fork a worker for each connection received, until the client closes the control socket."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers leave no zombies
    control = socket.socket(fileno=control_fd)
    control.sendall(b"r")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            with suppress(OSError, EOFError):
                _work(socket.socket(fileno=descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])


def _try_to_reserve(reserved: ExitStack, amount: int) -> bytes:
    try:
        reserved.enter_context(memory.decoding_budget().reserve(amount))
        return _YES
    except memory.OverBudgetError:
        return _NO


class _RemoteBudget(memory.Budget):
    """The budget of the process that started the workers, seen from a worker."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(memory.decoding_budget().total)
        self._connection = connection

    @contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        if amount <= memory.UNCOUNTED_BYTES:
            yield
            return
        _send(self._connection, {"reserve": amount})
        if (answer := self._connection.recv(1)) == _NO:
            raise memory.OverBudgetError
        if answer != _YES:
            os._exit(0)  # the owner is gone
        try:
            yield
        finally:
            _send(self._connection, {"reserve": 0})


def _work(connection: socket.socket) -> None:
    memory.use_budget(_RemoteBudget(connection))
    while True:
        asked = _receive(connection)
        items = [_receive_item(connection, each) for each in asked["items"]]
        chunk = decode_chunk(Path(asked["folder"]), items, asked["size"])
        answer = {
            "sums": chunk.summary.sums.tolist(),
            "digests": [digest.hex() for digest in chunk.summary.digests],
            "failures": list(chunk.failures.items()),
        }
        _send(connection, answer)
        connection.sendall(chunk.images.reshape(-1).data)


def _describe(item: Item) -> str | int | list[str]:
    """Return a path as it is, the length of a content, which is sent afterwards, or a reason in a list."""
    if isinstance(item, UnreadableImageError):
        return [str(item)]
    return len(item) if isinstance(item, bytes) else item


def _receive_item(connection: socket.socket, described: Any) -> Item:
    if isinstance(described, str):
        return described
    if isinstance(described, list):
        return UnreadableImageError(*described)
    content = np.empty(described, np.uint8)
    _receive_into(connection, content)
    return content.tobytes()


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(content)) + content)


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Return a message. Raises EOFError if the connection ends, and ValueError for what is none."""
    length = np.empty(_LENGTH.size, np.uint8)
    _receive_into(connection, length)
    (count,) = _LENGTH.unpack(length.tobytes())
    if count > _MAX_MESSAGE:
        raise ValueError("not a message")
    content = np.empty(count, np.uint8)
    _receive_into(connection, content)
    message = json.loads(content.tobytes())
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def _receive_into(connection: socket.socket, array: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
    rest = array.reshape(-1)
    while len(rest):
        count = connection.recv_into(rest.data)
        if not count:
            raise EOFError
        rest = rest[count:]
