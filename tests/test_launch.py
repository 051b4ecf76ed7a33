"""Launching kernels, and rehearsals: what would be launched is compiled beforehand, each variant once."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aag import kernels
from aag.kernels import dry_run, in_dry_run, launch


class Kernel:
    """Takes down what is asked of it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.launched: list[Any] = []
        self.compiled: list[Any] = []
        self.loaded = 0
        self.error = error

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **settings: self.launched.append((grid, arguments, settings))

    def warmup(self, *arguments: Any, grid: tuple[int, ...], **settings: Any) -> Any:
        if self.error:
            raise self.error
        assert not in_dry_run()
        self.compiled.append((grid, arguments, settings))
        return self

    @property
    def run(self) -> None:
        self.loaded += 1


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the devices that compiling threads set."""
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    return found


def test_a_launch_is_one():
    kernel = Kernel()
    launch(kernel, (2, 3), 7, "x", BLOCK=16, num_warps=4)
    launch(kernel, (1,), enable_fp_fusion=False)
    assert kernel.launched == [
        ((2, 3), (7, "x"), {"BLOCK": 16, "num_warps": 4, "enable_fp_fusion": True}),
        ((1,), (), {"enable_fp_fusion": False}),
    ]
    assert not in_dry_run()


def test_a_rehearsal_launches_nothing_and_compiles_at_its_end(devices):
    first, second = Kernel(), Kernel()
    with dry_run():
        assert in_dry_run()
        launch(first, (1,), torch.zeros(4), 32, BLOCK=16)
        launch(second, (5,), 0.5)
        assert not first.compiled
    assert not in_dry_run()
    assert not first.launched
    assert not second.launched
    assert [(grid, arguments[1], settings) for grid, arguments, settings in first.compiled] == [
        ((1,), 32, {"BLOCK": 16, "enable_fp_fusion": True})
    ]
    assert second.compiled == [((5,), (0.5,), {"enable_fp_fusion": True})]
    assert first.loaded == second.loaded == 1
    assert devices == [3, 3]
    launch(first, (1,), 1)
    assert len(first.launched) == 1


def test_launches_from_other_threads_are_rehearsed_too(devices):
    kernel = Kernel()
    with dry_run():
        thread = threading.Thread(target=launch, args=(kernel, (1,), 5))  # as backward has one of its own
        thread.start()
        thread.join()
    assert not kernel.launched
    assert len(kernel.compiled) == 1


FLOATS = torch.zeros(64)
SAME = {  # what a compiled kernel takes for the same
    "sizes": ((48,), (64,)),
    "odd sizes": ((7,), (9,)),
    "numbers": ((0.5,), (2.5,)),
    "tensors": ((FLOATS,), (FLOATS[4:],)),
}
OTHER = {
    "one": ((1,), (7,)),
    "sixteen": ((16,), (7,)),
    "long": ((2**31,), (2**30,)),
    "kind": ((2.0,), (2,)),
    "dtype": ((FLOATS,), (FLOATS.half(),)),
    "alignment": ((FLOATS,), (FLOATS[1:],)),
}


@pytest.mark.parametrize("name", SAME)
def test_a_variant_is_compiled_once(devices, name):
    assert _compiled(*SAME[name]) == 1


@pytest.mark.parametrize("name", OTHER)
def test_other_arguments_are_another_variant(devices, name):
    assert _compiled(*OTHER[name]) == 2


def test_other_settings_are_another_variant(devices):
    assert _compiled((), (), settings=({"BLOCK": 16}, {"BLOCK": 32})) == 2
    assert _compiled((), (), settings=({"ADD": True}, {"ADD": True})) == 1


def _compiled(*calls: tuple[Any, ...], settings: tuple[dict[str, Any], ...] = ({}, {})) -> int:
    kernel = Kernel()
    with dry_run():
        for arguments, given in zip(calls, settings, strict=True):
            launch(kernel, (1,), *arguments, **given)
    return len(kernel.compiled)


def test_a_kernel_that_does_not_compile_is_told(devices):
    def fails() -> None:
        with dry_run():
            launch(Kernel(ValueError("out of shared memory")), (1,))

    with pytest.raises(ValueError, match="out of shared memory"):
        fails()
    assert not in_dry_run()


def test_what_fails_inside_is_told_and_nothing_compiled(devices):
    kernel = Kernel()

    def fails() -> None:
        with dry_run():
            launch(kernel, (1,))
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fails()
    assert not in_dry_run()
    assert not kernel.compiled


def test_a_rehearsal_of_nothing_needs_no_gpu(monkeypatch):
    monkeypatch.setattr(kernels, "torch", SimpleNamespace())  # would fail if asked for a device
    with dry_run():
        pass
