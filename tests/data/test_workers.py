import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aag import data
from aag.data import memory, parallel_decode
from aag.data.workers import Workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")


@pytest.fixture
def photos(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(30):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(folder / f"{i:02}.{('png', 'jpg')[i % 2]}")
    (folder / "05.jpg").write_bytes(b"broken")
    return folder


def test_workers_give_what_threads_give(photos, monkeypatch):
    paths = sorted(os.listdir(photos))
    monkeypatch.setattr(parallel_decode, "CHUNK_BYTES", 3 * 16 * 16 * 4)
    by_threads = parallel_decode.join_chunks(list(parallel_decode.decode_files(photos, paths, 16)))
    monkeypatch.setattr(parallel_decode, "PROCESS_FILES", 1)
    by_workers = parallel_decode.join_chunks(list(parallel_decode.decode_files(photos, paths, 16)))
    assert np.array_equal(by_workers.images, by_threads.images)
    assert by_workers.failures == by_threads.failures == {5: "not an image Pillow can read"}
    assert by_workers.summary.digests == by_threads.summary.digests


def children(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_dead_worker_is_replaced_and_ends_with_its_owner(photos):
    workers = Workers()
    server = workers._server.pid
    try:
        assert workers.decode(photos, ["00.png"], 8).files == 1
        (first,) = children(server)
        os.kill(first, signal.SIGKILL)
        chunk = workers.decode(photos, ["00.png", "01.jpg", "05.jpg"], 8)
        assert (len(chunk.images), list(chunk.failures)) == (2, [2])
        (second,) = children(server)
        assert second != first
        os.kill(second, signal.SIGKILL)
        assert workers.decode(photos, ["00.png"], 8).failures == {0: "the decoder crashed"}  # a file alone is to blame
    finally:
        workers.close()
    assert not Path(f"/proc/{server}").exists()


def test_without_its_server_a_thread_decodes_itself(photos):
    workers = Workers()
    try:
        workers._server.kill()
        workers._server.wait()
        chunk = workers.decode(photos, ["00.png", "05.jpg"], 8)
        assert (len(chunk.images), chunk.failures) == (1, {1: "not an image Pillow can read"})
    finally:
        workers.close()


def test_script_without_a_main_guard_decodes_in_processes(photos, root):
    script = (
        "from aag import data; from aag.data import parallel_decode; parallel_decode.PROCESS_FILES = 1\n"
        f"print(len(data.load({str(photos)!r}, image_size=16)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("29\n", "")
    assert len(data.load(photos, image_size=16)) == 29


def test_workers_inherit_no_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    workers = Workers()
    try:
        environment = Path(f"/proc/{workers._server.pid}/environ").read_bytes()
    finally:
        workers.close()
    assert b"PATH=" in environment
    assert b"hunter2" not in environment


class WatchedBudget(memory.Budget):
    """Notes the requests and the least that was free."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.least, self.requests = total, list[int]()

    @contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        with super().reserve(amount):
            self.requests.append(amount)
            self.least = min(self.least, self.free)
            yield


@pytest.mark.parametrize("processes", [False, True])
def test_large_pictures_share_a_budget(tmp_path, monkeypatch, processes):
    for i in range(6):
        Image.new("RGB", (2000, 1500), (i, 0, 0)).save(tmp_path / f"{i}.png")  # 36 MB each by the estimate
    Image.new("RGB", (4000, 3000)).save(tmp_path / "6.png")  # 144 MB
    Image.new("RGB", (40, 30)).save(tmp_path / "7.png")
    budget = WatchedBudget(80_000_000)
    monkeypatch.setattr(memory, "_budget", budget)
    monkeypatch.setattr(parallel_decode, "core_count", lambda: 4)
    if processes:
        monkeypatch.setattr(parallel_decode, "PROCESS_FILES", 1)
    chunks = list(parallel_decode.decode_files(tmp_path, sorted(os.listdir(tmp_path)), 8))
    chunk = parallel_decode.join_chunks(chunks)
    assert len(chunk.images) == 7
    assert "144 MB of memory" in chunk.failures[6]
    large = [amount for amount in budget.requests if amount > memory.UNCOUNTED_BYTES]
    assert len(large) == 6
    assert 0 <= budget.least < budget.total - 30_000_000
    assert budget.free == budget.total


def test_dead_worker_returns_its_memory(photos, monkeypatch):
    budget = WatchedBudget(100_000_000)
    monkeypatch.setattr(memory, "_budget", budget)
    Image.new("RGB", (2000, 1500)).save(photos / "large.png")
    workers = Workers()
    real = budget.reserve

    @contextmanager
    def kill_during(amount: int) -> Iterator[None]:
        with real(amount):
            os.kill(children(workers._server.pid)[0], signal.SIGKILL)
            yield

    monkeypatch.setattr(budget, "reserve", kill_during)
    try:
        assert workers.decode(photos, ["large.png"], 8).failures == {0: "the decoder crashed"}
    finally:
        workers.close()
    assert budget.free == budget.total
