"""Files that no one should have, on the command line: each gives one line or works, and never a traceback."""

import contextlib
import io
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from aag.cli import main
from aag.cli.output import print_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes, special files")

TINY = ["--width", "4", "--device", "cpu", "--epochs", "1", "--batch-size", "16", "--image-size", "32"]


@pytest.fixture
def album(tmp_path: Path, photographs: torch.Tensor) -> Path:
    """20 photographs in a folder whose name is no UTF-8, as is the name of one of them."""
    folder = tmp_path / os.fsdecode(b"alb\xe9m")
    folder.mkdir()
    for i, pixels in enumerate(photographs[:20].permute(0, 2, 3, 1).numpy()):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (folder / "0.png").rename(folder / os.fsdecode(b"\xff\xfe.png"))
    return folder


def printed(*words: object) -> str:
    """What a command prints to a terminal, which takes UTF-8 alone."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out):
        assert main([str(word) for word in words]) == 0
    out.seek(0)
    return out.read()


def test_names_that_are_no_utf8_are_trained_on_and_reported(album):
    said = printed("train", "--data", album, "--out", "run", *TINY)
    assert "20 train images" in said
    assert "alb\\udce9m" in said
    assert "no report" not in said
    assert "alb?m" in Path("run/report.html").read_text(encoding="utf-8")
    shutil.copytree("run", "run2")
    assert "page.html" in printed("compare", "run", "run2", "--out", "page.html")
    assert "written" in printed("export", "run", "--format", "hub", "--out", "hub")


def test_names_that_a_terminal_would_obey_are_printed_as_text(capsys):
    print_rows([{"path": "\x1b[31mred\n.png", "cosine": 0.5}])
    assert "?[31mred?.png" in capsys.readouterr().out
