"""Damage in a run folder: the newest whole checkpoint is used, the encoder is repaired, and the user is told."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from small_runs import assert_same, rows, stop_after

import aag
from aag import AAGError
from aag.runs import Run
from aag.serving import evaluate_run
from aag.tensor_files import DamagedFileError
from aag.training import Callback, checkpoint
from aag.training.checkpoints import Checkpoints


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def notes(run: Run) -> list[str]:
    return [row["text"] for row in run.metrics() if row["kind"] == "note"]


# --- checkpoints ------------------------------------------------------------------------------------------------------

STATE = {
    "settings": {}, "images": "x", "spec": "{}", "threads": 1, "processes": 1, "epoch": 1, "step": 2,
    "seconds": 3.0, "lr_factor": 1.0,
}  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "last.ckpt"
    checkpoint.save(path, {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.int64)}, STATE)
    return path


def test_every_bit_of_a_checkpoint_is_covered(saved):
    """Names, types, shapes, state and data: no flipped bit may load, except to the same content."""
    tensors, state = checkpoint.load(saved)
    content = saved.read_bytes()
    for place in range(len(content)):
        for bit in (0, 6):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            saved.write_bytes(damaged)
            with pytest.raises(AAGError):
                checkpoint.load(saved)
    saved.write_bytes(content)
    assert checkpoint.load(saved)[1] == state
    assert tensors["a"].shape == (2, 3)


def rewritten(path: Path, change: Callable[[dict], None]) -> None:
    """Change the header of a file and leave its data and its checksum alone."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


@pytest.mark.parametrize("name", ["step", "epoch", "threads", "lr_factor", "settings"])
def test_an_edited_state_is_damage(saved, name):
    def edit(header: dict) -> None:
        about = json.loads(header["__metadata__"]["aag"])
        about["state"][name] = {"seed": 1} if name == "settings" else 5
        header["__metadata__"]["aag"] = json.dumps(about, sort_keys=True)

    rewritten(saved, edit)
    with pytest.raises(DamagedFileError, match="checksum is wrong"):
        checkpoint.load(saved)


def test_an_edited_shape_is_damage(saved):
    rewritten(saved, lambda header: header["a"].update(shape=[3, 2]))
    with pytest.raises(DamagedFileError, match="checksum is wrong"):
        checkpoint.load(saved)


def test_an_older_format_is_refused_by_name(saved):
    rewritten(saved, lambda header: header["__metadata__"].update(aag='{"format": 2, "checksum": 3, "state": {}}'))
    with pytest.raises(AAGError, match=r"another version \(format 2, not 3\); finish the run with the version"):
        checkpoint.load(saved)


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {**STATE, "epoch": "1"},
        {**STATE, "step": -1},
        {**STATE, "threads": 10**9},
        {**STATE, "seconds": []},
    ],
)
def test_a_state_of_wrong_types_is_damage(saved, state):
    checkpoint.save(saved, {}, state)
    with pytest.raises(DamagedFileError, match="is damaged: its"):
        checkpoint.load(saved)


def test_the_last_checkpoints_are_kept(tmp_path):
    run = Run(tmp_path)
    checkpoints = Checkpoints(run, keep=3)
    for step in range(5):
        checkpoints.save({"a": torch.tensor([step])}, {**STATE, "step": step})
    assert [path.name for path in run.checkpoints()] == ["last.ckpt", "last.1.ckpt", "last.2.ckpt"]
    assert [checkpoint.load(path)[1]["step"] for path in run.checkpoints()] == [4, 3, 2]
    Checkpoints(run, keep=1).save({}, STATE)
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_a_checkpoint_that_cannot_be_written_removes_none(tmp_path, monkeypatch):
    run = Run(tmp_path)
    checkpoints = Checkpoints(run)
    for step in range(2):
        checkpoints.save({}, {**STATE, "step": step})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AAGError, match="No space left"):
        checkpoints.save({}, {**STATE, "step": 2})
    assert [checkpoint.load(path)[1]["step"] for path in run.checkpoints()] == [1, 0]
    assert sorted(os.listdir(tmp_path)) == ["last.1.ckpt", "last.ckpt"]


