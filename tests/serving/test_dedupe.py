"""Near-duplicate groups are exactly the connected components, and the best image of each is kept."""

import csv
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.sparse.csgraph import connected_components

from aag.errors import AAGError
from aag.serving import components, dedupe
from aag.serving.components import bounding_rows, connect_similar
from aag.serving.dedupe import duplicates_sheet, find_duplicates, write_duplicates
from aag.serving.embed import embed_folder
from aag.serving.table import EmbeddingTable

THRESHOLD = 0.9995  # an untrained encoder's embeddings are all close


def noisy_rows(count, width, noise, centres, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centre = F.normalize(torch.randn(centres, width, generator=generator), dim=1)
    member = torch.randint(0, centres, (count,), generator=generator)
    return F.normalize(centre[member] + noise * torch.randn(count, width, generator=generator), dim=1)


def slow_groups(rows, threshold):
    similar = (rows @ rows.T >= threshold).numpy()
    labels = connected_components(similar, directed=False)[1]
    return np.array([np.flatnonzero(labels == label)[0] for label in labels])


@pytest.mark.parametrize(
    ("count", "width", "noise", "centres", "threshold"),
    [
        (600, 128, 0.03, 200, 0.9),  # clear groups
        (700, 64, 0.1, 200, 0.6),  # chains
        (500, 16, 0.3, 50, 0.8),  # fewer dimensions than the bound
        (400, 128, 0.02, 1, 0.9),  # all in one group
        (3, 40, 0.5, 3, 0.999),  # no group
    ],
)
def test_groups_are_the_connected_components(monkeypatch, count, width, noise, centres, threshold):
    monkeypatch.setattr(components, "CPU_BLOCK", (64, 96))  # many blocks, and cut ones at the edges
    rows = noisy_rows(count, width, noise, centres)
    assert (connect_similar(rows, threshold) == slow_groups(rows, threshold)).all()


def test_the_bound_is_never_below_the_cosine():
    rows = noisy_rows(500, 128, 0.1, 50)
    bounds = bounding_rows(rows)
    assert bounds.shape == (500, 32)
    assert (bounds @ bounds.T - rows @ rows.T).min() > -components.ROUNDING


def test_copies_are_found_at_any_threshold():
    rows = noisy_rows(50, 128, 1, 50).repeat(2, 1)
    assert (connect_similar(rows, 1.0)[50:] == np.arange(50)).all()


def test_many_copies_of_one_image_take_no_pairs():
    rows = F.normalize(torch.randn(1, 64), dim=1).repeat(20_000, 1)
    started = time.process_time()
    assert (connect_similar(rows, 0.98) == 0).all()  # 200 million pairs
    assert time.process_time() - started < 20


@pytest.fixture
def folder(tmp_path, photos):
    """A photograph as it is, copied, enlarged and recompressed; and another."""
    folder = tmp_path / "album"
    folder.mkdir()
    original = Image.open(photos / "cats/00.png")
    original.save(folder / "a.png")
    (folder / "b copy.png").write_bytes((folder / "a.png").read_bytes())
    original.resize((96, 96), Image.Resampling.BICUBIC).save(folder / "c large.png")
    original.save(folder / "d small file.jpg", quality=95)
    (folder / "e.png").write_bytes((photos / "dogs/01.png").read_bytes())
    return folder


def test_the_largest_picture_is_kept_and_identical_files_are_said(embedder, folder, tmp_path):
    table = embed_folder(embedder, folder)
    found = find_duplicates(table, threshold=THRESHOLD)
    assert [(each.path, each.keep) for each in found] == [
        ("c large.png", True), ("a.png", False), ("b copy.png", False), ("d small file.jpg", False),
    ]  # fmt: skip
    assert (found[0].width, found[0].height) == (96, 96)
    assert not any(each.identical for each in found)
    (folder / "c large.png").unlink()
    found = find_duplicates(embed_folder(embedder, folder), threshold=THRESHOLD)
    assert [(each.path, each.keep, each.identical) for each in found] == [
        ("a.png", True, False), ("b copy.png", False, True), ("d small file.jpg", False, False),
    ]  # fmt: skip
    write_duplicates(tmp_path / "out.csv", found)
    (first, second, _) = csv.DictReader((tmp_path / "out.csv").open())
    assert first == {
        "group": "1", "keep": "1", "path": "a.png", "cosine": "1.000000", "identical": "0", "width": "32",
        "height": "32", "bytes": str((folder / "a.png").stat().st_size),
    }  # fmt: skip
    assert (second["keep"], second["identical"]) == ("0", "1")
    assert sorted(path.name for path in folder.iterdir())[0] == "a.png"  # nothing was deleted


def test_progress_counts_the_images_that_are_decoded(embedder, folder):
    table, calls = embed_folder(embedder, folder), []
    find_duplicates(table, threshold=THRESHOLD, on_progress=lambda *call: calls.append(call))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]  # e.png is like none


