"""Search is exact, leaves out the query's own file and refuses what is no image."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from aag import data
from aag.errors import AAGError
from aag.serving.embed import embed_folder
from aag.serving.embed_file import shard_indices
from aag.serving.search import find_nearest, picture_loader, search, search_sheet
from aag.serving.sources import open_source, reopen_source
from aag.serving.table import EmbeddingTable


@pytest.mark.parametrize(("count", "k"), [(1, 5), (7, 7), (5000, 12)])
def test_neighbours_are_those_of_a_full_sort(count, k):
    generator = torch.Generator().manual_seed(0)
    rows, queries = (F.normalize(torch.randn(n, 16, generator=generator), dim=1) for n in (count, 3))
    cosines, index = find_nearest(rows, queries, k)
    expected = (queries @ rows.T).sort(dim=1, descending=True)
    torch.testing.assert_close(cosines, expected.values[:, :k])
    assert torch.equal(index, expected.indices[:, :k])


def test_equal_images_are_in_the_order_of_the_table():
    rows = F.normalize(torch.ones(9, 4), dim=1)
    assert find_nearest(rows, rows[:1], 9)[1].tolist() == [list(range(9))]


def test_the_querys_own_file_is_left_out(embedder, photos, tmp_path):
    table = embed_folder(embedder, photos)
    query = photos / "cats/04.png"
    found = search(embedder, table, [query], k=5)
    assert [each.rank for each in found] == [1, 2, 3, 4, 5]
    assert "cats/04.png" not in [each.path for each in found]
    assert search(embedder, table, [query, query], k=5) == found
    row = table.names.index("cats/04.png")
    rounded = table.embeddings.clone()  # as of --precision bf16 and --decode gpu
    rounded[row] = F.normalize(rounded[row] + 0.02 * torch.tensor([1.0, -1.0] * 8), dim=0)
    assert 0.9 < rounded[row] @ table.embeddings[row] < 0.999
    found = search(embedder, replace(table, embeddings=rounded), [query], k=50)
    assert len(found) == 49
    assert "cats/04.png" not in [each.path for each in found]
    copy = tmp_path / "copy.png"
    copy.write_bytes(query.read_bytes())
    (first, *_) = search(embedder, table, [copy], k=5)
    assert first.path == "cats/04.png"
    assert first.cosine == pytest.approx(1)


def test_a_query_must_be_an_image(embedder, photos, tmp_path):
    table = embed_folder(embedder, photos)
    (tmp_path / "text.jpg").write_text("no image")
    for query, reason in (("text.jpg", "not an image"), ("missing.jpg", "no such file"), (".", "not a regular file")):
        with pytest.raises(AAGError, match=f"cannot use the query .*{reason}"):
            search(embedder, table, [tmp_path / query])


def test_the_sheet_shows_query_and_neighbours(embedder, photos):
    table = embed_folder(embedder, photos)
    found = search(embedder, table, [photos / "cats/04.png", photos / "dogs/05.png"], k=3)
    sheet = np.asarray(search_sheet(table, found))
    picture = np.asarray(Image.open(photos / "cats/04.png").resize((128, 128), Image.Resampling.BICUBIC))
    y, x = 16 + 25, 16
    assert np.abs(sheet[y + 3 : y + 125, x + 3 : x + 125].astype(int) - picture[3:125, 3:125]).mean() < 8


def test_a_part_of_a_set_shows_its_own_pictures(embedder, tmp_path):
    pixels = data.load("sample", split="test", limit=20).images.permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "set.npz", images=pixels)
    source = open_source(str(tmp_path / "set.npz"), embedder.size)
    ((_, table, _),) = embedder.embed(source, shard_indices(len(source), 2, 2))
    load = picture_loader(table, 32)
    assert all(np.array_equal(load(row), pixels[10 + row]) for row in range(10))
    table.names[0] = "train/00020"
    assert load(0) is None


def test_a_known_set_is_not_enlarged_for_a_few_pictures():
    table = EmbeddingTable(["train/00000"], torch.ones(1, 1), metadata={"source": "sample"})
    assert reopen_source(table, 128).sets[0].image_size == 32
    assert picture_loader(table, 128)(0).shape == (128, 128, 3)


def test_pictures_that_are_gone_are_none(embedder, photos, tmp_path):
    table = embed_folder(embedder, [photos / "cats/04.png"])
    table.metadata["source"] = str(tmp_path)
    table.names[0] = "gone.png"
    assert picture_loader(table)(0) is None
