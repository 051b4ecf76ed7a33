"""Several processes train like one: the same losses, gradients, weights, banks and clusters."""

from pathlib import Path

import distributed_worker
import pytest
import torch
from distributed_worker import CASES, FEW, Trained, run_processes

_alone: dict[str, Trained] = {}  # what one process computes


def trained_alone(case: str) -> Trained:
    if case not in _alone:
        _alone[case] = distributed_worker.train(**CASES[case])
    return _alone[case]


def train_together(size: int, cases: tuple[str, ...], folder: Path) -> list[dict[str, Trained]]:
    """Return what each of several processes computed, case by case."""
    ended = run_processes(size, [distributed_worker.__file__, str(folder / "trained"), *cases], folder)
    assert not any(each.code for each in ended), ended
    found = [torch.load(folder / f"trained.{rank}") for rank in range(size)]
    return [{case: Trained(**values) for case, values in each.items()} for each in found]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return train_together(2, tuple(CASES), tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return train_together(4, FEW, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_like_one(two, case):
    assert_trained_alike(trained_alone(case), [each[case] for each in two])


@pytest.mark.parametrize("case", FEW)
def test_four_processes_train_like_one(four, case):
    assert_trained_alike(trained_alone(case), [each[case] for each in four])


def test_kernels_normalise_over_two_processes(tmp_path):
    pytest.importorskip("triton")
    ended = run_processes(2, [str(Path(__file__).with_name("synchronised_kernels.py"))], tmp_path)
    assert not any(each.code for each in ended), ended


def assert_trained_alike(alone: Trained, processes: list[Trained]) -> None:
    first = processes[0]
    torch.testing.assert_close(first.losses, alone.losses, rtol=1e-5, atol=1e-6)  # logged in float32
    for found, expected, tolerance in ((first.gradients, alone.gradients, 1e-9), (first.state, alone.state, 1e-5)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            error = (found[name].double() - value.double()).abs().max()
            assert error <= tolerance * value.double().abs().max() + 1e-10, name
    for other in processes[1:]:  # bit for bit
        different = [name for name, value in first.state.items() if not torch.equal(other.state[name], value)]
        assert not different
