"""Replace memsets in CUDA graphs by copies: between two kernels a memset takes 7 µs, a small copy a quarter of that.

cuDNN clears a few bytes before some convolutions, two dozen times per step of a ResNet-18: 4 % of its time. The driver
runs small copies as kernels, but not small memsets. Replacing them saves 2.6 % of a step.

This edits the graph through the driver's C structures, so it only runs on versions in `TESTED_VERSIONS`.
"""

import logging
import os
from collections.abc import Callable
from ctypes import CDLL, Structure, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

import torch

TESTED_VERSIONS = {("2.11", 13)}  # torch version, major version of the CUDA driver
REPLACE_MEMSETS_VARIABLE = "AAG_REPLACE_MEMSETS"  # 0 or 1 overrides

_MEMSET_NODE = 2  # CU_GRAPH_NODE_TYPE_MEMSET
_DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE


class _Memset(Structure):  # CUDA_MEMSET_NODE_PARAMS
    _fields_ = [
        ("target", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("element_size", c_uint),
        ("width", c_size_t), ("height", c_size_t),
    ]  # fmt: skip


class _CopySide(Structure):  # source or destination in CUDA_MEMCPY3D
    _fields_ = [
        ("x", c_size_t), ("y", c_size_t), ("z", c_size_t), ("lod", c_size_t), ("memory_type", c_uint),
        ("host", c_void_p), ("device", c_uint64), ("array", c_void_p), ("reserved", c_void_p),
        ("pitch", c_size_t), ("height", c_size_t),
    ]  # fmt: skip


class _Copy(Structure):  # CUDA_MEMCPY3D
    _fields_ = [
        ("source", _CopySide), ("target", _CopySide), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
    ]  # fmt: skip


def replace_memsets(graph: torch.cuda.CUDAGraph, zeros: torch.Tensor) -> int:
    """Replace memsets to zero in a captured graph (keep_graph=True) by copies from `zeros`; return how many.

    A memset that is larger than `zeros`, or that the driver refuses to replace, stays.
    """
    driver = _tested_driver(os.environ.get(REPLACE_MEMSETS_VARIABLE))
    if driver is None:
        return 0
    handle = c_void_p(graph.raw_cuda_graph())
    context = c_void_p()
    driver.cuCtxGetCurrent(byref(context))
    nodes = _list_nodes(driver.cuGraphGetNodes, handle) or ()
    return sum(_replace_memset(driver, handle, context, node, zeros) for node in nodes)


def unavailable_reason(torch_version: str, driver_version: int | None, override: str | None) -> str:
    """Return why memsets are not replaced, or "". `driver_version`: as cuDriverGetVersion counts, None: no driver."""
    if override not in (None, "", "0", "1"):
        return f"{REPLACE_MEMSETS_VARIABLE} must be 0 or 1, not {override!r}"
    if override == "0":
        return f"{REPLACE_MEMSETS_VARIABLE} is 0"
    if driver_version is None:
        return "there is no CUDA driver library"
    release, major = ".".join(torch_version.split(".")[:2]), driver_version // 1000
    if override != "1" and (release, major) not in TESTED_VERSIONS:
        return f"not tested with torch {release} and CUDA driver {major}; {REPLACE_MEMSETS_VARIABLE}=1 turns it on"
    return ""


@cache
def _tested_driver(override: str | None) -> Any:
    """Return the CUDA driver library, or None where memsets stay; the log says why."""
    try:
        driver, version = CDLL("libcuda.so.1"), c_int()
        known = driver.cuDriverGetVersion(byref(version)) == 0
    except OSError:  # other systems have other names for it
        driver, known = None, False
    reason = unavailable_reason(torch.__version__, version.value if known else None, override)
    if reason:
        logging.getLogger("aag.training").info("memsets stay in the CUDA graph, about 3 %% slower: %s", reason)
    return None if reason else driver


def _replace_memset(driver: Any, graph: Any, context: Any, node: Any, zeros: torch.Tensor) -> bool:
    kind = c_int()
    driver.cuGraphNodeGetType(node, byref(kind))
    if kind.value != _MEMSET_NODE:
        return False
    memset = _Memset()
    driver.cuGraphMemsetNodeGetParams(node, byref(memset))
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
    copy, copy_node = _Copy(source, target, size, 1, 1), c_void_p()
    added = byref(copy_node), graph, _node_array(before), len(before), byref(copy), context
    if driver.cuGraphAddMemcpyNode(*added):
        return False
    if after and driver.cuGraphAddDependencies(
        graph, _node_array([copy_node] * len(after)), _node_array(after), len(after)
    ):
        driver.cuGraphDestroyNode(copy_node)
        return False
    driver.cuGraphDestroyNode(node)
    return True


def _list_nodes(query: Callable[..., int], subject: Any) -> list[c_void_p] | None:
    """Return the nodes that a query of the driver lists; None where it fails."""
    count = c_size_t()
    if query(subject, None, byref(count)):
        return None
    nodes = (c_void_p * count.value)()
    if count.value and query(subject, nodes, byref(count)):
        return None
    return [c_void_p(node) for node in nodes]


def _node_array(nodes: list[c_void_p]) -> Any:
    return (c_void_p * len(nodes))(*nodes)