def test_a_file_is_kept_rather_than_a_link_to_it(embedder, folder):
    for path in folder.iterdir():
        path.rename(path.with_name("z" + path.name))
    (folder / "a link.png").symlink_to(folder / "zc large.png")
    best, link, *_ = find_duplicates(embed_folder(embedder, folder), threshold=THRESHOLD)
    assert (best.path, link.path, link.identical) == ("zc large.png", "a link.png", True)


def test_files_that_are_gone_are_still_grouped(embedder, folder):
    table = embed_folder(embedder, folder)
    for path in folder.iterdir():
        path.unlink()
    found = find_duplicates(table, threshold=THRESHOLD)
    assert found[0].path == "a.png"
    assert found[0].width is None
    assert duplicates_sheet(table, found).width > 400


def test_groups_are_sorted_by_size_and_shown():
    rows = torch.eye(6)[[0, 1, 1, 2, 2, 2, 5]]
    found = find_duplicates(EmbeddingTable([f"{i}" for i in range(7)], rows))
    assert [(each.group, each.index) for each in found] == [(1, 3), (1, 4), (1, 5), (2, 1), (2, 2)]
    assert find_duplicates(EmbeddingTable(["a", "b"], torch.eye(2))) == []
    with pytest.raises(AAGError, match=r"--threshold 1\.5"):
        find_duplicates(EmbeddingTable(["a"], torch.eye(1)), threshold=1.5)


@pytest.mark.gpu
def test_a_million_rows_take_less_than_thirty_seconds_on_a_gpu():
    rows = F.normalize(torch.randn(1_000_000, 128, device="cuda"), dim=1)
    rows[500_000:600_000] = F.normalize(rows[:100_000] + 0.005 * torch.randn(100_000, 128, device="cuda"), dim=1)
    connect_similar(rows[:10_000], 0.98)
    started = time.perf_counter()
    labels = connect_similar(rows, 0.98)
    assert time.perf_counter() - started < 30
    assert (labels[500_000:600_000] == np.arange(100_000)).all()
    assert len(np.unique(labels)) == 900_000


def test_images_with_one_embedding_and_other_pixels_are_kept(tmp_path):
    """As of an encoder that learned nothing: all rows are equal, and pixels decide."""
    ramp = np.linspace(0, 255, 64, dtype=np.uint8)
    pattern = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    pictures = {
        "a.png": np.broadcast_to(ramp[None, :, None], (64, 64, 3)),
        "mirrored.png": np.broadcast_to(ramp[None, ::-1, None], (48, 48 + 16, 3)),
        "turned.png": np.broadcast_to(ramp[:, None, None], (64, 64, 3)),
        "blocks.png": pattern.repeat(20, 0).repeat(20, 1),
        "small-blocks.png": pattern.repeat(8, 0).repeat(8, 1),
        "white.png": np.full((32, 32, 3), 255, np.uint8),
        "nearly-white.png": np.full((30, 30, 3), 250, np.uint8),
        "black.png": np.zeros((32, 32, 3), np.uint8),
    }
    for name, pixels in pictures.items():
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / name)
    names = list(pictures)
    table = EmbeddingTable(names, torch.eye(4)[:1].repeat(len(names), 1), metadata={"source": str(tmp_path)})
    found = find_duplicates(table)
    groups = {frozenset(each.path for each in found if each.group == number) for number in range(1, 10)} - {frozenset()}
    assert groups == {
        frozenset({"blocks.png", "small-blocks.png"}),
        frozenset({"a.png", "mirrored.png"}),
        frozenset({"white.png", "nearly-white.png"}),
    }


def test_large_components_are_split_completely_or_said(monkeypatch, caplog):
    """The slow version takes the first row, and all rows similar to it, until none is left."""
    rows = noisy_rows(1500, 16, 0.2, 1)
    table = EmbeddingTable([f"{i:04d}" for i in range(len(rows))], rows)
    similar = (rows @ rows.T).numpy() >= 0.8 - components.ROUNDING
    left, groups = list(range(len(rows))), set()
    while left:
        group = [row for row in left if row == left[0] or similar[left[0], row]]
        groups |= {tuple(group)} if len(group) > 1 else set()
        left = [row for row in left if row not in group]

    def found_groups():
        found = find_duplicates(table, threshold=0.8)
        return {tuple(each.index for each in found if each.group == i + 1) for i in range(found[-1].group)}

    assert found_groups() == groups
    assert not caplog.messages
    monkeypatch.setattr(dedupe, "MAX_PAIRS", 1)
    assert found_groups() < groups
    assert "images have nearly the same embedding" in caplog.text


def test_each_image_that_could_go_is_similar_to_the_kept_one():
    """A chain: neighbours are similar, its ends are not."""
    angle = torch.arange(12) * 0.15
    rows = torch.stack([angle.cos(), angle.sin()], dim=1)
    found = find_duplicates(EmbeddingTable([f"{i:02d}" for i in range(12)], rows), threshold=0.98)
    assert len({each.group for each in found}) > 1
    assert all(each.cosine >= 0.98 - 1e-5 for each in found)
    assert sum(each.keep for each in found) == found[-1].group
