import io
import re
import tarfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest
from shards import same_images, write_parquet, write_shards

from aag import data
from aag.data import remote


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.001)


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class Server(ThreadingHTTPServer):
    """Serves a folder with byte ranges, counts requests, and fails when told to."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.requests, self.errors, self.ranges, self.limit = folder, Counter(), Counter(), True, 10**9
        self.sent, self.counting = 0, threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(is_head=True)

    def do_GET(self) -> None:
        self.answer(is_head=False)

    def answer(self, is_head: bool) -> None:
        server = self.server
        path = server.folder / self.path.lstrip("/")
        wanted = (self.path, None if is_head else self.headers.get("Range"))
        with server.counting:  # requests come in threads
            server.requests[wanted] += 1
            is_busy = server.errors[self.path] > 0
            server.errors[self.path] -= is_busy
        status, content, extra = 200, path.read_bytes() if path.is_file() else b"", {}
        if not path.is_file():
            status = 404
        elif is_busy:
            status, content = 503, b"busy"
        elif server.sent > server.limit and not is_head:
            status, content = 500, b"down"
        elif server.ranges:
            extra["Accept-Ranges"] = "bytes"
            if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or ""):
                first, last = map(int, found.groups())
                extra["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                status, content = 206, content[first : last + 1]
        self.send_response(status)
        for name, value in (extra | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if not is_head:
            self.wfile.write(content)
            with server.counting:
                server.sent += len(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    fsspec.filesystem("http").clear_instance_cache()


def test_remote_folder_is_read_like_a_local_one(memory, images, folder):
    for i, content in enumerate(images):
        memory.pipe(f"/photos/train/{'ab'[i % 2]}/{i:04}.png", content)
    memory.pipe("/photos/test/b/[1]*.png", images[0])  # a name, not a pattern
    memory.pipe("/photos/test/b/broken.png", b"broken")
    memory.pipe("/photos/test/b/empty.png", b"")
    memory.pipe("/photos/test/.hidden/x.png", images[1])
    memory.pipe("/photos/test/b/IMG.HEIC", b"x")
    train, test = data.load_pair("memory://photos", image_size=16)
    assert train.names == sorted(f"{'ab'[i % 2]}/{i:04}.png" for i in range(25))
    assert train.classes == test.classes == ("a", "b")
    whole = data.load(folder, image_size=16)
    order = [int(name[2:6]) for name in train.names]
    assert (train.images == whole.images[order]).all()
    assert (test.images[0] == whole.images[0]).all()
    assert (test.names, test.labels.tolist()) == (["b/[1]*.png"], [1])
    assert test.skipped[0] == "b/IMG.HEIC: Pillow cannot read this format; convert it to JPEG"
    assert test.skipped[1:] == ("b/broken.png: not an image Pillow can read", "b/empty.png: empty file")
    assert data.survey("memory://photos").count == 25


def test_a_store_is_listed_once(memory, images, root, monkeypatch):
    memory.pipe("/photos/1.png", images[0])
    listed, find = [], memory.find
    monkeypatch.setattr(memory, "find", lambda path, **options: listed.append(path) or find(path, **options))
    data.load("memory://photos", image_size=16)
    data.survey("memory://photos")
    assert len(listed) == 2


def test_changed_remote_file_is_read_again(memory, images, root):
    for i, content in enumerate(images):
        memory.pipe(f"/photos/{i}.png", content)
    first = data.load("memory://photos", image_size=16)
    memory.pipe("/photos/3.png", images[4])
    assert data.load("memory://photos", image_size=16).fingerprint() != first.fingerprint()


def test_remote_holdout(memory, images, root):
    for i, content in enumerate(images):
        memory.pipe(f"/photos/{'ab'[i % 2]}/{i:04}.png", content)
    train, test = data.load_pair("memory://photos", image_size=16, holdout=0.3)
    assert len(train) + len(test) == 25
    assert len(test) >= 2


@pytest.mark.parametrize("protocol", ["memory", "file"])
@pytest.mark.parametrize("kind", ["folder of tar", "tar by braces", "tar by *", "parquet"])
def test_remote_shards(tmp_path, memory, images, folder, protocol, kind):
    write_shards(tmp_path / "set/tar", images, classes=2)
    write_parquet(tmp_path / "set/parquet/a.parquet", images, [i % 2 for i in range(25)], row_group_size=4)
    memory.put(str(tmp_path / "set"), "/", recursive=True)
    base = "memory://set" if protocol == "memory" else f"file://{tmp_path}/set"
    source = {"folder of tar": "tar", "tar by braces": "tar/{000..002}.tar", "tar by *": "tar/*.tar"}.get(kind, kind)
    found = data.load(f"{base}/{source}", image_size=16)
    same_images(found, folder)
    assert found.labels.tolist() == [i % 2 for i in range(25)]
    assert found.names[0] == ("a/00000000" if kind == "parquet" else "000/0000")


def test_web_server_that_is_busy_at_times(tmp_path, images, folder, server, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK_BYTES", 4096)
    write_shards(tmp_path / "shards", images)
    server.errors = Counter({f"/shards/{i:03}.tar": 3 for i in range(3)})
    found = data.load(f"{server.url}/shards/{{000..002}}.tar", image_size=16)
    same_images(found, folder)
    assert not any(server.errors.values())  # they happened
    blocks = {wanted: count for wanted, count in server.requests.items() if wanted[1]}
    read = {(path, int(wanted[6:].partition("-")[0])) for path, wanted in blocks}
    for path in sorted((tmp_path / "shards").iterdir()):
        with tarfile.open(path) as shard:
            last = shard.getmembers()[-1]
        starts = {(f"/shards/{path.name}", start) for start in range(0, last.offset_data + last.size, 4096)}
        assert starts <= read  # zeros that follow the last file may be left unread
    assert sum(blocks.values()) <= len(blocks) + 9  # each is read once, but for the errors


def test_server_that_goes_away_loses_nothing(tmp_path, images, folder, server, monkeypatch, refused):
    monkeypatch.setattr(remote, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(remote, "BLOCKS_AHEAD", 1)
    monkeypatch.setattr("aag.data.encoded.PIXEL_BYTES", 3 * 16 * 16 * 2)
    write_shards(tmp_path / "shards", images)
    source = f"{server.url}/shards/{{000..002}}.tar"
    server.limit = 20_000
    refused(lambda: data.load(source, image_size=16), "after 5 attempts", "kept", "run the same command again")
    server.limit = 10**9
    reports = []
    same_images(data.load(source, image_size=16, progress=lambda *a: reports.append(a)), folder)
    assert reports[0][0] >= 8  # of the 10 or so in 20,000 bytes


def test_what_a_server_cannot_do_is_refused(tmp_path, images, server, monkeypatch, refused):
    write_shards(tmp_path / "shards", images)
    refused(lambda: data.load(f"{server.url}/shards/"), "cannot be listed", "{000..009}.tar")
    refused(lambda: data.load(f"{server.url}/shards/{{000..009}}.tar"), "003.tar", "no such file")
    monkeypatch.setattr(remote, "BLOCK_BYTES", 4096)
    server.ranges = False
    refused(lambda: data.load(f"{server.url}/shards/000.tar"), "does not serve parts", "download")
    refused(lambda: data.load("http://127.0.0.1:9/001.tar"), "cannot read", "after 5 attempts")  # nobody listens


def test_urls_that_cannot_be_opened(root, refused, memory):
    refused(lambda: data.load("https://me:hunter2@host/a.tar"), "password", "environment")
    refused(lambda: data.load("nonsense://bucket/a.tar"), "nonsense")
    refused(lambda: data.load("https://[host/a.tar"), "cannot open https://[host/a.tar")
    refused(lambda: data.load("memory://nothing/here"), "no file below")
    refused(lambda: data.load("memory://nothing/*.tar"), "no file matches")
    if not _has("s3fs"):
        refused(lambda: data.load("s3://bucket/photos"), "s3fs")


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def test_blocks_are_the_bytes_of_the_file(memory, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(remote, "BLOCKS_AHEAD", 3)
    rng = np.random.default_rng(0)
    content = rng.bytes(12_345)
    memory.pipe("/a.bin", content)
    with remote.open_remote("memory://a.bin", len(content)) as file:
        plain = io.BytesIO(content)
        for _ in range(200):
            if rng.random() < 0.5:
                offset, whence = [(int(rng.integers(0, 13_000)), 0), (-int(rng.integers(0, 5000)), 2)][rng.integers(2)]
                assert file.seek(offset, whence) == plain.seek(offset, whence)
            count = int(rng.integers(0, 4000))
            assert file.read(count) == plain.read(count)
            assert file.tell() == plain.tell()
    with remote.open_remote("memory://a.bin", 20_000) as file, pytest.raises(remote.AAGError, match="changed"):
        file.read()
