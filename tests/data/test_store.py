import errno
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aag import data
from aag.data import image_cache, store
from aag.data.decode import decode
from aag.data.summary import summarize, summarize_chunk


@pytest.fixture
def photos(tmp_path, root) -> Path:
    """40 images of noise, of which two are broken."""
    folder = tmp_path / "photos"
    fill(folder, 40)
    (folder / "007.png").write_bytes(b"broken")
    (folder / "031.png").write_bytes(b"")
    return folder


def fill(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).save(folder / f"{i:03}.png")


def journal(root: Path) -> Path:
    return next(root.glob("images/*/*.jsonl"))


def small_chunks(monkeypatch) -> None:
    monkeypatch.setattr("aag.data.encoded.PIXEL_BYTES", 3 * 16 * 16 * 4)


def check_complete(images: data.ImageSet, folder: Path) -> None:
    names = [f"{i:03}.png" for i in range(40) if i not in (7, 31)]
    assert images.names == names
    pixels = np.stack([decode(folder / name, 16) for name in names]).transpose(0, 3, 1, 2)
    assert np.array_equal(images.images.numpy(), pixels)
    fresh = data.ImageSet("photos", torch.from_numpy(np.ascontiguousarray(pixels)))
    assert images.fingerprint() == fresh.fingerprint()
    assert images.statistics() == fresh.statistics()
    assert images.skipped == ("007.png: not an image Pillow can read", "031.png: empty file")


def test_store_is_decoded_once_and_mapped(photos, root, monkeypatch):
    check_complete(data.load(photos, image_size=16), photos)
    assert sum(image_cache.list_stores().values()) > 38 * 3 * 16 * 16
    monkeypatch.setattr(store, "decode_parts", None)  # nothing is decoded again
    monkeypatch.setattr("aag.data.imageset.summarize", None)  # nor read for the fingerprint
    again = data.load(photos, image_size=16)
    assert again.images.shape == (38, 3, 16, 16)
    again.fingerprint()
    again.statistics()
    again.images[0] = 0  # a private copy
    assert data.load(photos, image_size=16).images[0].any()


def test_summary_does_not_depend_on_chunks():
    images = np.random.default_rng(0).integers(0, 256, (200, 3, 40, 40), np.uint8)
    whole, parts = summarize(images), store.PixelSummary()
    for part in np.split(images, [1, 60, 64, 190]):
        parts.add(summarize_chunk(part))
    assert parts.digest == whole.digest
    assert (parts.sums == whole.sums).all()


def test_changed_folder_replaces_its_store(photos, root, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "aag.data")
    data.load(photos, image_size=16)
    first = journal(root)
    assert "decoding 40 images to 16×16: 31 kB in" in caplog.text
    fill(photos, 41)
    assert len(data.load(photos, image_size=16)) == 41
    assert not first.exists()
    assert "deleted" in caplog.text
    assert len(list(root.glob("images/*/*.u8"))) == 1
    data.load(photos, image_size=8)  # another size is another store
    assert len(list(root.glob("images/*/*.u8"))) == 2
    with monkeypatch.context() as patch:
        patch.setattr(image_cache.shutil, "rmtree", lambda *args, **options: None)  # as without permission
        assert image_cache.clear_stores() == 0
    assert image_cache.clear_stores() > 0
    assert image_cache.list_stores() == {}


@pytest.mark.parametrize("damage", ["cut line", "cut pixels", "wrong pixels", "no pixels", "not JSON"])
def test_damaged_store_is_repaired(photos, root, damage, monkeypatch):
    small_chunks(monkeypatch)
    data.load(photos, image_size=16)
    lines = journal(root).read_bytes().splitlines(keepends=True)
    assert len(lines) > 8
    pixels = journal(root).with_suffix(".u8")
    journal(root).write_bytes(b"".join(lines[:5]) + (lines[5][:-9] if damage == "cut line" else b""))
    if damage == "cut pixels":
        os.truncate(pixels, 4000)
    elif damage == "wrong pixels":
        with pixels.open("r+b") as file:
            file.write(bytes(100))
    elif damage == "no pixels":
        pixels.unlink()
    elif damage == "not JSON":
        journal(root).write_bytes(b"[1]\n")
    check_complete(data.load(photos, image_size=16), photos)


SLOW = """
import sys, time
from aag import data
from aag.data import encoded
encoded.PIXEL_BYTES = 3 * 16 * 16 * 4
def progress(done, total):
    print(done, flush=True)
    time.sleep(0.02)
print(len(data.load(sys.argv[1], image_size=16, progress=progress)), "images")
"""


NO_LOCKS = """
import errno, fcntl
def flock(file, operation):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""


def start(folder: Path, before: str = "") -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", before + SLOW, str(folder)], stdout=subprocess.PIPE, text=True)


def test_killed_process_loses_at_most_a_chunk(photos, root, monkeypatch):
    process = start(photos)
    while int(process.stdout.readline()) < 12:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    small_chunks(monkeypatch)
    done = []
    check_complete(data.load(photos, image_size=16, progress=lambda now, total: done.append((now, total))), photos)
    assert done[0][0] >= 12
    assert done[-1] == (40, 40)


def test_two_processes_share_the_work(photos, root):
    first, second = start(photos), start(photos)
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in (first, second)]
    assert [lines[-1] for lines in outputs] == ["38 images", "38 images"]
    assert sorted(map(len, outputs))[0] == 1  # one of them only waited
    check_complete(data.load(photos, image_size=16), photos)


def test_processes_without_locks_do_not_write_into_each_other(photos, root):
    processes = [start(photos, NO_LOCKS) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [lines[-1] for lines in outputs] == ["38 images", "38 images"]
    check_complete(data.load(photos, image_size=16), photos)
    assert len(list(root.glob("images/*/*.u8"))) == len(list(root.glob("images/*/*.jsonl"))) == 1


@pytest.mark.parametrize("has_locks", [True, False])
def test_full_disk_keeps_what_is_done(photos, root, monkeypatch, refused, has_locks):
    small_chunks(monkeypatch)
    if not has_locks:
        monkeypatch.setattr("fcntl.flock", no_locks)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        line = refused(
            lambda: data.load(photos, image_size=16), "cannot write", "too large", "AAG_DATA", "run the same"
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    kept = int(line.split(" of 40 images are decoded and kept")[0].split()[-1])
    assert kept >= 20 if has_locks else kept == 0
    done = []
    check_complete(data.load(photos, image_size=16, progress=lambda now, total: done.append(now)), photos)
    assert done[0] == kept


def no_locks(file: object, operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_too_small_a_disk_is_refused_before(photos, root, monkeypatch, refused):
    usage = store.shutil.disk_usage(photos)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    refused(lambda: data.load(photos, image_size=16), "takes 31 kB", "has 1 kB free", "AAG_DATA")


def test_unwritable_cache_decodes_into_memory(photos, root, caplog):
    root.mkdir()
    (root / "images").write_text("a file where a folder should be")
    check_complete(data.load(photos, image_size=16), photos)
    assert "decoded into memory" in caplog.text


def test_files_that_vanish_or_change_while_decoding(photos, root, monkeypatch):
    small_chunks(monkeypatch)

    def progress(done: int, total: int) -> None:
        if done == 0:
            (photos / "039.png").unlink()
            Image.new("RGB", (12, 12), "white").save(photos / "038.png")

    images = data.load(photos, image_size=16, progress=progress)
    assert images.skipped[-1] == "039.png: no such file, or a broken link"
    again = data.load(photos, image_size=16)
    assert (again.images[again.names.index("038.png")] == 255).all()
    assert len(again.skipped) == 2
