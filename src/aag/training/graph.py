"""Replace memsets in CUDA graphs by copies: between two kernels a memset takes 7 µs, a small copy a quarter of that.

cuDNN clears a few bytes before some convolutions, two dozen times per step of a ResNet-18: 4 % of its time. The driver
runs small copies as kernels, but not small memsets. Replacing them saves 2.6 % of a step.

This edits the graph through the driver's C structures, so it is off wherever it was not tested.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

TESTED = {("2.11", 13)}  # torch version, major version of the CUDA driver
VARIABLE = "AAG_REPLACE_MEMSETS"  # 0 or 1 overrides

_MEMSET_NODE = 2  # CU_GRAPH_NODE_TYPE_MEMSET
_DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE


class _Memset(ctypes.Structure):  # CUDA_MEMSET_NODE_PARAMS
    _fields_ = [
        ("target", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _CopySide(ctypes.Structure):  # source or destination in CUDA_MEMCPY3D
    _fields_ = [
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("lod", ctypes.c_size_t),
        ("memory_type", ctypes.c_uint), ("host", ctypes.c_void_p), ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p), ("reserved", ctypes.c_void_p), ("pitch", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _Copy(ctypes.Structure):  # CUDA_MEMCPY3D
    _fields_ = [
        ("source", _CopySide), ("target", _CopySide),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
    ]  # fmt: skip


def replace_memsets(graph: torch.cuda.CUDAGraph, zeros: torch.Tensor) -> int:
    """Replace memsets to zero in a captured graph (keep_graph=True) by copies from `zeros`; return how many.

    A memset that is larger than `zeros`, or that the driver refuses to replace, stays.
    """
    driver = _tested_driver()
    if driver is None:
        return 0
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    context = ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(context))
    nodes = _list_nodes(driver.cuGraphGetNodes, handle) or ()
    return sum(_replace(driver, handle, context, node, zeros) for node in nodes)


def unavailable_reason(torch_version: str, driver_version: int | None, override: str | None) -> str:
    """Return why memsets are not replaced, or "". `driver_version`: as cuDriverGetVersion counts, None: no driver."""
    if override not in (None, "", "0", "1"):
        return f"{VARIABLE} must be 0 or 1, not {override!r}"
    if override == "0":
        return f"{VARIABLE} is 0"
    if driver_version is None:
        return "there is no CUDA driver library"
    release, major = ".".join(torch_version.split(".")[:2]), driver_version // 1000
    if override != "1" and (release, major) not in TESTED:
        return f"not tested with torch {release} and CUDA driver {major}; {VARIABLE}=1 turns it on"
    return ""


@cache
def _tested_driver() -> Any:
    """Return the CUDA driver library, or None where memsets stay; the log says why."""
    try:
        driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        known = driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    except OSError:  # other systems have other names for it
        driver, known = None, False
    reason = unavailable_reason(torch.__version__, version.value if known else None, os.environ.get(VARIABLE))
    if reason:
        logging.getLogger("aag.training").info("memsets stay in the CUDA graph, about 3 %% slower: %s", reason)
    return None if reason else driver


def _replace(driver: Any, graph: Any, context: Any, node: Any, zeros: torch.Tensor) -> bool:
    kind = ctypes.c_int()
    driver.cuGraphNodeGetType(node, ctypes.byref(kind))
    if kind.value != _MEMSET_NODE:
        return False
    memset = _Memset()
    driver.cuGraphMemsetNodeGetParams(node, ctypes.byref(memset))
    size = memset.element_size * memset.width
    if memset.value or memset.height != 1 or size > zeros.nbytes:
        return False
    before = _list_nodes(driver.cuGraphNodeGetDependencies, node)
    after = _list_nodes(driver.cuGraphNodeGetDependentNodes, node)
    if before is None or after is None:
        return False
    source, target = (
        _CopySide(memory_type=_DEVICE_MEMORY, device=address, pitch=size, height=1)
        for address in (zeros.data_ptr(), memset.target)
    )
    copy, copy_node = _Copy(source, target, size, 1, 1), ctypes.c_void_p()
    added = ctypes.byref(copy_node), graph, _array(before), len(before), ctypes.byref(copy), context
    if driver.cuGraphAddMemcpyNode(*added):
        return False
    if after and driver.cuGraphAddDependencies(graph, _array([copy_node] * len(after)), _array(after), len(after)):
        driver.cuGraphDestroyNode(copy_node)
        return False
    driver.cuGraphDestroyNode(node)
    return True


def _list_nodes(query: Callable[..., int], subject: Any) -> list[ctypes.c_void_p] | None:
    """Return the nodes that a query of the driver lists; None where it fails."""
    count = ctypes.c_size_t()
    if query(subject, None, ctypes.byref(count)):
        return None
    nodes = (ctypes.c_void_p * count.value)()
    if count.value and query(subject, nodes, ctypes.byref(count)):
        return None
    return [ctypes.c_void_p(node) for node in nodes]


def _array(nodes: list[ctypes.c_void_p]) -> Any:
    return (ctypes.c_void_p * len(nodes))(*nodes)
