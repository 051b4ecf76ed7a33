"""The commands that use an encoder, from the command line as a user types them."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import aag_, refused
from PIL import Image

import aag
from aag import nets
from aag.serving.table import read_table


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A run folder as far as these commands look."""
    folder = tmp_path_factory.mktemp("run")
    nets.save(nets.build(nets.EncoderSpec(width=4), seed=3), folder / "encoder.safetensors")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty photographs in two class folders, one of them twice, with names that pages and tables must stand."""
    folder = tmp_path_factory.mktemp("photos")
    for i, image in enumerate(aag.data.load("sample", split="test", limit=39).images):
        path = folder / ("cats", "<b>dögs")[i % 2] / f"{i:02d} 'ü'.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    (folder / "cats" / "zz copy.png").write_bytes((folder / "cats" / "00 'ü'.png").read_bytes())
    return folder


def test_embed_writes_a_table_and_does_not_do_it_again(model, photos, tmp_path):
    ran = aag_("embed", model, photos, "-o", "out.parquet", "--thumbnails", "--features", "--device", "cpu")
    assert ran.code == 0
    assert "40 images × 128 → out.parquet" in ran.words
    assert re.search(r"\d images/s, resnet18 on cpu, fp32", ran.words)
    table = read_table("out.parquet")
    assert table.names[0] == "<b>dögs/01 'ü'.png"
    assert table.features.shape == (40, 32)
    assert len(table.thumbnails) == 40
    assert table.metadata["source"] == str(photos)
    again = aag_("embed", model, photos, "--out", "out.parquet", "--thumbnails", "--features", "--device", "cpu")
    assert again.words == "out.parquet is complete: 40 images"


def test_embed_tells_what_it_skipped(model, photos):
    os.mkdir("mixed")
    with open("mixed/a.png", "wb") as file:
        file.write((photos / "cats" / "00 'ü'.png").read_bytes())
    with open("mixed/broken.jpg", "w") as file:
        file.write("x")
    ran = aag_("embed", model, "mixed", "-o", "out.csv", "--device", "cpu")
    assert ran.code == 0
    assert "1 file skipped, listed in out.csv.skipped.txt" in ran.words
    with open("out.csv.skipped.txt") as file:
        assert file.read() == "broken.jpg: not an image Pillow can read\n"
    found = aag_("dedupe", model, "mixed", "--device", "cpu")
    assert found.err == "warning: left out 1 image that cannot be read; aag embed lists the reasons\n"


def test_a_csv_is_made_again_as_the_help_says(model, photos):
    words = ("embed", model, photos, "-o", "out.csv", "--device", "cpu")
    assert "40 images × 128 → out.csv" in aag_(*words).words
    assert "40 images × 128 → out.csv" in aag_(*words).words
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", aag_("embed", "--help").out).split())
    assert "The same command resumes, and leaves a complete file as it is, unless it is a .csv" in shown


def test_shards_have_their_own_files_and_are_searched_as_one(model, photos):
    for number in (1, 2, 3):
        assert aag_("embed", model, photos, "-o", "out.parquet", "--shard", f"{number}/3", "--device", "cpu").code == 0
    assert sorted(os.listdir()) == [f"out-{number}-of-3.parquet" for number in (1, 2, 3)]
    query = photos / "cats" / "00 'ü'.png"
    ran = aag_("search", model, "out.parquet", query, "--k", "1", "--sheet", "none", "--json", "--device", "cpu")
    (row,) = json.loads(ran.out)
    assert row == {"query": str(query), "rank": 1, "cosine": pytest.approx(1), "path": "cats/zz copy.png"}


def test_search_prints_a_table_and_draws_a_sheet(model, photos):
    ran = aag_("search", model, photos, photos / "cats" / "00 'ü'.png", "--k", "3", "--device", "cpu")
    assert ran.code == 0
    assert "cats/zz copy.png" in ran.words
    assert "contact sheet: search.png" in ran.words
    assert Image.open("search.png").width > 400
    assert aag_("search", model, "sample", photos / "cats" / "00 'ü'.png", "--sheet", "none").code == 0


def test_search_prints_a_table_per_query(model, photos):
    queries = [photos / "cats" / f"{name} 'ü'.png" for name in ("00", "02")]
    lines = aag_("search", model, photos, *queries, "--k", "2", "--device", "cpu").out.splitlines()
    assert [line for line in lines if line.startswith("/")] == list(map(str, queries))
    assert sum("rank" in line for line in lines) == 2


@pytest.mark.parametrize(("command", "file"), [("search", "query.jpg"), ("label", "labels.csv")])
def test_a_missing_file_is_reported_before_images_are_embedded(model, photos, monkeypatch, command, file):
    monkeypatch.setattr("aag.serving.embed.load_or_embed", lambda *_, **__: pytest.fail("embedded the images"))
    assert f"{file}: no such file" in refused(command, model, photos, file)


def test_dedupe_lists_groups_and_deletes_nothing(model, photos):
    before = sorted(photos.rglob("*"))
    ran = aag_("dedupe", model, photos, "--threshold", "1", "--device", "cpu")
    assert "1 group; 1 of 40 images can be removed, 1 of them identical to the image to keep" in ran.words
    assert "nothing was deleted; list: duplicates.csv, contact sheet: duplicates.png" in ran.words
    with open("duplicates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["keep"], row["path"]) for row in rows] == [("1", "cats/00 'ü'.png"), ("0", "cats/zz copy.png")]
    assert sorted(photos.rglob("*")) == before
    (first, _) = json.loads(aag_("dedupe", model, photos, "--threshold", "1", "--json", "--device", "cpu").out)
    assert first["keep"] is True
    alone = aag_("dedupe", model, photos / "<b>dögs", "--threshold", "1", "--device", "cpu")
    assert "no near-duplicates among 19 images" in alone.words


def test_the_documented_command_moves_duplicates(model, photos):
    shutil.copytree(photos, "photos")
    aag_("dedupe", model, "photos", "--threshold", "1", "--device", "cpu")
    page = (Path(__file__).parents[2] / "docs" / "use.md").read_text()
    (command,) = re.findall(r'python -c "(.+?rename.+?)"\n```', page, re.DOTALL)
    subprocess.run([sys.executable, "-c", command], check=True)
    assert [path.name for path in Path("removed").rglob("*.png")] == ["zz copy.png"]
    assert len(list(Path("photos").rglob("*.png"))) == 39


def test_dedupe_warns_if_it_cannot_compare_the_pixels(model, photos, monkeypatch):
    aag_("embed", model, photos, "-o", "out.csv", "--device", "cpu")
    ran = aag_("dedupe", model, "out.csv", "--threshold", "1", "--device", "cpu")
    assert "warning: 2 of the 2 listed images cannot be opened in the current folder" in ran.err
    assert "warning" not in aag_("dedupe", model, photos, "--threshold", "1", "--device", "cpu").err
    # The paths of a CSV start in the current folder.
    table = os.path.abspath("out.csv")
    monkeypatch.chdir(photos)
    options = ("--sheet", "none", "--out", f"{table}.duplicates", "--device", "cpu")
    ran = aag_("dedupe", model, table, "--threshold", "0.1", *options)
    assert "1 group; 1 of 40 images can be removed" in ran.words
    assert ran.err == ""


def test_dedupe_keeps_different_pictures_at_any_threshold(model, photos):
    """An untrained encoder finds all photographs similar: pixels decide."""
    rows = json.loads(aag_("dedupe", model, photos, "--threshold", "0.1", "--json", "--device", "cpu").out)
    assert 1 <= sum(not row["keep"] for row in rows) <= 10


def test_dedupe_warns_if_it_cannot_compare_all_images(model, photos, monkeypatch):
    monkeypatch.setattr("aag.serving.dedupe.MAX_PAIRS", 1)
    ran = aag_("dedupe", model, photos, "--threshold", "0.1", "--json", "--device", "cpu")
    assert "warning: 40 images have nearly the same embedding; " in ran.err
    json.loads(ran.out)


def test_cluster_prints_groups_and_their_agreement_with_folders(model, photos):
    ran = aag_("cluster", model, photos, "--clusters", "3", "--device", "cpu")
    assert ran.code == 0
    assert "NMI with the known labels 0." in ran.words
    assert "clusters of all images: clusters.csv, contact sheet: clusters.png" in ran.words
    rows = json.loads(aag_("cluster", model, photos, "--clusters", "3", "--json", "--device", "cpu").out)
    assert [row["cluster"] for row in rows] == [1, 2, 3]
    assert sum(row["images"] for row in rows) == 40
    chosen = aag_("cluster", model, photos, "--sheet", "none", "--device", "cpu")
    assert re.search(r"\d+ clusters were chosen: silhouette 0\.\d+, the (best|most)", chosen.words)
    assert "--clusters N sets the number" in chosen.words


def test_label_spreads_labels_by_both_classifiers(model, photos):
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    given = [names[i] for i in (0, 1, 2, 20, 21, 22)]
    with open("labels.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((name, name.split("/")[0]) for name in given)])
    for classifier, protocol in (("knn", "leave-one-out"), ("linear", "3-fold cross-validation")):
        ran = aag_("label", model, photos, "labels.csv", "-o", "all.csv", "--with", classifier, "--device", "cpu")
        assert ran.code == 0
        assert re.search(rf"accuracy on the 6 examples: \d+\.\d % \({protocol}\)", ran.words)
        with open("all.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 40
        assert sum(row["given"] == "1" for row in rows) == 6
    ran = aag_("label", model, "sample", photos, "-o", "all.csv", "--json", "--device", "cpu")
    assert {row["label"] for row in json.loads(ran.out)} <= {"cats", "<b>dögs"}


def test_images_outside_the_class_folders_are_no_examples(model, photos):
    shutil.copytree(photos, "examples")
    shutil.copy(photos / "cats" / "00 'ü'.png", "examples")
    assert "accuracy on the 40 examples" in aag_("label", model, photos, "examples", "--device", "cpu").words


def test_label_stores_the_embeddings_of_examples_in_data_root(model, photos):
    words = ("--data-root", "other", "-o", "all.csv", "--device", "cpu")
    assert aag_("label", model, photos / "cats", photos, *words).code == 0
    assert len(os.listdir("other/embeddings")) == 2
    assert not Path(os.environ["AAG_DATA"]).exists()


def test_mistakes_are_one_line(model, photos, tmp_path):
    query = photos / "cats" / "00 'ü'.png"
    np.savez("other.npz", x=1)
    with open("labels.csv", "w") as file:
        file.write("path,label\nnowhere.png,cat\n")
    for words, message in {
        ("embed", model, "missing"): "no such file or folder: missing",
        ("embed", "nowhere", photos): "no such file or folder: nowhere",
        ("embed", model): "no images given",
        ("embed", model, photos, "-o", "out.txt"): "use one of .parquet, .npz, .csv",
        ("embed", model, photos, "--shard", "9/3"): "such as 3/8",
        ("embed", model, query, "--shard", "1/3"): "is empty",
        ("embed", model, photos, "-o", "out.csv", "--thumbnails"): "cannot have thumbnails",
        ("embed", model, photos, "--decode", "gpu", "--device", "cpu"): "--decode gpu needs a GPU",
        ("embed", model, photos, "--precision", "bf16", "--device", "cpu"): "needs a GPU",
        ("search", model, photos): "no query given",
        ("search", model, photos, "other.npz"): "cannot use the query other.npz",
        ("search", model, "missing.parquet", query): "no such file: missing.parquet",
        ("search", model, photos, query, "--k", "0"): "at least 1 neighbour",
        ("search", model, photos, query, "--sheet", "sheet.gif"): "a contact sheet is a .png",
        ("dedupe", model, photos, "--sheet", "sheet.gif"): "a contact sheet is a .png",
        ("cluster", model, photos, "--sheet", "sheet.gif"): "a contact sheet is a .png",
        ("dedupe", model, photos, "--threshold", "2"): "--threshold 2.0",
        ("cluster", model, photos, "--clusters", "41"): "does not fit 40 images",
        ("cluster", model, photos, "--examples", "-1"): "--examples must be at least 1, not -1",
        ("cluster", model, photos, "--seed", str(2**70)): "--seed must be at least 0 and below",
        ("label", model, photos, "labels.csv"): "1 path not among the images, first 'nowhere.png'",
        ("label", model, photos, "missing.csv"): "cannot read labels",
    }.items():
        assert message in refused(*words)
