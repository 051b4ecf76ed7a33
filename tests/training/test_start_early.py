"""Training before all images are decoded: the result does not depend on how far the decoding is."""

import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from distributed_worker import run_processes
from PIL import Image
from small_runs import assert_same, state

import aag
from aag import data
from aag.data import early
from aag.data.encoded import ImageFiles, Part
from aag.distributed import ReportedByMainError
from aag.errors import AAGError
from aag.runs import Run
from aag.settings import from_json, to_json
from aag.training import Callback, DataSettings, batches, checkpoint
from aag.training.prefetch import HostReader

COUNT, BLOCK, BATCH = 72, 16, 8
CHUNK_PIXELS = 8 * 2 * BATCH * 16 * 16  # on a CPU an eighth of it: 2 batches
LATE = 40  # files from here on are decoded late, where a test says so
OPTIONS = {
    "recipe": "demo", "image_size": 16, "width": 4, "epochs": 2, "batch_size": BATCH, "labels": "none",
    "start_early": True, "checkpoint_minutes": 0.0, "device": "cpu", "lr": 1e-3,
}  # fmt: skip


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """72 images of noise in a folder; blocks of 16 of them, and chunks of 2 batches."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).save(folder / f"{i:03}.png")
    monkeypatch.setattr(early, "BLOCK", BLOCK)
    monkeypatch.setattr(batches, "CHUNK_PIXELS", CHUNK_PIXELS)
    return folder


def train(photos: Path, out: str, store: str = "store", **changes) -> aag.training.TrainResult:
    root = photos.parent / store
    return aag.train(str(photos), out=photos.parent / out, data_root=root, **OPTIONS | changes)


def run(photos: Path, out: str) -> Run:
    return Run(photos.parent / out)


def saved_step(found: Run) -> int:
    return checkpoint.load(found.checkpoint)[1]["step"]


def journal(photos: Path, store: str) -> Path:
    return next((photos.parent / store).glob("images/*/*.jsonl"))


def late(until: threading.Event, failure: Exception | None = None) -> Callable[[ImageFiles, Part], Part]:
    """A function that reads files, the late ones only after an event, or never."""

    def load(self: ImageFiles, part: Part) -> Part:
        if part.items[-1] >= f"{LATE:03}":
            assert until.wait(120)
            if failure:
                raise failure
        return part

    return load


class Seen(Callback):
    """Set an event after some steps; whether all images were decoded before the last of them."""

    def __init__(self, steps: int = 1) -> None:
        self.event, self.steps, self.all_decoded = threading.Event(), steps, None

    def on_step(self, trainer, loss) -> None:
        step = trainer.position()["step"]
        if step == self.steps - 1:  # earlier than the event: another process may be a step behind
            self.all_decoded = trainer.image_set.decoding.is_ready(COUNT)
        if step == self.steps:
            self.event.set()


def test_training_begins_before_the_decoding_ends(photos, monkeypatch):
    train(photos, "decoded")
    train(photos, "again")  # the store is complete
    seen = Seen(steps=4)
    with monkeypatch.context() as patch:
        patch.setattr(ImageFiles, "load", late(seen.event))
        train(photos, "early", "empty", callbacks=[seen])
    assert seen.all_decoded is False
    assert_same(run(photos, "early"), run(photos, "decoded"))
    assert_same(run(photos, "again"), run(photos, "decoded"))
    assert not [thread for thread in threading.enumerate() if thread.name == "decoding"]

    whole = journal(photos, "store").read_bytes().splitlines(keepends=True)
    part = journal(photos, "empty")
    part.write_bytes(b"".join(whole[:3]) + b'{"files": 70')  # as a killed process leaves it
    train(photos, "partial", "empty")
    assert part.read_bytes().splitlines(keepends=True)[-2:] == whole[-2:]  # with the same hash of all pixels
    assert_same(run(photos, "partial"), run(photos, "decoded"))


def test_images_that_are_not_decoded_are_not_prefetched(photos, monkeypatch):
    """Read as for a GPU: one chunk ahead, in threads."""
    train(photos, "usual")
    make = batches.Batches.__init__

    def read_ahead(self, images, *arguments, **options):
        make(self, images, *arguments, **options)
        self._reader = HostReader(images, self.device)

    seen = Seen(steps=4)
    monkeypatch.setattr(batches.Batches, "__init__", read_ahead)
    monkeypatch.setattr(ImageFiles, "load", late(seen.event))
    train(photos, "ahead", "empty", callbacks=[seen])
    assert_same(run(photos, "ahead"), run(photos, "usual"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_gpu_starts_early_with_the_same_bits(photos, monkeypatch, compile):
    """Images are read from the host in the first epoch, and are on the GPU in the second."""
    options = {"device": "cuda", "deterministic": True, "compile": compile}
    monkeypatch.setattr(batches, "CHUNK_PIXELS", CHUNK_PIXELS // 8)
    train(photos, "decoded", **options)
    train(photos, "again", **options)
    begun, make_chunk, places = threading.Event(), batches.Batches.make_chunk, []

    def note(self, epoch, chunk):
        places.append((epoch, self.images.device.type))
        if chunk == 1:
            begun.set()
        return make_chunk(self, epoch, chunk)

    monkeypatch.setattr(batches.Batches, "make_chunk", note)
    monkeypatch.setattr(ImageFiles, "load", late(begun))
    train(photos, "early", "empty", **options)
    assert set(places) == {(0, "cpu"), (1, "cuda")}
    assert_same(run(photos, "early"), run(photos, "decoded"))
    assert_same(run(photos, "again"), run(photos, "decoded"))


def test_the_first_epoch_takes_blocks_in_order_and_the_next_all_images(photos, monkeypatch):
    taken = []
    make_chunk = batches.Batches.make_chunk

    def note(self, epoch, chunk):
        made = make_chunk(self, epoch, chunk)
        taken.append((epoch, made.indices.tolist()))
        return made

    monkeypatch.setattr(batches.Batches, "make_chunk", note)
    train(photos, "run")
    first, second = ([i for at, indices in taken for i in indices if at == epoch][:COUNT] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert [i // BLOCK for i in first] == [place // BLOCK for place in range(COUNT)]
    assert first[:BLOCK] != list(range(BLOCK))
    assert [i // BLOCK for i in second] != [place // BLOCK for place in range(COUNT)]


@pytest.mark.parametrize("broken", [("005.png", "070.png"), tuple(f"{i:03}.png" for i in range(1, COUNT))])
def test_unreadable_files_are_replaced_by_the_first_images(photos, broken):
    for name in broken:
        (photos / name).write_bytes(b"broken")
    train(photos, "early", "one")
    skipped = [line.split(":")[0] for line in run(photos, "early").skipped_file.read_text().splitlines()]
    assert skipped == list(broken)
    usual = data.load(photos, image_size=16, root=photos.parent / "one")  # maps what training decoded
    assert len(usual) == COUNT - len(broken)
    assert usual.fingerprint() == data.load(photos, image_size=16, root=photos.parent / "two").fingerprint()
    images = early.load_early(str(photos), image_size=16, root=photos.parent / "two")  # a file without room for copies
    images.decoding.close()
    expected = (
        usual.images.repeat(COUNT, 1, 1, 1)[:COUNT] if len(usual) == 1 else torch.cat([usual.images, usual.images[:2]])
    )
    assert torch.equal(images.images, expected)
    train(photos, "decoded", "two")
    assert_same(run(photos, "early"), run(photos, "decoded"))


def test_a_store_that_cannot_be_written_to_is_decoded_into_memory(photos):
    (photos / "005.png").write_bytes(b"broken")
    (photos.parent / "unwritable").mkdir()
    (photos.parent / "unwritable" / "images").write_text("a file where a folder should be")
    train(photos, "memory", "unwritable")
    train(photos, "usual")
    assert_same(run(photos, "memory"), run(photos, "usual"))


@pytest.mark.parametrize("steps", [1, 4, 12])
def test_a_stopped_run_resumes_with_the_same_bits(photos, monkeypatch, steps):
    """In the first epoch with images decoded or not, and in the second."""
    seen = Seen(steps)
    with monkeypatch.context() as patch:
        if steps < COUNT // BATCH:
            patch.setattr(ImageFiles, "load", late(seen.event))
        stopped = train(photos, "stopped", callbacks=[seen], should_stop=seen.event.is_set)
    assert not stopped.complete
    assert not [thread for thread in threading.enumerate() if thread.name == "decoding"]
    assert train(photos, "stopped").complete
    train(photos, "whole", "other")
    assert_same(run(photos, "stopped"), run(photos, "whole"))


def test_a_stop_while_training_waits_for_images(photos, monkeypatch):
    """The files of the third block come only after the stop. So after 4 steps, only waiting asks for a stop."""
    seen, asked, calls = Seen(steps=4), threading.Event(), iter(range(3))

    def should_stop() -> bool:
        if seen.event.is_set() and next(calls, None) is None:
            asked.set()
        return asked.is_set()

    with monkeypatch.context() as patch:
        patch.setattr(ImageFiles, "load", late(asked))
        assert not train(photos, "stopped", callbacks=[seen], should_stop=should_stop).complete
    assert saved_step(run(photos, "stopped")) == 4
    assert train(photos, "stopped").complete
    train(photos, "whole", "other")
    assert_same(run(photos, "stopped"), run(photos, "whole"))


def test_a_failure_is_one_line_and_what_was_trained_is_saved(photos, monkeypatch):
    seen = Seen(steps=3)
    with monkeypatch.context() as patch:
        patch.setattr(ImageFiles, "load", late(seen.event, AAGError("the server is gone")))
        with pytest.raises(AAGError, match=r"^the server is gone$"):
            train(photos, "failed", callbacks=[seen])
    assert saved_step(run(photos, "failed")) >= 3
    train(photos, "failed")
    train(photos, "whole", "other")
    assert_same(run(photos, "failed"), run(photos, "whole"))


def test_images_that_changed_after_the_first_block_are_noticed(photos):
    train(photos, "run", epochs=1, schedule="constant")
    Image.new("RGB", (12, 12)).save(photos / "070.png")
    with pytest.raises(AAGError, match=r"are not those that .*run was trained on"):
        train(photos, "run", epochs=2, schedule="constant")


# --- several processes ------------------------------------------------------------------------------------------------


def train_in_process(out: str, store: str, failure: str = "") -> None:
    """Train in one of several processes. The last files are decoded after four steps, or fail then."""
    early.BLOCK, batches.CHUNK_PIXELS = BLOCK, CHUNK_PIXELS
    seen, decoded = Seen(steps=4), []
    load = late(seen.event, AAGError(failure) if failure else None)
    ImageFiles.load = lambda self, part: decoded.append(part) or load(self, part)
    try:
        aag.train("photos", out=out, data_root=store, callbacks=[seen], **OPTIONS | {"lr": 1e-4, "epochs": 1})
    except AAGError as error:
        sys.exit("" if isinstance(error, ReportedByMainError) else str(error))
    print("decoded" if decoded else "read", "all" if seen.all_decoded else "some", "before step 4")


def processes(photos: Path, size: int, *arguments: str) -> list[tuple[int, str]]:
    return [(each.code, each.output) for each in run_processes(size, [__file__, *arguments], photos.parent)]


def test_processes_share_the_decoding_and_train_like_one(photos):
    first, other = "decoded some before step 4\n", "read some before step 4\n"
    assert processes(photos, 2, "early", "one") == [(0, first), (0, other)]
    assert processes(photos, 2, "decoded", "one") == [(0, "read all before step 4\n")] * 2
    train(photos, "alone", "two", lr=1e-4, epochs=1)
    assert_same(run(photos, "early"), run(photos, "decoded"))
    early_losses, alone = ([row["loss"] for row in run(photos, out).metrics() if row["kind"] == "epoch"]
                           for out in ("early", "alone"))  # fmt: skip
    assert early_losses == pytest.approx(alone, rel=1e-3)  # float32


def test_a_failure_ends_all_processes(photos):
    ended = processes(photos, 2, "failed", "one", "the server is gone")
    assert ended == [(1, "the server is gone\n"), (1, "\n")]
    assert saved_step(run(photos, "failed")) == 4


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        ("photos", {"labels": "known"}, "add --labels none"),
        ("photos", {"holdout": 0.1}, "leave out --holdout"),
        ("photos", {"epochs": None, "minutes": 1.0}, "give --epochs"),
        ("split", {}, "has a test split"),
        ("memory://photos.tar", {}, "is known only after reading all of them"),
        ("photos.npz", {}, "need no decoding"),
        ("sample", {}, "need no decoding"),
        ("missing/folder", {}, "no such file or folder"),
        ("nothing", {}, "no readable image"),
        ("broken", {}, "no readable image"),
    ],
)
def test_what_cannot_start_early_is_refused(photos, monkeypatch, source, changes, message):
    monkeypatch.chdir(photos.parent)
    for folder in ("split/train", "split/test", "nothing", "broken"):
        Path(folder).mkdir(parents=True)
    for folder in ("split/train", "split/test"):
        Path(folder, "a.png").write_bytes((photos / "000.png").read_bytes())
    Path("broken/a.png").write_bytes(b"broken")
    np.savez("photos.npz", images=np.zeros((4, 16, 16, 3), np.uint8))
    with tarfile.open("photos.tar", "w") as archive:
        archive.add("photos/000.png")
    fsspec.filesystem("memory").pipe("/photos.tar", Path("photos.tar").read_bytes())
    options = {name: value for name, value in (OPTIONS | changes).items() if value is not None}
    with pytest.raises(AAGError, match=message) as caught:
        aag.train(source, out="run", data_root="store", **options)
    assert "\n" not in str(caught.value)


def test_settings_without_the_option_stay_as_they_were():
    assert "start_early" not in to_json(DataSettings())
    assert from_json(DataSettings, {"source": "photos"}) == DataSettings("photos")
    chosen = DataSettings("photos", labels="none", start_early=True)
    assert from_json(DataSettings, to_json(chosen)) == chosen


def test_arrays_are_refused():
    with pytest.raises(AAGError, match="decoded from files"):
        aag.train(torch.zeros(16, 3, 16, 16, dtype=torch.uint8), **OPTIONS)


@pytest.mark.parametrize("kind", ["table", "tar", "URL"])
def test_shards_and_remote_files_start_early(photos, kind):
    (photos / "005.png").write_bytes(b"broken")
    contents = {path.name: path.read_bytes() for path in photos.iterdir()}
    if kind == "table":
        images = [{"bytes": contents[name], "path": None} for name in sorted(contents)]
        source = str(photos.parent / "photos.parquet")
        pq.write_table(pa.table({"image": images}), source)
    elif kind == "tar":
        source = str(photos.parent / "photos.tar")
        with tarfile.open(source, "w") as archive:
            for path in sorted(photos.iterdir()):
                archive.add(path, path.name)
    else:
        source = "memory://photos"
        fsspec.filesystem("memory").pipe({f"/photos/{name}": content for name, content in contents.items()})
    aag.train(source, out=photos.parent / "other", data_root=photos.parent / "store", **OPTIONS)
    train(photos, "folder")
    (tensors, _), (expected, _) = state(run(photos, "other")), state(run(photos, "folder"))
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    assert "not an image" in run(photos, "other").skipped_file.read_text()


def test_a_method_that_looks_at_all_images_waits_for_them(photos):
    train(photos, "run", method="deepcluster", clusters=4, epochs=1)
    train(photos, "again", method="deepcluster", clusters=4, epochs=1)
    assert_same(run(photos, "run"), run(photos, "again"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_in_process(*sys.argv[1:])
