"""The examples in others' code: each runs for real, on tiny data, and trains."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

import aag

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {
    "plain_loop": "--images 96 --epochs 2 --width 8 --device cpu",
    "dataloader": "--device cpu",
    "lightning_module": "--images 64 --epochs 1 --width 4",
    "hf_trainer": "--images 64 --epochs 1 --width 4",
    "supervised_autoaugment": "--images 32 --batch-size 16 --device cpu",
}


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Runs an example as a program in an empty folder, and returns what it defines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str, words: str, as_program: bool = True) -> dict:
        monkeypatch.setattr(sys, "argv", [name, *words.split()])
        return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__" if as_program else name)

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_and_prints_finite_losses(example, name, capsys):
    if name in ("lightning_module", "hf_trainer"):
        pytest.importorskip({"lightning_module": "lightning", "hf_trainer": "transformers"}[name])
    example(name, SMALL[name])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("loss"))
    losses = [float(word) for word in line.partition(":")[2].split() or line.split()[1:]]
    assert losses
    assert torch.isfinite(torch.tensor(losses)).all()
    for path in Path().glob("*_encoder.safetensors"):
        assert aag.load(path).embed(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 128)


def test_the_plain_loop_learns(example):
    made = example("plain_loop", "", as_program=False)
    images = aag.data.load("sample", limit=128).images
    _, losses = made["train"](images, epochs=10, batch_size=32, width=8, device="cpu")
    assert sum(losses[-3:]) < sum(losses[:3]) - 1


def test_views_are_made_after_collation(example):
    made = example("dataloader", "", as_program=False)
    dataset = made["FakeData"](8, (3, 40, 40), transform=made["TO_TENSOR"])
    (views,) = made["ViewsAfterCollation"](torch.utils.data.DataLoader(dataset, 8), "cpu")
    assert (views.shape, views.dtype) == ((3, 8, 3, 32, 32), torch.uint8)
    assert not torch.equal(views[0], views[1])


def test_the_benchmark_measures_both(example):
    speeds = example("supervised_autoaugment", "", as_program=False)["benchmark"](
        aag.data.load("sample", limit=256).images, repeats=1
    )
    assert list(speeds) == ["torchvision, per image", "aag, per batch"]
    assert all(speed > 0 for speed in speeds.values())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) <= 80
