"""The kernels: where they run, that they agree with PyTorch in Triton's interpreter, and that they compile."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import torch

from aag import kernels
from by_triton import compiled, interpret, python

INTERPRETED = Path(__file__).with_name("interpreted_kernels.py")


# --- where ------------------------------------------------------------------------------------------------------------


def test_triton_is_imported_only_with_the_first_kernel():
    found = python("-c", "import sys, aag.augment; print('triton' in sys.modules)")
    assert found.stdout.strip() == "False", found.stderr


def test_a_cpu_runs_no_kernels(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not kernels.enabled(torch.zeros(1))


def test_kernels_can_be_disabled_temporarily(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels.enabled(torch.zeros(1))
    with kernels.disabled():
        assert not kernels.enabled(torch.zeros(1))
        with kernels.disabled():
            pass
        assert not kernels.enabled(torch.zeros(1))
    assert kernels.enabled(torch.zeros(1))
    assert not kernels.enabled(torch.zeros(1, device="meta"))


def test_a_device_without_kernels_gets_a_warning():
    with pytest.warns(UserWarning, match="Triton kernels are unavailable"):
        assert kernels.unavailable_reason.__wrapped__(torch.device("meta"))


@pytest.mark.parametrize("module", ["basic", "crop", "policy"])
def test_kernels_know_every_field(module):
    """A new field must be added to the kernel too, or the kernel is not used any more."""
    pytest.importorskip("triton")
    kernel = import_module(f"aag.augment.kernels.{module}")
    for cls, known in kernel.KNOWN_FIELDS.items():
        assert known == {field.name for field in fields(cls)}
        assert kernel.supports(cls())


# --- interpreted -----------------------------------------------------------------------------------------------------


def test_interpreted_kernels():
    interpret(INTERPRETED)


# --- compiled for a GPU -----------------------------------------------------------------------

POINTERS = {
    "image": "*i64", "rng_key": "*i64", "settings": "*fp64", "probabilities": "*fp64", "parameters": "*fp64",
    "row": "*i32", "workspace": "*fp32", "draws": "*fp32", "images": "*u8",
}  # fmt: skip
OUTPUTS = {"keys_kernel": "*i64", "draw_kernel": "*fp32", "choose_ops_kernel": "*i32"}
SIDES = ("height", "width", "rows", "columns")

SMALL = {"TWO_TAPS": True, "ONE_TILE": True, "TILE": 1024}
LARGE = {"TWO_TAPS": False, "ONE_TILE": False, "TILE": 1024}
VARIANTS = {  # module, constants, a side (None: any), dtype of the images
    "keys_kernel": ("aag.kernels.rng", {"BLOCK": 64}, 16, "u8"),
    "draw_kernel": ("aag.augment.kernels.draws", {"BLOCK": 16}, 16, "u8"),
    "choose_ops_kernel": ("aag.augment.kernels.policy", {"BLOCK": 64}, 16, "u8"),
    "crop_resized": ("aag.augment.kernels.crop", {"TWO_TAPS": True, "TILE": 1024}, 16, "u8"),
    "crop_resized to a smaller size": ("aag.augment.kernels.crop", {"TWO_TAPS": False, "TILE": 1024}, 16, "u8"),
    "crop_resized of 1×1": ("aag.augment.kernels.crop", {"TWO_TAPS": True, "TILE": 1024}, 1, "u8"),
    "crop_padded": ("aag.augment.kernels.crop", {"TILE": 1024}, 16, "u8"),
    "apply_ops_kernel": ("aag.augment.kernels.ops", {"TILE": 1024}, 16, "u8"),
    "apply_ops_kernel of odd sizes": ("aag.augment.kernels.ops", {"TILE": 1024}, None, "u8"),
    "apply_ops_kernel of 1×1": ("aag.augment.kernels.ops", {"TILE": 1024}, 1, "u8"),
    "view_kernel": ("aag.augment.kernels.basic", SMALL, 16, "u8"),
    "view_kernel of large floats": ("aag.augment.kernels.basic", LARGE, None, "fp32"),
    "view_kernel of 1×1": ("aag.augment.kernels.basic", SMALL, 1, "fp16"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernel_compiles_and_rounds_like_torch(variant):
    """Triton compiles special cases for sides divisible by 16 and sides of 1."""
    pytest.importorskip("triton")
    module, constants, side, dtype = VARIANTS[variant]
    name = variant.split()[0]
    kernel = getattr(import_module(module), name)
    types = dict.fromkeys(kernel.arg_names, "i32") | POINTERS
    types |= {"images": f"*{dtype}", "out": OUTPUTS.get(name, f"*{dtype}")}
    if side == 1:
        constants = constants | {argument: 1 for argument in kernel.arg_names if argument in SIDES}
    aligned = {"images", "out", "workspace", *(SIDES if side else ())}
    warps = 4 if "BLOCK" in constants else 8
    ptx = compiled(kernel, types, constants, aligned, num_warps=warps, enable_fp_fusion=False)["ptx"]
    assert "div.full" not in ptx
    assert "div.approx" not in ptx
    assert "fma.rn.f32" not in ptx