def test_where_there_are_no_hard_links_a_copy_is_kept(tmp_path, monkeypatch):
    def without(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", without)
    checkpoints = Checkpoints(Run(tmp_path))
    for step in range(3):
        checkpoints.save({}, {**STATE, "step": step})
    assert [checkpoint.load(path)[1]["step"] for path in Run(tmp_path).checkpoints()] == [2, 1]


def test_a_run_resumes_from_the_newest_whole_checkpoint(tiny, caplog):
    whole = tiny.train("whole", epochs=1).run
    for name, damage in (("flip", lambda path: flip(path, -100)), ("gone", Path.unlink)):
        caplog.clear()
        run = tiny.train(name, epochs=1, should_stop=stop_after(3)).run
        damage(run.checkpoint)
        tiny.train(name, epochs=1)
        assert [row for row in rows(run) if row["kind"] != "note"] == rows(whole)
        final, expected = (checkpoint.load(each.checkpoint)[0] for each in (run, whole))
        assert all(torch.equal(value, expected[name]) for name, value in final.items())
        assert caplog.messages == notes(run)
        assert len(caplog.messages) == (name != "gone")
        assert all(
            re.search(r"last\.ckpt .*damaged.*; resuming from the older last\.1\.ckpt", line)
            for line in caplog.messages
        )


def test_damage_never_pushes_out_the_good_checkpoint(tmp_path):
    run = Run(tmp_path)
    checkpoints = Checkpoints(run)
    for step in range(2):
        checkpoints.save({}, {**STATE, "step": step})
    flip(run.checkpoint, 100)
    again = Checkpoints(run)
    loaded = again.load()
    assert loaded
    assert loaded.state["step"] == 0
    again.save({}, {**STATE, "step": 7})
    assert [checkpoint.load(path)[1]["step"] for path in run.checkpoints()] == [7, 0]


def test_a_run_whose_checkpoints_are_all_damaged_is_named(tiny):
    tiny.train(should_stop=stop_after(2))
    for path in tiny.run.checkpoints():
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(AAGError, match=r"last\.ckpt .*damaged.*and so are the older ones; choose another --out"):
        tiny.train()


@pytest.mark.parametrize("name", ["last.ckpt", "last.1.ckpt", "metrics.jsonl", "encoder.safetensors", ".lock"])
def test_a_pipe_in_the_run_folder_blocks_nothing(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(AAGError, match=f"{re.escape(name)} is not a regular file; remove it"), Run(tmp_path).lock():
        pass


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "last.ckpt", "encoder.safetensors"])
def test_reading_a_pipe_blocks_nothing(tmp_path, name):
    os.mkfifo(tmp_path / name)
    run = Run(tmp_path)
    read = {"config.json": run.settings, "metrics.jsonl": run.metrics, "last.ckpt": Checkpoints(run).load}
    with pytest.raises(AAGError, match=f"cannot read .*{re.escape(name)}: it is not a regular file"):
        read.get(name, lambda: aag.load(tmp_path))()


def test_files_that_a_killed_process_left_are_removed(tmp_path):
    code = "0123456789abcdef" * 2
    ours = [tmp_path / f".{name}.{code}.tmp" for name in ("last.ckpt", "encoder.safetensors", "metrics.jsonl")]
    other = tmp_path / f".evaluation.json.{code}.tmp"  # another command may be writing it
    mine = tmp_path / ".notes.tmp"
    for path in (*ours, other, mine):
        path.write_text("half")
    with Run(tmp_path).lock():
        assert [path.exists() for path in (*ours, other, mine)] == [False] * 3 + [True] * 2
    os.utime(other, (0, 0))
    with Run(tmp_path).lock():
        assert not other.exists()
        assert mine.exists()


# --- the encoder ------------------------------------------------------------------------------------------------------


def test_a_damaged_encoder_of_a_finished_run_is_repaired_by_the_same_command(tiny, caplog):
    run = tiny.train(epochs=1).run
    whole = run.encoder_file.read_bytes()
    advice = "run the same aag train again to write it from the checkpoint"
    for damage, message in (
        (lambda path: flip(path, -9), advice),
        (lambda path: flip(path, 300), advice),
        (Path.unlink, "its training has not finished"),
    ):
        damage(run.encoder_file)
        with pytest.raises(AAGError, match=message):
            aag.load(run.folder)
        assert tiny.train(epochs=1).complete
        assert run.encoder_file.read_bytes() == whole
    assert len(caplog.messages) == len(notes(run)) == 3
    assert "encoder.safetensors was missing or damaged; it is written again from the checkpoint" in caplog.messages[0]
    tiny.train(epochs=1)
    assert len(notes(run)) == 3


def test_identical_runs_write_identical_encoders(tiny):
    runs = [tiny.train(name, epochs=1).run for name in ("one", "two")]
    one, two = (run.encoder_file.read_bytes() for run in runs)
    assert one == two


def test_the_encoder_says_what_it_was_trained_with(tiny):
    one, two = tiny.train("one", epochs=1).run, tiny.train("two", epochs=1, seed=1).run
    with safe_open(one.encoder_file, framework="pt") as file:
        assert json.loads(file.metadata()["settings"]) == one.settings()
    one.encoder_file.write_bytes(two.encoder_file.read_bytes())
    with pytest.raises(AAGError, match=r"encoder\.safetensors was trained with another seed than config\.json says"):
        evaluate_run(one, linear=False, device="cpu")
    assert tiny.train("one", epochs=1).complete  # repairs it
    assert evaluate_run(one, linear=False, device="cpu").epoch == 1


# --- two commands, one folder -----------------------------------------------------------------------------------------


def test_a_command_that_loses_the_race_changes_nothing(tiny, monkeypatch):
    """Both commands find a new folder. One trains to its end before the other gets the lock."""
    lock, raced = Run.lock, []

    def late(run: Run) -> object:
        if not raced:
            raced.append(True)
            tiny.train(seed=1, epochs=1)
        return lock(run)

    monkeypatch.setattr(Run, "lock", late)
    with pytest.raises(
        AAGError, match=r"holds a run with other settings \(epochs 1 there, 2 here; seed 1 there, 0 here"
    ):
        tiny.train(seed=0)
    encoder = aag.load(tiny.run.folder)
    assert tiny.run.settings()["train"]["seed"] == json.loads(encoder.extra["settings"])["train"]["seed"] == 1


def test_a_command_that_comes_during_a_run_changes_nothing(tiny):
    refused = []

    class Rival(Callback):
        def on_start(self, trainer: object) -> None:
            with pytest.raises(AAGError, match=r"holds a run with other settings|another process is using"):
                tiny.train(seed=1)
            refused.append(True)

    alone = tiny.train("alone", epochs=1).run
    assert_same(alone, tiny.train(epochs=1, callbacks=[Rival()]).run)
    assert refused
