"""k-means finds clear groups, chooses their number, and writes what it found."""

import csv
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from aag.errors import AAGError
from aag.serving.clusters import choose_count, clusters_sheet, find_clusters, write_clusters
from aag.serving.embed import embed_folder
from aag.serving.table import EmbeddingTable


def clear_groups(count, size=30, width=32):
    """Unit rows around `count` centres, with their labels."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(count, width, generator=generator), dim=1)
    rows = centres.repeat_interleave(size, 0) + 0.05 * torch.randn(count * size, width, generator=generator)
    labels = [f"group {i // size}" for i in range(count * size)]
    return EmbeddingTable([f"{i}.png" for i in range(len(rows))], F.normalize(rows, dim=1), columns={"label": labels})


@pytest.mark.parametrize("count", [3, 8, 20])
def test_the_number_of_clear_groups_is_found(count):
    found = find_clusters(clear_groups(count), seed=2**63 - 1)  # the largest
    assert found.count == count
    assert found.nmi == pytest.approx(1, abs=0.02)


def test_overlapping_groups_are_not_always_two():
    assert choose_count({2: 0.127, 3: 0.113, 10: 0.118, 20: 0.115, 32: 0.109}) == 20
    assert choose_count({2: 0.5, 3: 0.9, 4: 0.85}) == 3
    assert choose_count({}) == 1


def test_the_silhouette_is_that_of_the_clusters_that_are_found():
    """Of 7 different images there are no 8 clusters, the next number that is tried."""
    found = find_clusters(EmbeddingTable([f"{i}" for i in range(70)], clear_groups(7, 1).embeddings.repeat(10, 1)))
    assert found.count == 7
    assert found.silhouettes[7] == max(found.silhouettes.values()) == pytest.approx(1)
    assert max(found.silhouettes) == 7


def test_clusters_are_numbered_by_size_and_members_by_distance(tmp_path):
    table = clear_groups(4)
    keep = list(range(50)) + list(range(60, 70))  # 30, 20 and 10 images of three groups
    table = EmbeddingTable([table.names[i] for i in keep], table.embeddings[keep])
    found = find_clusters(table, 3)
    assert found.labels.bincount().tolist() == [30, 20, 10]
    assert found.nmi is None
    distances = found.distances[found.members(0)]
    assert (distances.diff() >= 0).all()
    centre = table.embeddings[:30].mean(dim=0)
    torch.testing.assert_close(found.distances[:30], (table.embeddings[:30] - centre).norm(dim=1))
    write_clusters(tmp_path / "out.csv", table, found)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["path"] for row in rows] == table.names
    assert {row["cluster"] for row in rows} == {"1", "2", "3"}


def test_few_and_equal_images_are_no_problem(embedder, photos):
    one = embed_folder(embedder, photos / "cats/00.png")
    assert find_clusters(one).count == 1
    same = EmbeddingTable(["a"] * 9, one.embeddings.repeat(9, 1))
    assert find_clusters(same).labels.tolist() == [0] * 9
    with pytest.raises(AAGError, match="--clusters 2 does not fit 1 image"):
        find_clusters(one, 2)


@pytest.mark.parametrize("label", ["", None])
def test_without_labels_there_is_no_mutual_information(label):
    table = clear_groups(3)
    assert find_clusters(replace(table, columns={"label": [label] * len(table)}), 3).nmi is None


def test_the_sheet_has_a_section_per_cluster(embedder, photos):
    table = embed_folder(embedder, photos)
    sheets = [clusters_sheet(table, find_clusters(table, count), examples=5) for count in (2, 8)]
    assert sheets[1].height > sheets[0].height


def test_labels_may_be_numbers():
    table = clear_groups(3)
    numbers = [int(name != "group 0") for name in table.columns["label"]]
    names = ["one" if number else "other" for number in numbers]
    of_numbers, of_names = (find_clusters(replace(table, columns={"label": each}), 3).nmi for each in (numbers, names))
    assert of_numbers == pytest.approx(of_names)
