"""Training end to end on the CPU: it learns, logs, resumes exactly, and stops well."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from small_runs import assert_same, losses, rows, state, stop_after

import aag
from aag import AAGError
from aag.training import checkpoint


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


# --- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [[6], [2, 5, 1]])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tiny, stops):
    whole = tiny.train("whole")
    for steps in stops:
        assert not tiny.train(should_stop=stop_after(steps)).complete
    resumed = tiny.train()
    assert resumed.complete
    assert_same(whole.run, resumed.run)
    weights, tensors = aag.load(resumed.run.folder).state_dict(), state(whole.run)[0]
    assert all(torch.equal(weights[name], tensors[f"encoder.{name}"]) for name in weights)


def test_a_crash_between_checkpoints_loses_only_what_came_after(tiny):
    """The process dies in epoch 2: no handler runs, and the last checkpoint is that of the start."""
    whole = tiny.train("whole", checkpoint_minutes=60.0)

    def die() -> bool:
        if len([row for row in tiny.run.metrics() if row["kind"] == "epoch"]) == 1:
            raise RuntimeError("killed")
        return False

    with pytest.raises(RuntimeError, match="killed"):
        tiny.train(checkpoint_minutes=60.0, should_stop=die)
    assert checkpoint.load(tiny.run.checkpoint)[1]["epoch"] == 0
    assert rows(tiny.train().run) == rows(whole.run)


def test_a_finished_run_never_keeps_an_older_encoder(tiny, monkeypatch):
    """The disk is full when the last encoder is to be written, and then it is not."""
    real, saves = aag.nets.save, []

    def save(encoder: object, path: object, extra: dict[str, str]) -> None:
        saves.append(extra["epoch"])
        if saves.count("2") == 1:
            full_disk()
        real(encoder, path, extra)

    monkeypatch.setattr(aag.nets, "save", save)
    with pytest.raises(OSError, match="No space"):
        tiny.train()
    run = tiny.train().run
    tensors, rest = state(run)
    encoder = aag.load(run.folder)
    assert (rest["epoch"], encoder.extra["epoch"]) == (2, "2")
    assert all(torch.equal(value, tensors[f"encoder.{name}"]) for name, value in encoder.state_dict().items())


class Dropping(torch.nn.Sequential):
    """A backbone that draws random numbers for itself while it trains, as stochastic depth does."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        pooled = (torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Dropout(0.5))
        super().__init__(torch.nn.Conv2d(3, 4, 3), *pooled, torch.nn.Linear(36, 8))


def test_a_network_that_draws_for_itself_is_repeatable(tiny):
    whole = tiny.train("whole", network=Dropping()).run
    assert not tiny.train(network=Dropping(), should_stop=stop_after(3)).complete
    torch.rand(3)  # somebody else draws meanwhile
    assert_same(whole, tiny.train(network=Dropping()).run)


def test_a_resumed_run_keeps_its_number_of_threads_and_says_so(tiny, monkeypatch, caplog):
    """The order of sums, and so the last bits, depends on it."""
    tiny.train(should_stop=stop_after(2))
    tensors, rest = checkpoint.load(tiny.run.checkpoint)
    assert rest["threads"] == 1
    checkpoint.save(tiny.run.checkpoint, tensors, {**rest, "threads": 7})
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    tiny.train()
    assert chosen == [7]
    assert caplog.messages == ["using 7 threads, as this run began with, not 1: its exact numbers depend on them"]


# --- the run folder ---------------------------------------------------------------------------------------------------


def test_the_run_folder_holds_what_a_user_needs(tiny):
    run = tiny.train().run
    assert {path.name for path in run.folder.iterdir()} == {
        "config.json", "metrics.jsonl", "last.ckpt", "last.1.ckpt", "encoder.safetensors", ".lock",
    }  # fmt: skip
    metrics = run.metrics()
    assert [row["epoch"] for row in metrics if row["kind"] == "knn"] == [0, 1, 2]
    last = next(row for row in reversed(metrics) if row["kind"] == "epoch")
    assert last["kind"] == "epoch"
    for name in ("positive_similarity", "negative_similarity", "positive_gradient", "negative_gradient", "loss_zx"):
        assert np.isfinite(last[name])
    assert last["positive_gradient"] == -1  # constant for GNT-Xent
    start = metrics[0]
    assert start["kind"] == "start"
    assert torch.__version__.startswith(start["torch"])
    assert start["runtime"] == "CPU, 1 thread, fp32, channels last"
    encoder = aag.load(run.folder)
    assert encoder.embed(torch.zeros(2, 3, 32, 32)).shape == (2, 128)


def test_training_lowers_the_loss_and_seeds_matter(tiny):
    first = losses(tiny.train(epochs=4))
    assert first[-1] < first[0] - 0.5
    assert losses(tiny.train("other", epochs=4, seed=1)) != first


@pytest.mark.parametrize(
    ("changes", "terms"),
    [
        ({"auxiliary": "none"}, {"loss_xy"}),
        ({"auxiliary": "basic"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"auxiliary": "randaugment"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"loss": "nt-xent", "schedule": "step"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"auxiliary_crop": "padded", "basic": "simclr", "forward": "per-view"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"auxiliary_crop": "none", "basic": "isif", "flip": False}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"auxiliary_views": 2, "one_way": True, "auxiliary_max_crop": 0.4}, {"loss_xy", "loss_zx", "loss_zy"}),
    ],
)  # fmt: skip
def test_every_variant_of_the_ablation_trains(tiny, changes, terms):
    result = tiny.train(**{"epochs": 1, **changes})
    epoch = [row for row in result.run.metrics() if row["kind"] == "epoch"][-1]
    assert {name for name in epoch if name.startswith("loss_")} == terms
    assert sum(epoch[name] for name in terms) == pytest.approx(epoch["loss"], rel=1e-4)


