"""Test kernels without a GPU: run them in Triton's interpreter, in a new process, or compile them for one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MAX_SHARED_MEMORY = 101_376  # bytes per program on a consumer GPU; an H200 has twice as much


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )


def interpret(tests: Path) -> None:
    """Run a file's tests in a new process: Triton reads TRITON_INTERPRET when it is imported."""
    pytest.importorskip("triton")
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    found = python("-m", "pytest", *options, str(tests), TRITON_INTERPRET="1")
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-1000:]


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], aligned: set[str], **options: Any
) -> dict[str, Any]:
    """Compile a kernel for Hopper and return its stages by name: ptx, cubin and others.

    `types`: Triton's type names of the arguments that are not constants; `aligned`: arguments divisible by 16.
    """
    triton = pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter does not compile")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    attributes = {
        (position,): [["tt.divisibility", 16]]
        for position, name in enumerate(kernel.arg_names)
        if name in aligned and name not in constants
    }
    source = ASTSource(kernel, signature, constants, attributes)
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert len(found.asm["cubin"]) > 1000
    assert found.metadata.shared <= MAX_SHARED_MEMORY, (kernel, constants, options, found.metadata.shared)
    return found.asm
