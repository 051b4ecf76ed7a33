"""The kernels: when they are taken, that they compile for a GPU, and, interpreted on the CPU, that they agree."""

from importlib import import_module
from pathlib import Path

import pytest
import torch

from aag import kernels
from by_triton import compiled, interpret, python

INTERPRETED = Path(__file__).with_name("interpreted_kernels.py")


# --- when ------------------------------------------------------------------------------------------------------------


def test_triton_is_imported_by_the_first_kernel_alone():
    found = python("-c", "import sys, aag.augment; print('triton' in sys.modules)")
    assert found.stdout.strip() == "False", found.stderr


def test_a_cpu_does_without_kernels(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not kernels.enabled(torch.zeros(1))


def test_kernels_can_be_disabled_for_a_while(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels.enabled(torch.zeros(1))
    with kernels.disabled():
        assert not kernels.enabled(torch.zeros(1))
        with kernels.disabled():
            pass
        assert not kernels.enabled(torch.zeros(1))
    assert kernels.enabled(torch.zeros(1))
    assert not kernels.enabled(torch.zeros(1, device="meta"))


def test_where_kernels_fail_torch_does_the_work_and_says_so():
    with pytest.warns(UserWarning, match="without Triton kernels"):
        assert kernels.unavailable_reason.__wrapped__(torch.device("meta"))


# --- interpreted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["test_draws", "test_operation", "test_view"])
def test_interpreted_kernels_agree_with_torch(part):
    interpret(INTERPRETED, part)


# --- compiled for a GPU that need not be there -----------------------------------------------------------------------

POINTERS = {
    "image": "*i64", "key": "*i64", "settings": "*fp64", "chances": "*fp64", "steps": "*fp64", "index": "*i32",
    "work": "*fp32", "draws": "*fp32", "images": "*u8",
}  # fmt: skip
OUTPUTS = {"fold_keys": "*i64", "draw_views": "*fp32", "pick_steps": "*i32"}
SIDES = ("height", "width", "rows", "columns")

VARIANTS = {
    "fold_keys": ("aag.kernels.rng", {"BLOCK": 64}, 16, "u8"),
    "draw_views": ("aag.augment.kernels.draws", {"BLOCK": 16}, 16, "u8"),
    "pick_steps": ("aag.augment.kernels.draws", {"BLOCK": 64}, 16, "u8"),
    "crop_resized": ("aag.augment.kernels.crop", {"TILE": 1024}, 16, "u8"),
    "crop_resized of 1×1": ("aag.augment.kernels.crop", {"TILE": 1024}, 1, "u8"),
    "crop_padded": ("aag.augment.kernels.crop", {"TILE": 1024}, 16, "u8"),
    "operate_each": ("aag.augment.kernels.operate", {"TILE": 1024}, 16, "u8"),
    "operate_each of odd sizes": ("aag.augment.kernels.operate", {"TILE": 1024}, None, "u8"),
    "operate_each of 1×1": ("aag.augment.kernels.operate", {"TILE": 1024}, 1, "u8"),
    "basic_view": ("aag.augment.kernels.view", {"TWO": True, "ONE": True, "TILE": 1024}, 16, "u8"),
    "basic_view of large floats": (
        "aag.augment.kernels.view",
        {"TWO": False, "ONE": False, "TILE": 1024},
        None,
        "fp32",
    ),
    "basic_view of 1×1": ("aag.augment.kernels.view", {"TWO": True, "ONE": True, "TILE": 1024}, 1, "fp16"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernel_compiles_and_rounds_as_torch(variant):
    """Sides divisible by 16 and sides of 1 are cases of their own to Triton."""
    pytest.importorskip("triton")
    module, constants, side, dtype = VARIANTS[variant]
    name = variant.split()[0]
    kernel = getattr(import_module(module), name)
    types = dict.fromkeys(kernel.arg_names, "i32") | POINTERS
    types |= {"images": f"*{dtype}", "out": OUTPUTS.get(name, f"*{dtype}")}
    if side == 1:
        constants = constants | {argument: 1 for argument in kernel.arg_names if argument in SIDES}
    aligned = {"images", "out", "work", *(SIDES if side else ())}
    warps = 4 if module.endswith(("draws", "rng")) else 8
    ptx = compiled(kernel, types, constants, aligned, num_warps=warps, enable_fp_fusion=False)["ptx"]
    assert "div.full" not in ptx
    assert "div.approx" not in ptx
    assert "fma.rn.f32" not in ptx