def test_a_file_system_without_locks_trains_all_the_same_and_says_so(tiny, monkeypatch, caplog):
    def without(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", without)
    assert tiny.train(epochs=1).complete
    assert caplog.messages == [
        f"{tiny.run.folder}: its file system has no locks; do not start a second command with this --out"
    ]


def test_two_processes_do_not_train_into_one_folder(tiny):
    with tiny.run.lock(), pytest.raises(AAGError, match="another process is using"):
        tiny.train()
    assert tiny.train(epochs=1).complete


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_stop_is_honoured_where_an_epoch_is_one_step(tiny):
    asked = iter([False, False, True])
    result = tiny.train(batch_size=96, epochs=5, should_stop=lambda: next(asked, True))
    assert not result.complete
    assert checkpoint.load(result.run.checkpoint)[1]["epoch"] == 2


def test_nan_stops_and_keeps_the_last_good_checkpoint(tiny):
    assert not tiny.train(should_stop=stop_after(3)).complete
    path = tiny.run.checkpoint
    tensors, rest = checkpoint.load(path)
    poisoned = {**tensors, "encoder.head.weight": torch.full_like(tensors["encoder.head.weight"], torch.nan)}
    checkpoint.save(path, poisoned, rest)
    before = path.read_bytes()
    with pytest.raises(AAGError, match=r"no longer finite \(epoch 1, step 4\).*--lr"):
        tiny.train()
    assert path.read_bytes() == before


def test_a_learning_rate_that_explodes_stops_with_advice(tiny):
    with pytest.raises(AAGError, match="try a lower --lr"):
        tiny.train(lr=1e6, epochs=20)
    tensors, _ = checkpoint.load(tiny.run.checkpoint)
    assert all(torch.isfinite(value).all() for value in tensors.values())


def test_no_space_keeps_the_old_checkpoint(tiny, monkeypatch):
    tiny.train(should_stop=stop_after(2))
    path = tiny.run.checkpoint
    before = path.read_bytes()

    def begun() -> bool:
        monkeypatch.setattr(aag.nets, "save", lambda *_: None)  # there is room for the encoder yet
        monkeypatch.setattr("os.fsync", full_disk)
        return True

    with pytest.raises(AAGError, match=r"cannot write .*last\.ckpt: No space left on device"):
        tiny.train(should_stop=begun)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.tmp"))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_other_settings_is_refused(tiny):
    tiny.train(should_stop=stop_after(2))
    config = json.loads(tiny.run.config_file.read_text())
    config["method"]["temperature"] = 0.2
    tiny.run.config_file.write_text(json.dumps(config))
    with pytest.raises(AAGError, match="another temperature"):
        tiny.train(temperature=0.2)


def test_other_images_under_the_same_name_are_refused(tiny, photographs):
    tiny.train(should_stop=stop_after(2))
    np.savez(tiny.data, images=photographs[40:136].permute(0, 2, 3, 1).numpy(), labels=np.arange(96) % 4)
    with pytest.raises(AAGError, match="not those that"):
        tiny.train()


def test_metrics_without_a_checkpoint_are_not_thrown_away(tiny):
    run = tiny.train().run
    for path in run.checkpoints():
        path.unlink()
    before = run.metrics_file.read_bytes()
    with pytest.raises(AAGError, match="no checkpoint to resume from"):
        tiny.train()
    assert run.metrics_file.read_bytes() == before


def test_one_image_is_too_few(tmp_path):
    one = aag.ImageSet("one", torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(AAGError, match="one has one training image; give at least two"):
        aag.train(one, width=4, epochs=1, batch_size=2, device="cpu", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 97}, "batch size 97 exceeds the 96 training images; use --batch-size 64"),
        pytest.param(
            {"device": "cuda"},
            "--device cuda: PyTorch finds no CUDA device; use --device cpu or auto",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
        ({"out": "tiny.npz/run"}, "cannot write .*run: Not a directory"),
    ],
)
def test_what_cannot_be_trained_is_named(tiny, changes, message):
    with pytest.raises(AAGError, match=message):
        tiny.train(**changes)


# --- compiling --------------------------------------------------------------------------------------------------------


def test_where_compiling_fails_training_falls_back_to_plain_steps(tiny, monkeypatch):
    def broken(*_: object, **__: object) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise RuntimeError("no compiler here\nand a long story")

        return fail

    plain = tiny.train("plain")
    monkeypatch.setattr(torch, "compile", broken)
    result = tiny.train(compile="on")
    assert result.complete
    assert rows(result.run) == rows(plain.run)
    assert result.run.metrics()[0]["runtime"].endswith("(compilation failed: no compiler here)")


@pytest.mark.slow
def test_a_compiled_step_is_the_plain_one(tiny):
    """One step: float32 gradients of the first layers are percents off those of float64, so that later steps part."""
    plain, compiled = (tiny.train(mode, epochs=1, batch_size=96, compile=mode) for mode in ("off", "on"))
    assert losses(plain) == pytest.approx(losses(compiled), rel=1e-5)
    before, after = (state(result.run)[0]["momentum.head.weight"] for result in (plain, compiled))
    assert torch.dist(before, after) <= 0.01 * before.norm()
