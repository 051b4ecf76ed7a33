"""Decode in worker processes: with small files, threads would mostly wait for Python's lock.

A server process imports what decoding needs and forks a worker for each connection. Workers start in milliseconds and
share memory. They copy no state of this process, so scripts need no `if __name__ == "__main__"`. If a damaged file
kills a worker, only that file is lost. Linux only; other systems use threads.
"""

import json
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, local
from typing import Any

import numpy as np

from aag.data.encoded import Item
from aag.data.parallel_decode import Chunk, decode_chunk, join_chunks
from aag.data.summary import summarize_chunk

_LENGTH = struct.Struct("<Q")
_START_SECONDS = 60.0
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
        except (OSError, EOFError):  # the worker died
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
        _send(connection, pickle.dumps((os.path.abspath(folder), paths, size)))
        rows, *rest = pickle.loads(_receive(connection))
        images = np.empty((rows, 3, size, size), np.uint8)
        _receive_into(connection, images)
        return Chunk(images, *rest)


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


def _work(connection: socket.socket) -> None:
    while True:
        folder, paths, size = pickle.loads(_receive(connection))
        chunk = decode_chunk(Path(folder), paths, size)
        _send(connection, pickle.dumps((len(chunk.images), chunk.summary, chunk.failures, chunk.files)))
        connection.sendall(chunk.images.reshape(-1).data)


def _send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(content)) + content)


def _receive(connection: socket.socket) -> bytes:
    length = np.empty(_LENGTH.size, np.uint8)
    _receive_into(connection, length)
    content = np.empty(_LENGTH.unpack(length.tobytes())[0], np.uint8)
    _receive_into(connection, content)
    return content.tobytes()


def _receive_into(connection: socket.socket, array: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
    rest = array.reshape(-1)
    while len(rest):
        count = connection.recv_into(rest.data)
        if not count:
            raise EOFError
        rest = rest[count:]
