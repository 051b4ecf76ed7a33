"""Training end to end on the CPU: it learns, logs, resumes exactly, and stops well."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import aag
from aag import AAGError
from aag.training import checkpoint, train
from aag.training.run import Run


def stop_after(steps: int) -> Callable[[], bool]:
    """Asks for a stop after this many steps of an epoch; the loop asks before the first step and after each."""
    left = iter(range(steps, -1, -1))
    return lambda: next(left, 0) == 0


def state(run: Run) -> tuple[dict[str, torch.Tensor], dict]:
    tensors, rest = checkpoint.load(run.checkpoint)
    rest.pop("seconds")
    return tensors, rest


def rows(run: Run) -> list[dict]:
    timing = ("seconds", "views_per_second", "evaluation_seconds")
    return [{k: v for k, v in row.items() if k not in timing} for row in run.metrics() if row["kind"] != "start"]


@pytest.mark.parametrize("stops", [[1], [6], [4, 3], [2, 5, 1]])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tiny, tmp_path, stops):
    whole = train(replace(tiny, out=tmp_path / "whole"))
    for steps in stops:
        assert not train(tiny, should_stop=stop_after(steps)).complete
    resumed = train(tiny)
    assert resumed.complete
    tensors, rest = state(whole.run)
    tensors_resumed, rest_resumed = state(resumed.run)
    assert rest == rest_resumed
    assert tensors.keys() == tensors_resumed.keys()
    assert all(torch.equal(tensors[name], tensors_resumed[name]) for name in tensors)
    assert rows(whole.run) == rows(resumed.run)
    weights = aag.load(resumed.run.folder).state_dict()
    assert all(torch.equal(weights[name], tensors[f"encoder.{name}"]) for name in weights)


def test_a_crash_between_checkpoints_loses_only_what_came_after(tiny, tmp_path):
    """The process dies in epoch 2: no handler runs, and the last checkpoint is that of the start."""
    tiny = replace(tiny, checkpoint_minutes=60)
    whole = train(replace(tiny, out=tmp_path / "whole"))

    def die() -> bool:
        if len([row for row in Run(tiny.out).metrics() if row["kind"] == "epoch"]) == 1:
            raise RuntimeError("killed")
        return False

    with pytest.raises(RuntimeError, match="killed"):
        train(tiny, should_stop=die)
    assert checkpoint.load(Run(tiny.out).checkpoint)[1]["epoch"] == 0
    assert rows(train(tiny).run) == rows(whole.run)


def test_a_finished_run_never_keeps_an_older_encoder(tiny, monkeypatch):
    """The disk is full when the last encoder is to be written, and then it is not."""
    real, saves = aag.nets.save, []

    def save(encoder: object, path: object, extra: dict[str, str]) -> None:
        saves.append(extra["epoch"])
        if saves.count("2") == 1:
            raise OSError(28, "No space left on device")
        real(encoder, path, extra)

    monkeypatch.setattr(aag.nets, "save", save)
    with pytest.raises(OSError, match="No space"):
        train(tiny)
    run = train(tiny).run
    tensors, rest = state(run)
    encoder = aag.load(run.folder)
    assert (rest["epoch"], encoder.extra["epoch"]) == (2, "2")
    assert all(torch.equal(value, tensors[f"encoder.{name}"]) for name, value in encoder.state_dict().items())


def test_a_file_system_without_locks_trains_all_the_same(tiny, monkeypatch):
    def without(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", without)
    assert train(tiny).complete


def test_the_run_folder_holds_what_a_user_needs(tiny):
    result = train(tiny)
    run = result.run
    assert {path.name for path in run.folder.iterdir()} == {
        "config.json", "metrics.jsonl", "last.ckpt", "encoder.safetensors", ".lock",
    }  # fmt: skip
    assert run.config() == tiny
    metrics = run.metrics()
    assert [row["epoch"] for row in metrics if row["kind"] == "knn"] == [0, 1, 2]
    last = metrics[-2]
    assert last["kind"] == "epoch"
    for name in ("positive_similarity", "negative_similarity", "positive_gradient", "negative_gradient", "loss_zx"):
        assert np.isfinite(last[name])
    assert last["positive_gradient"] == -1  # GNT-Xent's constant pull
    start = metrics[0]
    assert start["kind"] == "start"
    assert torch.__version__.startswith(start["torch"])
    encoder = aag.load(run.folder)
    assert encoder.embed(torch.zeros(2, 3, 32, 32)).shape == (2, 128)
    tensors, _ = checkpoint.load(run.checkpoint)
    assert torch.equal(encoder.state_dict()["head.weight"], tensors["encoder.head.weight"])


def test_a_finished_run_is_not_trained_again(tiny):
    first = train(tiny)
    before = first.run.metrics_file.read_text()
    again = train(tiny)
    assert again.complete
    assert again.run.metrics_file.read_text() == before
    assert again.knn_last == first.knn_last


def test_training_lowers_the_loss_and_seeds_matter(tiny, tmp_path):
    result = train(replace(tiny, epochs=4))
    losses = [row["loss"] for row in result.run.metrics() if row["kind"] == "epoch"]
    assert losses[-1] < losses[0] - 0.5
    other = train(replace(tiny, epochs=4, seed=1, out=tmp_path / "other"))
    assert [row["loss"] for row in other.run.metrics() if row["kind"] == "epoch"] != losses


@pytest.mark.parametrize(
    ("changes", "components"),
    [
        ({"auxiliary": "none"}, {"loss_xy"}),
        ({"auxiliary": "basic"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"auxiliary": "randaugment"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"loss": "nt-xent", "schedule": "step"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"auxiliary_crop": "padded", "basic": "simclr", "forward": "per-view"}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"auxiliary_crop": "none", "basic": "isif", "flip": False}, {"loss_xy", "loss_zx", "loss_zy"}),
        ({"network": "alexnet", "batch_size": 8, "epochs": 2, "warmup_epochs": 1}, {"loss_xy", "loss_zx", "loss_zy"}),
    ],
)  # fmt: skip
def test_every_variant_of_the_ablation_trains(tiny, changes, components):
    result = train(replace(tiny, **{"epochs": 1, **changes}))
    epoch = [row for row in result.run.metrics() if row["kind"] == "epoch"][-1]
    assert {name for name in epoch if name.startswith("loss_")} == components
    assert sum(epoch[name] for name in components) == pytest.approx(epoch["loss"], rel=1e-4)


def test_unlabelled_images_train_without_knn(tiny, photographs, tmp_path):
    np.savez(tmp_path / "plain.npz", images=photographs[:48].permute(0, 2, 3, 1).numpy())
    result = train(replace(tiny, data=str(tmp_path / "plain.npz")))
    assert result.complete
    assert result.knn_last is None
    assert aag.load(result.run.folder).features(photographs[:3]).shape == (3, 32)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_nan_stops_and_keeps_the_last_good_checkpoint(tiny):
    assert not train(tiny, should_stop=stop_after(3)).complete
    good = Run(tiny.out).checkpoint.read_bytes()
    tensors, rest = checkpoint.load(Run(tiny.out).checkpoint)
    poisoned = {**tensors, "encoder.head.weight": torch.full_like(tensors["encoder.head.weight"], torch.nan)}
    checkpoint.save(Run(tiny.out).checkpoint, poisoned, rest)
    poison = Run(tiny.out).checkpoint.read_bytes()
    with pytest.raises(AAGError, match=r"not a number any more \(epoch 1, step 4\).*--lr"):
        train(tiny)
    assert Run(tiny.out).checkpoint.read_bytes() == poison != good


def test_a_learning_rate_that_explodes_stops_with_advice(tiny):
    with pytest.raises(AAGError, match="try a lower --lr"):
        train(replace(tiny, lr=1e20, epochs=20))
    tensors, _ = checkpoint.load(Run(tiny.out).checkpoint)
    assert all(torch.isfinite(value).all() for value in tensors.values())


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_a_checkpoint_that_is_cut_off_is_named(tiny, keep):
    train(tiny, should_stop=stop_after(2))
    path = Run(tiny.out).checkpoint
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(AAGError, match=r"last\.ckpt.*cut off or damaged"):
        train(tiny)


def test_a_flipped_bit_in_a_checkpoint_is_found(tiny):
    train(tiny, should_stop=stop_after(2))
    path = Run(tiny.out).checkpoint
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(AAGError, match="checksum"):
        train(tiny)


def test_another_config_in_the_same_folder_is_refused(tiny):
    train(tiny, should_stop=stop_after(2))
    with pytest.raises(AAGError, match=r"temperature 0\.1 there, 0\.2 here"):
        train(replace(tiny, temperature=0.2))


def test_a_checkpoint_of_another_config_is_refused(tiny):
    train(tiny, should_stop=stop_after(2))
    changed = replace(tiny, temperature=0.2)
    Run(tiny.out).config_file.write_text(json.dumps(changed.to_json()))
    with pytest.raises(AAGError, match="another temperature"):
        train(changed)


def test_other_images_under_the_same_name_are_refused(tiny, photographs):
    train(tiny, should_stop=stop_after(2))
    np.savez(tiny.data, images=photographs[40:136].permute(0, 2, 3, 1).numpy(), labels=np.arange(96) % 4)
    with pytest.raises(AAGError, match="not those that"):
        train(tiny)


def test_a_batch_larger_than_the_set_is_refused(tiny):
    with pytest.raises(AAGError, match=r"--batch-size 97 is larger than the set: .* has 96"):
        train(replace(tiny, batch_size=97))


def test_bf16_on_a_cpu_is_refused(tiny):
    with pytest.raises(AAGError, match="bf16 needs a GPU"):
        train(replace(tiny, precision="bf16"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named(tiny):
    with pytest.raises(AAGError, match="--device cuda was asked for, but PyTorch sees no CUDA device"):
        train(replace(tiny, device="cuda"))


def test_no_space_keeps_the_old_checkpoint(tiny, monkeypatch):
    train(tiny, should_stop=stop_after(2))
    path = Run(tiny.out).checkpoint
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def begun() -> bool:
        monkeypatch.setattr(aag.nets, "save", lambda *_: None)  # there is room for the encoder yet
        monkeypatch.setattr("os.fsync", full)
        return True

    with pytest.raises(AAGError, match=r"cannot write .*last\.ckpt: No space left on device"):
        train(tiny, should_stop=begun)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.tmp"))


def test_a_folder_that_cannot_be_made_is_named(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AAGError, match="can't make the run folder"):
        train(replace(tiny, out=tmp_path / "file" / "run"))


def test_where_compiling_fails_the_run_goes_on_without(tiny, tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> Callable:
        def fail(*_: object) -> None:
            raise RuntimeError("no compiler here\nand a long story")

        return fail

    plain = train(replace(tiny, out=tmp_path / "plain"))
    monkeypatch.setattr(torch, "compile", broken)
    result = train(replace(tiny, compile="on"))
    assert result.complete
    assert rows(result.run) == rows(plain.run)


@pytest.mark.slow
def test_a_compiled_step_is_the_plain_one(tiny, tmp_path):
    """One step: float32 gradients of the first layers are percents off those of float64, so that later steps part."""
    tiny = replace(tiny, epochs=1, batch_size=96)
    plain = train(replace(tiny, out=tmp_path / "plain"))
    compiled = train(replace(tiny, compile="on"))
    losses = [[row["loss"] for row in rows(r.run) if row["kind"] == "epoch"] for r in (plain, compiled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    before, after = (state(result.run)[0]["momentum.head.weight"] for result in (plain, compiled))
    assert torch.dist(before, after) <= 0.01 * before.norm()


def test_a_stop_is_honoured_where_an_epoch_is_one_step(tiny):
    asked = iter([False, False, True])
    result = train(replace(tiny, batch_size=96, epochs=5), should_stop=lambda: next(asked, True))
    assert not result.complete
    assert checkpoint.load(result.run.checkpoint)[1]["epoch"] == 2


def test_two_processes_do_not_train_into_one_folder(tiny):
    run = Run.create(tiny.out, tiny)
    with run.lock(), pytest.raises(AAGError, match="another process is training"):
        train(tiny)
    assert train(tiny).complete


def test_metrics_without_a_checkpoint_are_not_thrown_away(tiny):
    run = train(tiny).run
    run.checkpoint.unlink()
    before = run.metrics_file.read_bytes()
    with pytest.raises(AAGError, match="no checkpoint to go on from"):
        train(tiny)
    assert run.metrics_file.read_bytes() == before


@pytest.mark.parametrize("content", [b"[]", b'{"epochs": "x"}', b"{", b"\xff"])
def test_a_damaged_config_is_one_line(tiny, content):
    run = train(tiny, should_stop=stop_after(1)).run
    run.config_file.write_bytes(content)
    with pytest.raises(AAGError, match=r"can't read .*config\.json"):
        train(tiny)


def test_damaged_lines_of_the_metrics_are_passed_over(tiny):
    run = train(tiny).run
    rows_before = run.metrics()
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(b"".join([lines[0], b"3\n", b"\xff{\n", *lines[1:], b'{"kind": "ep']))
    assert run.metrics() == rows_before


def test_a_network_that_draws_for_itself_is_repeatable(tiny, tmp_path):
    """focalnet drops whole blocks at random while it trains."""
    settings = {"network": "focalnet_tiny_srf", "image_size": 32, "batch_size": 2, "epochs": 1, "knn_every": 0}
    pixels = {name: value[:4] for name, value in np.load(tiny.data).items()}
    np.savez(tmp_path / "few.npz", **pixels)
    config = replace(tiny, data=str(tmp_path / "few.npz"), **settings)
    whole = train(replace(config, out=tmp_path / "whole")).run
    assert not train(config, should_stop=stop_after(1)).complete
    torch.rand(3)  # somebody else draws meanwhile
    again = train(config).run
    assert all(torch.equal(value, state(again)[0][name]) for name, value in state(whole)[0].items())
