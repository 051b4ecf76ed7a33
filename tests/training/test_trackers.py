"""Experiment trackers: what they write, that they resume, and that they never end training."""

import json
import struct
import time

import pytest
from small_runs import SmallRuns, losses, stop_after

import aag
from aag.errors import AAGError
from aag.training import Callback, TensorBoard, WandB, trackers
from aag.training.trackers import row_values

pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' own


def read_events(tiny: SmallRuns, out: str = "run"):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tiny.folder / out / "tensorboard"))
    events.Reload()
    return events


def scalars(events, name):
    return [(event.step, pytest.approx(event.value, rel=1e-5)) for event in events.Scalars(name)]


def logged(result, kind, name):
    return [(row["step"], row[name]) for row in result.run.metrics() if row["kind"] == kind]


def test_tensorboard_has_every_number_of_the_log(tiny):
    result = tiny.train(track="tensorboard")
    events = read_events(tiny)
    for kind, name in (("epoch", "loss"), ("epoch", "lr"), ("steps", "loss"), ("knn", "knn"), ("health", "rank")):
        assert scalars(events, f"{kind}/{name}") == logged(result, kind, name)
        assert logged(result, kind, name)
    assert scalars(events, "epoch")[-1] == (12, 2)
    assert "_hparams_/session_start_info" in events.summary_metadata
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"temperature" in hparams


def test_tensorboard_resumes_with_the_same_steps(tiny):
    whole = tiny.train("whole")
    assert not tiny.train(track="tensorboard", should_stop=stop_after(8)).complete
    resumed = tiny.train(track="tensorboard")
    assert losses(resumed) == losses(whole)
    assert scalars(read_events(tiny), "epoch/loss") == logged(whole, "epoch", "loss")
    assert scalars(read_events(tiny), "knn/knn") == logged(whole, "knn", "knn")


def test_a_callback_of_ones_own_will_do(tiny):
    tiny.train(callbacks=[TensorBoard()], epochs=1)
    assert read_events(tiny).Scalars("epoch/loss")


def test_a_finished_run_is_not_tracked_again(tiny):
    tiny.train(epochs=1)
    tiny.train(epochs=1, track="tensorboard")
    assert not (tiny.folder / "run" / "tensorboard").exists()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-home"))
    monkeypatch.delenv("WANDB_DIR")
    monkeypatch.setenv("WANDB_MODE", "offline")


def test_wandb_runs_offline_and_resumes_the_same_run(tiny, offline):
    assert not tiny.train(track="wandb", should_stop=stop_after(8)).complete
    first = json.loads(tiny.run.tracker_file.read_text())
    result = tiny.train(track="wandb")
    assert result.complete
    assert json.loads(tiny.run.tracker_file.read_text()) == first
    folders = sorted((tiny.run.folder / "wandb").glob("offline-run-*"))
    assert len(folders) == 2
    assert all(folder.name.endswith(first["wandb"]) for folder in folders)
    for _ in range(600):  # wandb's own process writes the last rows when it likes
        history = [row for folder in folders for row in read_wandb(folder)]
        steps = [row["_step"] for row in history if "epoch/loss" in row]
        if len(steps) == 2:
            break
        time.sleep(0.1)
    assert steps == [6, 12]
    wanted = [value for _, value in logged(result, "knn", "knn")]
    assert [row["knn/knn"] for row in history if "knn/knn" in row] == wanted


def read_wandb(folder):
    """The rows of history in wandb's own file: LevelDB's log format after seven bytes, a record per entry."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("*.wandb")
    content, place, data = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:  # a block's end is too short for a header
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        data += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(data)
            data = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def test_trackio_runs_and_resumes(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    tiny.train(track="trackio", should_stop=stop_after(8))
    first = json.loads(tiny.run.tracker_file.read_text())
    assert tiny.train(track="trackio").complete
    assert json.loads(tiny.run.tracker_file.read_text()) == first
    assert any((tmp_path / "trackio").iterdir())


class FailingTracker(TensorBoard):
    fails_in = ""

    def open(self, trainer, settings):
        self._fail("open")
        super().open(trainer, settings)

    def write(self, values, step):
        self._fail("write")
        super().write(values, step)

    def close(self):
        super().close()
        self._fail("close")

    def _fail(self, event):
        if event == self.fails_in:
            raise ConnectionError("no route to host\nsecond line")


class OwnNumbers(Callback):
    def on_epoch(self, trainer):
        if trainer.epoch:
            trainer.log({"kind": "mine", "value": 0.5})


def test_a_callback_logs_numbers_of_its_own(tiny):
    result = tiny.train(callbacks=[OwnNumbers()], track="tensorboard", epochs=1)
    (row,) = [row for row in result.run.metrics() if row["kind"] == "mine"]
    assert row["value"] == 0.5
    assert row["epoch"] == 1
    assert row["step"] > 0
    (event,) = read_events(tiny).Scalars("mine/value")
    assert (event.value, event.step) == (0.5, row["step"])


@pytest.mark.parametrize("event", ["open", "write", "close"])
def test_a_tracker_that_fails_warns_once_and_training_goes_on(tiny, event, capsys):
    tracker = FailingTracker()
    tracker.fails_in = event
    result = tiny.train(callbacks=[tracker], epochs=1)
    assert result.complete
    err = capsys.readouterr().err
    assert err.count("warning: ") == 1
    assert err.strip().endswith("training continues without it: no route to host")


def test_tracking_does_not_change_the_numbers(tiny):
    assert losses(tiny.train("tracked", track="tensorboard")) == losses(tiny.train("plain"))


def test_a_missing_package_is_one_line_before_training(tiny, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(AAGError, match=r"--track wandb needs wandb; .*pip install wandb"):
        tiny.train(track="wandb")
    assert not tiny.run.folder.exists()
    with pytest.raises(AAGError, match="needs wandb; "):
        WandB()


def test_an_unknown_tracker_is_refused(tiny):
    with pytest.raises(AAGError, match="track"):
        tiny.train(track="mlflow")


def test_a_damaged_tracker_file_starts_a_new_run(tiny, offline):
    tiny.train(track="wandb", should_stop=stop_after(8))
    tiny.run.tracker_file.write_text("{")
    assert tiny.train(track="wandb").complete
    assert len({path.name[-8:] for path in (tiny.run.folder / "wandb").glob("offline-run-*")}) == 2


def test_row_values_are_named_by_kind():
    row = {"kind": "health", "epoch": 3, "step": 30, "rank": 12.5, "note": "text"}
    assert row_values(row) == {"health/rank": 12.5, "epoch": 3.0}
    assert row_values({"kind": "start", "epoch": 0, "step": 0, "images": 5}) == {}
    assert aag.training.TensorBoard is TensorBoard
