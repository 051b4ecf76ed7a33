import os
from pathlib import Path

import pytest
from PIL import Image

from aag import data
from aag.data.listing import list_images


def put(folder: Path, sizes: dict[str, tuple[int, int]]) -> None:
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(path)


def test_survey_reads_headers_of_training_images(tmp_path):
    put(tmp_path, {"train/a/1.png": (100, 60), "train/b/2.jpg": (80, 200), "train/3.png": (90, 90)})
    put(tmp_path, {"test/4.png": (7, 7)})
    (tmp_path / "train/broken.png").write_bytes(b"x")
    os.mkfifo(tmp_path / "train/pipe.png")
    found = data.survey(tmp_path)
    assert (found.count, found.sampled, found.unreadable) == (5, 5, 2)
    assert (found.shorter_side, found.shorter_side_range) == (80, (60, 80))
    assert found.mean_pixels == pytest.approx((6000 + 16000 + 8100) / 3)
    part = data.survey(str(tmp_path), sample=2)
    assert (part.count, part.sampled) == (5, 2)


def test_survey_without_images_says_so(tmp_path, refused):
    (tmp_path / "notes.txt").write_text("x")
    refused(lambda: data.survey(tmp_path), "no readable image", "1 file, 0 with an image extension")
    (tmp_path / "empty.png").touch()
    refused(lambda: data.survey(tmp_path), "2 files, 1 with an image extension (first: empty.png: empty file)")
    refused(lambda: data.survey(tmp_path / "nowhere"), "cannot read", "No such file")


def test_listing_is_sorted_by_path(tmp_path):
    put(tmp_path, {"b.png": (1, 1), "a/z.png": (1, 1), "a.png": (1, 1)})
    assert list_images(tmp_path).images == ["a.png", "a/z.png", "b.png"]
