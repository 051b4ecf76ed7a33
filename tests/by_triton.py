"""Kernels where there is no GPU: interpreted, in a process of their own, or compiled for one that need not be there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )


def interpret(tests: Path, part: str) -> None:
    """Runs tests of a file, chosen as by pytest's -k: whether Triton interprets is settled when it is imported."""
    pytest.importorskip("triton")
    plain = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    found = python("-m", "pytest", *plain, str(tests), "-k", part, TRITON_INTERPRET="1")
    assert found.returncode == 0, found.stdout[-5000:] + found.stderr[-1000:]


SHARED = 101_376  # bytes of shared memory that a program may take on a consumer's card; an H200 has twice as many


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], aligned: set[str], **options: Any
) -> dict[str, Any]:
    """The stages of a kernel compiled for Hopper, by name: ptx, cubin …

    `types`: Triton's names of the arguments' types, where they are no constants; `aligned`: arguments divisible by 16.
    """
    triton = pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted kernels don't compile")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if name in aligned and name not in constants
    }
    source = ASTSource(kernel, signature, constants, attributes)
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert len(found.asm["cubin"]) > 1000
    assert found.metadata.shared <= SHARED, (kernel, constants, options, found.metadata.shared)
    return found.asm
