"""Weighted kNN against a plain loop."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aag.errors import AAGError
from aag.evaluate import knn, knn_accuracy, knn_predict, knn_protocol


def clusters(n: int, labels: list[int], seed: int, width: int = 6, spread: float = 1.0):
    """Return features in one cluster per label, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(99))
    which = torch.randint(len(labels), (n,), generator=generator)
    features = centres[which] + spread * torch.randn(n, width, generator=generator)
    return features, torch.tensor(labels)[which]


def slow_votes(train, train_labels, query, k, temperature) -> dict[int, float]:
    """Return Σ exp(cos / T) per class over the k nearest, for one query, in float64."""
    cosines = [(torch.dot(row, query) / (row.norm() * query.norm())).item() for row in train.double()]
    votes: dict[int, float] = {}
    for i in sorted(range(len(cosines)), key=lambda i: -cosines[i])[:k]:
        label = int(train_labels[i])
        votes[label] = votes.get(label, 0.0) + math.exp((cosines[i] - max(cosines)) / temperature)
    return votes


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 90),
    m=st.integers(1, 4),
    k=st.integers(1, 120),
    temperature=st.sampled_from([0.02, 0.1, 0.5, 3.0]),
    labels=st.lists(st.integers(-2, 30), min_size=1, max_size=5, unique=True),
    seed=st.integers(0, 1000),
)
def test_against_a_slow_loop(n, m, k, temperature, labels, seed):
    train, train_labels = clusters(n, labels, seed)
    test, _ = clusters(m, labels, seed + 1)
    got = knn_predict(train, train_labels, test, k=k, temperature=temperature)
    assert got.classes.tolist() == sorted(set(train_labels.tolist()))
    for row in range(m):
        votes = slow_votes(train, train_labels, test[row].double(), k, temperature)
        shares = [votes.get(label, 0.0) / sum(votes.values()) for label in got.classes.tolist()]
        assert got.scores[row].tolist() == pytest.approx(shares, abs=2e-4)
        if sum(share > max(shares) - 1e-3 for share in shares) == 1:  # no near tie
            assert got.labels[row] == max(votes, key=votes.__getitem__)


def test_by_default_200_neighbours_vote_at_a_temperature_of_0_1():
    train = torch.stack([torch.ones(250), torch.linspace(0, 3, 250)], dim=1)  # sorted by their cosine with the query
    labels, query = (torch.arange(250) >= 200).long(), torch.tensor([[1.0, 0.0]])
    scores = knn_predict(train, labels, query).scores
    assert torch.equal(scores, knn_predict(train, labels, query, k=200, temperature=0.1).scores)
    assert scores.tolist() == [[1, 0]]
    assert knn_predict(train, labels, query, k=201).scores[0, 1] > 0
    # 80 near images of one class outvote 110 farther ones at 0.1, not at 1.
    near_and_far = torch.tensor([[1.0, 0.3]] * 80 + [[1.0, 0.6]] * 110), torch.tensor([0] * 80 + [1] * 110)
    assert knn_predict(*near_and_far, query, temperature=1.0).labels == 1
    assert knn_accuracy(*near_and_far, query, torch.tensor([0])) == 100
    assert (knn_protocol()["k"], knn_protocol()["temperature"]) == (200, 0.1)


def test_leave_one_out_equals_one_prediction_per_row_without_it():
    features, labels = clusters(40, [0, 1, 2], seed=3)
    got = knn_predict(features, labels, features, k=5, classes=3, leave_one_out=True)
    for row in range(40):
        others = torch.arange(40) != row
        alone = knn_predict(features[others], labels[others], features[row : row + 1], k=5, classes=3)
        assert got.scores[row].tolist() == pytest.approx(alone.scores[0].tolist(), abs=1e-5)
    with pytest.raises(AAGError, match="leave-one-out needs"):
        knn_predict(features, labels, features[:2], leave_one_out=True)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 400),
    m=st.integers(1, 6),
    k=st.integers(1, 60),
    levels=st.sampled_from([2, 5, 1000]),  # few distinct coordinates make many equal similarities
    seed=st.integers(0, 1000),
)
def test_grouped_selection_equals_plain_topk(n, m, k, levels, seed):
    k = min(k, n)
    generator = torch.Generator().manual_seed(seed)
    train = torch.randint(-levels, levels + 1, (n, 3), generator=generator) / (3 * levels)
    test = torch.randint(-levels, levels + 1, (m, 3), generator=generator) / (3 * levels)
    similarity = test @ train.T
    for rows, cosine, index in knn.find_neighbours(train, test, k):
        expected = similarity[rows].topk(k).values
        torch.testing.assert_close(cosine.sort(dim=1, descending=True).values, expected)
        torch.testing.assert_close(similarity[rows].gather(1, index), cosine)
        assert all(len(set(row)) == k for row in index.tolist())


