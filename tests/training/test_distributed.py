"""Several processes train like one: the same losses, gradients, weights, banks and clusters."""

from functools import cache
from pathlib import Path

import distributed_worker
import pytest
import torch
from distributed_worker import CASES, COMPILED, EACH_METHOD, Trained, run_processes

from aag.methods import methods


def test_every_method_is_a_case():
    assert methods().keys() <= {case["method"] for case in CASES.values()}


@pytest.mark.parametrize(
    ("size", "cases"),
    [
        (2, tuple(CASES)),
        (4, (*EACH_METHOD, "moco, shuffled")),
        pytest.param(2, tuple(COMPILED), marks=pytest.mark.slow, id="compiled"),
    ],
)
def test_processes_train_like_one(size, cases, tmp_path):
    """One test for all cases: starting processes takes longer than training."""
    ended = run_processes(size, [distributed_worker.__file__, str(tmp_path / "trained"), *cases], tmp_path)
    assert not any(each.code for each in ended), ended
    found = [torch.load(tmp_path / f"trained.{rank}") for rank in range(size)]
    for case in cases:
        assert_trained_alike(case, train_alone(case), [Trained(**each[case]) for each in found])


@cache
def train_alone(case: str) -> Trained:
    return distributed_worker.train(**(CASES | COMPILED)[case])


def test_kernels_normalise_over_two_processes(tmp_path):
    pytest.importorskip("triton")
    ended = run_processes(2, [str(Path(__file__).with_name("synchronised_kernels.py"))], tmp_path)
    assert not any(each.code for each in ended), ended


def assert_trained_alike(case: str, alone: Trained, processes: list[Trained]) -> None:
    first = processes[0]
    assert torch.allclose(first.losses, alone.losses, rtol=1e-5, atol=1e-6), case  # logged in float32
    for found, expected, tolerance in (
        (first.gradients, alone.gradients, 1e-9),
        (first.state, alone.state, 1e-3),
    ):  # 20 steps amplify rounding
        assert found.keys() == expected.keys(), case
        for name, value in expected.items():
            error = (found[name].double() - value.double()).abs().max()
            assert error <= tolerance * value.double().abs().max() + 1e-8, (case, name)
    for other in processes[1:]:  # bit for bit
        different = [name for name, value in first.state.items() if not torch.equal(other.state[name], value)]
        assert not different, case
