"""Read CIFAR's pickles without running code, and within the memory and time that their size allows."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aag.errors import AAGError, first_line
from aag.text import printable

_PythonUnpickler: Any = pickle._Unpickler


class _SafeDType:
    """Replaces numpy.dtype during unpickling: stores the type code and ignores the state."""

    def __init__(self, code: bytes | str = b"", *_: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        pass


class SafeArray:
    """Replaces numpy.ndarray during unpickling, so that NumPy never interprets shapes and types of unknown files."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran_order, raw = state
        if dtype.code not in ("u1", "|u1", "uint8") or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array that is not uint8")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran_order else "C")


# What CIFAR's files need: containers, texts, numbers, the memo, and the two steps that make an array. Hashing nested
# tuples can take forever. So sets are refused, and keys of dicts must be texts or numbers.
_OPCODES = b"".join(
    [
        pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.NONE,
        pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG,
        pickle.LONG1, pickle.FLOAT, pickle.BINFLOAT, pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING,
        pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINBYTES, pickle.SHORT_BINBYTES,
        pickle.BINBYTES8, pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_TUPLE,
        pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM,
        pickle.SETITEMS, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GET, pickle.BINGET,
        pickle.LONG_BINGET, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD,
    ]
)  # fmt: skip


class _SafeUnpickler(_PythonUnpickler):
    """Unpickles dicts, lists, bytes, numbers and uint8 arrays. It refuses every other class and runs no code.

    Python's own version, not the one in C: that one allocates what a file says, such as 34 GB for a memo of one entry.
    """

    _ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: SafeArray(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: SafeArray(),
        ("numpy", "ndarray"): SafeArray,
        ("numpy", "dtype"): _SafeDType,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            found = printable(f"{module}.{name}")[:100]
            raise AAGError(f"a pickle that uses {found}, which no CIFAR file needs; do not trust this file")
        return self._ALLOWED[module, name]

    def load_build(self) -> None:
        if not isinstance(self.stack[-2], SafeArray | _SafeDType):
            raise pickle.UnpicklingError("state for an object that is not an array")
        super().load_build()

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_dict()

    def _check_keys(self, keys: list[Any]) -> None:
        if not all(isinstance(key, bytes | str | int) for key in keys):
            raise pickle.UnpicklingError("a key that is neither a text nor a number")

    dispatch = {code: load for code, load in _PythonUnpickler.dispatch.items() if code in _OPCODES} | {
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
    }


def unpickle(raw: bytes, path: Path) -> dict[Any, Any]:
    """Return the dict that a file of CIFAR contains. `path` is for messages."""
    try:
        content = _SafeUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except AAGError as error:
        raise AAGError(f"{path} contains {error}") from None
    except Exception as error:  # damaged bytes make an unpickler raise nearly anything
        raise AAGError(f"{path} is damaged ({first_line(error)}); delete it and fetch again") from None
    if not isinstance(content, dict):
        raise AAGError(f"{path} contains a {type(content).__name__}, expected a dict; it is a different file")
    return content