def test_chunks_give_the_same(monkeypatch):
    train, train_labels = clusters(700, [0, 1, 2], 0)
    test, test_labels = clusters(50, [0, 1, 2], 1)
    whole = knn_predict(train, train_labels, test, k=20)
    monkeypatch.setattr(knn, "CPU_CHUNK_BYTES", 3 * 4 * 700)
    chunked = knn_predict(train, train_labels, test, k=20)
    assert torch.equal(whole.labels, chunked.labels)
    torch.testing.assert_close(whole.scores, chunked.scores)
    accuracy = knn_accuracy(train, train_labels, test, test_labels, k=20)
    assert accuracy == 100 * (whole.labels == test_labels).sum().item() / 50
    assert accuracy > 60


def test_percent_and_labels_that_are_not_contiguous():
    train = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    labels = torch.tensor([3, 7], dtype=torch.uint8)
    test = torch.tensor([[9.0, 1.0], [0.1, 5.0], [1.0, 0.2], [-1.0, 0.9]], dtype=torch.float64)
    assert knn_predict(train, labels, test).labels.tolist() == [3, 7, 3, 7]
    assert knn_accuracy(train, labels, test, torch.tensor([3, 7, 3, 4])) == 75.0


def test_classes_set_the_columns():
    train, labels = torch.eye(3), torch.tensor([4, 0, 4])
    got = knn_predict(train, labels, torch.eye(3)[:1], k=1, classes=6)
    assert got.scores.tolist() == [[0, 0, 0, 0, 1, 0]]
    assert got.labels.tolist() == [4]
    with pytest.raises(AAGError, match=r"labels must be 0 to 3 for classes=4; they range from 0 to 4"):
        knn_predict(train, labels, torch.eye(3), classes=4)


def test_a_tiny_temperature_does_not_overflow():
    train, labels = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([1, 0])
    got = knn_predict(train, labels, torch.tensor([[-1.0, -1.0]]), temperature=1e-4)  # both cosines far below 0
    assert got.scores.tolist() == [[0.0, 1.0]]
    assert got.labels.tolist() == [1]


GOOD = (torch.rand(4, 3), torch.arange(4), torch.rand(2, 3), torch.arange(2))


@pytest.mark.parametrize(
    ("position", "value", "line"),
    [
        (0, torch.rand(0, 3), r"the training set is empty: features of shape \[0, 3\]"),
        (0, torch.rand(4), r"the training features must be a float tensor \[N, D\], got shape \[4\]"),
        (0, torch.ones(4, 3, dtype=torch.int64), "the training features must be a float tensor .* not torch.int64"),
        (0, torch.full((4, 3), torch.nan), "the training features hold NaN or infinity"),
        (1, torch.arange(5), r"the training set has 4 features but labels of shape \[5\]"),
        (1, torch.rand(4), "the training labels must be a tensor of whole numbers, not torch.float32"),
        (1, [0, 1, 2, 3], "the training labels must be a tensor of whole numbers, not list; use torch.as_tensor"),
        (2, torch.rand(2, 4), "training features have 3 dimensions, test features 4"),
        (2, torch.full((2, 3), torch.inf), "the test features hold NaN or infinity"),
        (3, torch.arange(3), r"the test set has 2 features but labels of shape \[3\]"),
    ],
)
def test_bad_sets_give_one_line(position, value, line):
    sets = list(GOOD)
    sets[position] = value
    with pytest.raises(AAGError, match=line) as caught:
        knn_accuracy(*sets)
    assert "\n" not in str(caught.value)
    for wrong in ({"k": 0}, {"temperature": 0.0}):
        with pytest.raises(AAGError, match="must be"):
            knn_accuracy(*GOOD, **wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [150, 5003])
def test_cuda_agrees_with_cpu(n):
    train, train_labels = clusters(n, [3, 7, 9], 0)
    test, test_labels = clusters(500, [3, 7, 9], 1)
    cpu = knn_predict(train, train_labels, test)
    cuda = knn_predict(train.cuda(), train_labels, test)
    assert cuda.labels.device.type == "cuda"
    torch.testing.assert_close(cuda.scores.cpu(), cpu.scores, atol=1e-4, rtol=1e-4)
    got = knn_accuracy(train.cuda(), train_labels.cuda(), test.cuda(), test_labels)
    assert got == pytest.approx(knn_accuracy(train, train_labels, test, test_labels), abs=0.21)
