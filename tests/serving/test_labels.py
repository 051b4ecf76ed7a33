"""Labels of a few examples reach all images, with an accuracy that was really measured."""

import csv
import os

import pytest
import torch
import torch.nn.functional as F

from aag.errors import AAGError
from aag.serving.labels import folder_labels, label_images, read_labels, summarize_labels, write_labels
from aag.serving.table import EmbeddingTable


def make_table(noise=0.15, size=40):
    """Rows around three centres, named by them."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(3, 16, generator=generator), dim=1).repeat_interleave(size, 0)
    rows = F.normalize(centres + noise * torch.randn(3 * size, 16, generator=generator), dim=1)
    names = [f"{kind}/{i}.png" for kind in ("cat", "dog", "emu") for i in range(size)]
    return EmbeddingTable(names, rows, rows * 2, metadata={"source": "/photos"})


def examples_of(table, per_class):
    kinds = [name.split("/")[0] for name in table.names]
    rows = [i for kind in sorted(set(kinds)) for i in [j for j, each in enumerate(kinds) if each == kind][:per_class]]
    return {row: kinds[row] for row in rows}


@pytest.mark.parametrize("classifier", ["knn", "linear"])
def test_all_images_get_the_label_of_their_group(classifier):
    table = make_table()
    found = label_images(table, examples_of(table, 5), classifier=classifier)
    right = [name.startswith(label) for name, label in zip(table.names, found.labels, strict=True)]
    assert sum(right) / len(right) > 0.9
    assert sum(found.given) == 15
    assert all(value == 1 for value, given in zip(found.confidences, found.given, strict=True) if given)
    assert all(1 / 3 <= value <= 1 for value in found.confidences)
    assert found.accuracy > 80


@pytest.mark.parametrize("classifier", ["knn", "linear"])
def test_images_are_labelled_in_chunks(classifier, monkeypatch):
    table = make_table(noise=0.5)
    whole = label_images(table, examples_of(table, 5), classifier=classifier)
    monkeypatch.setattr("aag.serving.labels.CHUNK_ROWS", 50)
    found = label_images(table, examples_of(table, 5), classifier=classifier)
    assert found.labels == whole.labels
    assert found.confidences == pytest.approx(whole.confidences, abs=1e-5)


@pytest.mark.parametrize("classifier", ["knn", "linear"])
def test_the_accuracy_is_that_of_images_whose_label_was_not_seen(classifier):
    """Examples with random labels are not predicted, though each is its own nearest neighbour."""
    table = make_table(noise=3)
    generator = torch.Generator().manual_seed(1)
    examples = {row: "ab"[value] for row, value in enumerate(torch.randint(0, 2, (120,), generator=generator).tolist())}
    assert 30 < label_images(table, examples, classifier=classifier).accuracy < 70


def test_leaving_one_out_is_exact():
    table, correct = make_table(noise=0.5), 0
    examples = examples_of(table, 12)
    found = label_images(table, examples)
    for row, label in examples.items():
        others = {each: kind for each, kind in examples.items() if each != row}
        correct += label_images(table, others).labels[row] == label
    assert found.accuracy == pytest.approx(100 * correct / len(examples))


def test_examples_may_be_other_images():
    table, other = make_table(), make_table(noise=0.2, size=4)
    found = label_images(table, {}, outside=(other, folder_labels(other, "examples")))
    assert not any(found.given)
    assert sum(name.startswith(label) for name, label in zip(table.names, found.labels, strict=True)) > 110


def test_a_csv_names_images_in_any_usual_way(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(
        "\ufefflabel,path,note\ncat,cat/0.png,x\ndog,./dog/1.png,\nemu,/photos/emu/2.png,\n,cat/3.png,none\n", "utf-8"
    )
    assert read_labels(path, make_table()) == {0: "cat", 41: "dog", 82: "emu"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nnone.png,cat\nother.png,dog\n", "2 paths not among the images, first 'none.png'"),
        ("cat/0.png,cat\n", "columns path,label"),
        ("path,label\n", "columns path,label"),
        ("path,label\ncat/0.png,\n", "no labels"),
        ("path,label\ncat/0.png,cat\ncat/0.png,dog\n", "two labels for cat/0.png"),
        ("path,label\ncat/0.png\n", "no labels"),
    ],
)
def test_mistakes_in_a_csv_are_one_line(tmp_path, text, message):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(AAGError, match=message):
        read_labels(tmp_path / "labels.csv", make_table())


def test_other_files_are_no_labels(tmp_path):
    (tmp_path / "labels.csv").write_bytes(b"path,label\n\xff\xfe\x00,1\n")
    for path in (tmp_path / "labels.csv", tmp_path / "missing.csv"):
        with pytest.raises(AAGError, match="cannot read labels"):
            read_labels(path, make_table())
    with pytest.raises(AAGError, match="no class folders"):
        folder_labels(EmbeddingTable(["a.png"], torch.eye(1)), tmp_path)
    with pytest.raises(AAGError, match="only the label 'cat'"):
        label_images(make_table(), {0: "cat"})


def test_one_example_per_label_cannot_be_cross_validated():
    table = make_table()
    found = label_images(table, examples_of(table, 1), classifier="linear")
    assert found.accuracy is None
    assert "only one example" in found.protocol


def test_summary_and_csv(tmp_path):
    table = make_table()
    found = label_images(table, examples_of(table, 5))
    rows = summarize_labels(found)
    assert [row["label"] for row in rows] == ["cat", "dog", "emu"]
    assert sum(row["images"] for row in rows) == 120
    assert [row["given"] for row in rows] == [5, 5, 5]
    write_labels(tmp_path / "out.csv", table, found)
    written = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["path"] for row in written] == table.names
    assert written[0] == {"path": "cat/0.png", "label": "cat", "confidence": "1.0000", "given": "1"}


def test_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(AAGError, match="not a regular file"):
        read_labels(tmp_path / "labels.csv", make_table())
