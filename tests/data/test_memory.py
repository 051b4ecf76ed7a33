import threading
import time
from pathlib import Path

import pytest

from aag.data import memory
from aag.data.memory import Budget, OverBudgetError

UNIT = memory.UNCOUNTED_BYTES + 1


def test_requests_wait_until_enough_is_free():
    budget, lock, held, most = Budget(3 * UNIT), threading.Lock(), [0], [0]

    def work(count: int) -> None:
        for _ in range(20):
            with budget.reserve(count * UNIT):
                with lock:
                    held[0] += count
                    most[0] = max(most[0], held[0])
                time.sleep(0.0005)
                with lock:
                    held[0] -= count

    threads = [threading.Thread(target=work, args=(count,)) for count in (1, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] == 3  # the largest request ran alone, and nothing ran beside it
    assert budget.free == budget.total


def test_requests_above_the_budget_are_refused_and_small_ones_never_wait():
    budget = Budget(3 * UNIT)
    with pytest.raises(OverBudgetError), budget.reserve(3 * UNIT + 1):
        pass
    with budget.reserve(3 * UNIT), budget.reserve(memory.UNCOUNTED_BYTES):
        assert budget.free == 0
    with pytest.raises(KeyError), budget.reserve(UNIT):
        raise KeyError
    assert budget.free == budget.total


def test_large_request_is_not_overtaken():
    budget, order = Budget(2 * UNIT), []

    def work(name: str, count: int) -> None:
        with budget.reserve(count * UNIT):
            order.append(name)

    with budget.reserve(UNIT):
        large = threading.Thread(target=work, args=("large", 2))
        large.start()
        while not budget._queue:
            time.sleep(0.001)
        small = threading.Thread(target=work, args=("small", 1))
        small.start()
        small.join(0.05)
        assert order == []  # a unit is free, but the large request came first
    large.join(30)
    small.join(30)
    assert order == ["large", "small"]


def test_container_limit_counts(tmp_path, monkeypatch):
    group = tmp_path / "job"
    group.mkdir()
    for name, value in {"memory.max": 2_000_000_000, "memory.current": 1_500_000_000}.items():
        (group / name).write_text(f"{value}\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 400000000\n")
    (tmp_path / "memory.max").write_text("max\n")
    real = Path.read_text
    monkeypatch.setattr(memory, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(
        Path, "read_text", lambda path, *a: "0::/job\n" if str(path) == "/proc/self/cgroup" else real(path, *a)
    )
    monkeypatch.setattr(memory, "_budget", None)
    assert memory.memory_limit() == 2_000_000_000
    assert memory.available_memory() == 900_000_000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory.decoding_budget().total == 125_000_000
