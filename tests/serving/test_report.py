"""The report of a run: what it says, and that names cannot break it."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
from commands import aag_, refused

import aag
from aag.errors import AAGError
from aag.evaluate import knn_predict
from aag.pages import document as doc
from aag.pages.html import render_html
from aag.pages.map import MAX_SHEET_BYTES, pack_pictures
from aag.runs import Run
from aag.serving import write_report
from aag.serving.classes import classify
from aag.serving.gallery import Gallery, make_gallery
from aag.serving.report_pictures import classes_blocks
from report_runs import CLASSES, HOSTILE, photograph_sets, trained_run


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> str:
    run, sets = trained_run()
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert write_report(run, out, sets=sets) == out
    return out.read_text(encoding="utf-8")


def map_data(html: str) -> dict:
    (content,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    return json.loads(content)


def test_it_has_every_part(html):
    assert re.findall(r'<section id="(\w+)"', html) == ["curves", "map", "views", "neighbours", "classes", "settings"]
    charts = re.findall(r"<title>([^<]*)</title>", html)[1:]
    assert charts[:2] == ["Training loss", "kNN accuracy"]
    assert "Learning rate" in charts
    run, _ = trained_run()
    assert f"{run.metrics()[-1]['epoch']} epochs" in html


def test_views_are_those_that_the_network_sees(html, tmp_path):
    assert re.findall(r">view \d \(([^)]*)\)", html) == ["basic", "basic", "auxiliary"]
    options = {"method": "aag-mix", "width": 4, "epochs": 1, "batch_size": 10, "device": "cpu"}
    run = aag.train(sets := photograph_sets(), out=tmp_path / "mixed", **options).run
    page = write_report(run, tmp_path / "page.html", sets=sets).read_text(encoding="utf-8")
    assert re.findall(r">view \d \(([^)]*)\)", page)[3:] == ["basic, then changed by aag-mix"]


def test_names_cannot_break_out(html):
    assert HOSTILE not in html
    assert html.count("<script>") == 1  # the map's own
    assert len(re.findall(r"</script", html)) == 2
    found = map_data(html)
    assert any("<script>alert(1)" in name for name in found["names"])  # as data, whole
    assert found["colourings"][0]["classes"] == list(CLASSES)


def test_it_loads_nothing(html):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert policy[1].startswith("default-src 'none'; img-src data:;")
    assert "script-src 'sha256-" in policy[1]
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', html)
    assert not re.findall(r"url\((?!#)", html.split("</style>")[0])


def test_the_map_has_all_images(html):
    found = map_data(html)
    assert len(found["names"]) == 90
    assert [one["name"] for one in found["colourings"]] == ["label", "cluster", "split"]
    assert found["tile"] == 32


def test_large_sets_are_a_sample():
    _, sets = trained_run()
    from aag import nets

    encoder = nets.load(trained_run()[0].encoder_file)
    gallery = make_gallery(encoder, sets, points=40, seconds=60)
    assert (len(gallery), gallery.total, gallery.pictures.shape) == (40, 90, (40, 32, 32, 3))
    train = [i for i in range(40) if not gallery.is_test[i]]
    row = train[3]
    place = list(sets[0].names).index(gallery.names[row])
    assert torch.allclose(encoder.embed(sets[0].images[place])[0], gallery.embeddings[row], atol=1e-5)
    assert int(sets[0].labels[place]) == int(gallery.labels[row])


def small_gallery(is_test: torch.Tensor) -> Gallery:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    centres = torch.nn.functional.normalize(torch.randn(3, 8, generator=generator), dim=1)
    rows = torch.nn.functional.normalize(centres[labels] + 0.5 * torch.randn(60, 8, generator=generator), dim=1)
    return Gallery(
        [str(i) for i in range(60)], rows, np.zeros((60, 8, 8, 3), np.uint8), labels, ("a", "b", "c"), is_test, 60
    )


def test_classes_by_the_protocol_of_the_evaluation():
    is_test = torch.arange(60) >= 45
    gallery = small_gallery(is_test)
    found = classify(gallery)
    expected = knn_predict(
        gallery.embeddings[~is_test], gallery.labels[~is_test], gallery.embeddings[is_test], k=200
    ).labels
    assert torch.equal(found.predicted, expected)
    assert found.confusion().sum() == 15
    assert found.confusion().diagonal().sum() == round(found.accuracy * 15 / 100)
    assert "15 test images by 45 training images; k = 45" in found.protocol


def test_class_names_with_commas_stay_whole(tmp_path):
    classes = ("goldfish, Carassius auratus", "tench, Tinca tinca")
    found = replace(classify(small_gallery(torch.arange(60) >= 45)), classes=(*classes, "c"))
    blocks = classes_blocks(small_gallery(torch.arange(60) >= 45), found)
    page = render_html(doc.Document("", blocks, []), tmp_path / "page.html")
    confusion = page[page.index("Confusion") :]
    assert re.findall(r'<th scope="col">(.*?)</th>', confusion)[:3] == [*classes, "c"]


def test_without_a_test_set_each_is_left_out():
    gallery = small_gallery(torch.zeros(60, dtype=torch.bool))
    found = classify(gallery)
    for row in (0, 17, 59):
        others = torch.arange(60) != row
        expected = knn_predict(
            gallery.embeddings[others], gallery.labels[others], gallery.embeddings[row : row + 1], k=6
        )
        assert int(expected.labels[0]) == int(found.predicted[row])
    assert classify(small_gallery(torch.ones(60, dtype=torch.bool))).accuracy == found.accuracy
    shares = [share for _, share, _ in found.accuracy_by_class()]
    assert shares == sorted(shares)


def test_pictures_fit_their_budget():
    noise = torch.randint(0, 256, (1100, 96, 96, 3), dtype=torch.uint8).numpy()  # the hardest to compress
    sheets = pack_pictures(noise, max_bytes=1_000_000)
    assert sheets.tile == 32
    assert len(sheets.jpegs) == 2
    assert sum(map(len, sheets.jpegs)) <= 1_000_000
    assert MAX_SHEET_BYTES * 4 / 3 < 12e6
    few = pack_pictures(noise[:10])
    assert few.tile == 96


def test_a_picture_is_where_the_map_looks_for_it():
    import io

    colours = torch.randint(0, 256, (40, 1, 1, 3)).expand(-1, 32, 32, -1).to(torch.uint8).numpy()
    sheets = pack_pictures(colours)
    sheet = Image.open(io.BytesIO(sheets.jpegs[0]))
    for number in (0, 31, 32, 39):
        x, y = number % 32 * 32 + 16, number // 32 * 32 + 16
        assert max(abs(a - b) for a, b in zip(sheet.getpixel((x, y)), colours[number, 0, 0].tolist(), strict=True)) < 12


def test_without_images_the_curves_remain(tmp_path):
    run, _ = trained_run()
    copy = Run(shutil.copytree(run.folder, tmp_path / "run"))
    html = write_report(copy).read_text()  # its data are no files
    assert copy.report_file.exists()
    assert "The pictures are missing: " in html
    assert re.findall(r'<section id="(\w+)"', html) == ["curves", "settings"]
    copy.encoder_file.unlink()
    assert "has no encoder yet" in write_report(copy).read_text()


def test_mistakes_are_one_line(tmp_path):
    assert "no such run folder" in refused("report", tmp_path / "nothing")
    run, _ = trained_run()
    with pytest.raises(AAGError, match="it is a folder"):
        write_report(run, tmp_path)
    assert "cannot write" in refused("report", run.folder, "--out", tmp_path / "no" / "such" / "page.html")


def folder_of_images(folder: Path) -> Path:
    train, _ = photograph_sets(24)
    for number, image in enumerate(train.images):
        path = folder / f"album {number % 2}" / f"photo {number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


def test_training_ends_with_a_report(tmp_path):
    photos = folder_of_images(tmp_path / "photos")
    words = ["train", "--data", photos, "--network", "resnet18", "--width", 4, "--image-size", 32, "--device", "cpu"]
    words += ["--epochs", 1, "--batch-size", 8, "--out", tmp_path / "run"]
    ran = aag_(*words)
    assert ran.code == 0, ran.err
    report = tmp_path / "run" / "report.html"
    assert str(report) in ran.words.replace(" ", "") or "report.html" in ran.out
    assert "A map of the images" in report.read_text()
    # The same command again leaves it; a report that fails is no failure of training.
    before = report.stat().st_mtime_ns
    assert aag_(*words).code == 0
    assert report.stat().st_mtime_ns == before
    report.unlink()
    report.mkdir()
    (tmp_path / "run" / "report.html" / "x").touch()
    import os

    os.utime(report, (0, 0))
    ran = aag_(*words)
    assert ran.code == 0
    assert "warning: no report" in ran.out
