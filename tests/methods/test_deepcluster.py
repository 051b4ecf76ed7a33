"""DeepCluster: its labels, its order, its top layer and its loss."""

import pytest
import torch
import torch.nn.functional as F
from making import make_encoder, make_method

from aag import AAGError
from aag.methods.deepcluster import DeepCluster
from aag.settings import TrainSettings

N = 120


def deepcluster(images=N, clusters=6, **spec):
    return make_method(
        DeepCluster, make_encoder(**{"head": "none"} | spec), images, TrainSettings(seed=3), clusters=clusters
    )


@pytest.fixture
def method():
    return deepcluster()


def groups(seed=0):
    """Features of six far groups of different sizes; most numbers are dead, else whitening makes much of noise."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([50, 30, 20, 12, 5, 3])
    group = torch.arange(6).repeat_interleave(sizes)
    features = torch.eye(6)[group] * 10 + 0.1 * torch.randn(N, 6, generator=generator)
    return F.pad(features, (0, 26)), group


def cluster(method, epoch=0, seed=0):
    features, group = groups(seed)
    method.before_epoch(epoch, lambda: (features, features))
    return features, group


def test_no_more_clusters_than_a_tenth_of_the_images():
    deepcluster(15, clusters=2)
    with pytest.raises(
        AAGError, match="10 clusters leave fewer than 10 of 95 images to each; use at most --clusters 9"
    ):
        deepcluster(95, clusters=10)


def test_a_head_is_trained_clustered_and_classified():
    method, encoder = deepcluster(head="linear", embedding=6), make_encoder(head="linear", embedding=6)
    assert method.classifier.in_features == 6
    features, group = groups()
    method.before_epoch(0, lambda: (torch.zeros(N, 32), features[:, :6]))  # clusters of the head's output
    assert method.labels[group == 0].bincount().max() >= 25
    embeddings = method.embed(encoder, torch.randint(0, 256, (1, 8, 3, 32, 32), dtype=torch.uint8))
    assert embeddings.shape == (1, 8, 6)
    method.loss(embeddings, torch.arange(8)).loss.backward()
    assert encoder.head.weight.grad.abs().sum() > 0


def test_the_classifier_may_have_its_own_momentum(method):
    assert method.momenta() == {}
    own = make_method(DeepCluster, make_encoder(head="none"), N, clusters=6, classifier_momentum=0.0)
    assert own.momenta() == {own.classifier.weight: 0.0, own.classifier.bias: 0.0}


def test_clusters_follow_the_features(method):
    _, group = cluster(method)
    assert method.labels.dtype == torch.int64
    assert method.labels.shape == (N,)
    largest = method.labels[group == 0].bincount(minlength=6)
    assert largest.max() >= 25  # images of one kind are not scattered
    assert method.nmi == 0  # there was no clustering before
    cluster(method, epoch=1)
    assert 0.3 < method.nmi <= 1


def test_the_classifier_starts_anew_every_epoch(method):
    large = deepcluster(4000, clusters=400, width=16)
    weight = large.classifier.weight.detach().clone()
    assert weight.mean().abs() < 2e-4
    assert weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert ((weight.abs() < 0.01).float().mean() - 0.6827).abs() < 0.01  # a normal distribution
    large.reset_classifier(1)
    assert not torch.equal(large.classifier.weight, weight)
    with torch.no_grad():
        method.classifier.bias.add_(1)
    cluster(method)
    assert (method.classifier.bias == 0).all()


def test_every_cluster_has_the_same_share_of_an_epoch(method):
    _, group = groups()
    method.labels.copy_(torch.where(group == 5, 4, group))  # sizes 50, 30, 20, 12, 8, 0
    order = method.epoch_order(0)
    assert order.shape == (N,)
    assert order.dtype == torch.int64
    shares = method.labels[order].bincount(minlength=6)
    each = N // 5 + 1  # 25, and five of them too many
    assert shares[5] == 0
    assert (shares[:5] <= each).all()
    assert (shares[:5] >= each - 5).all()
    drawn = order.bincount(minlength=N)
    assert drawn[method.labels <= 1].max() == 1  # large clusters: without replacement
    assert drawn[method.labels == 4].max() > 1


def test_orders_are_shuffled_and_differ_by_epoch(method):
    order = method.epoch_order(0)  # of the labels it starts with
    assert (method.labels[order].diff() < 0).sum() > 20
    assert not torch.equal(order, method.epoch_order(1))
    assert torch.equal(order, method.epoch_order(0))
    seen = torch.cat([method.epoch_order(epoch) for epoch in range(40)]).unique()
    assert len(seen) == N


def test_an_order_exists_even_where_one_cluster_holds_all(method):
    method.labels.zero_()
    order = method.epoch_order(0)
    assert order.shape == (N,)
    assert 0 <= order.min() <= order.max() < N


def test_the_loss_is_the_cross_entropy_of_the_clusters(method):
    method = method.double()
    cluster(method)
    features = torch.randn(10, 32, dtype=torch.float64, requires_grad=True)
    index = torch.arange(10) * 11
    output = method.loss([features], index)
    total, right = 0.0, 0
    for row, image in zip(features, index, strict=True):
        logits = [
            sum(max(f, 0) * w for f, w in zip(row.tolist(), weight.tolist(), strict=True)) + bias.item()
            for weight, bias in zip(method.classifier.weight, method.classifier.bias, strict=True)
        ]
        label = method.labels[image].item()
        total += torch.tensor(logits).double().logsumexp(0).item() - logits[label]
        right += max(range(6), key=lambda c: logits[c]) == label
    assert output.loss.item() == pytest.approx(total / 10, rel=1e-9)
    assert output.log[0].item() == pytest.approx(right / 10)
    assert torch.autograd.gradcheck(lambda f: method.loss([f], index).loss, [features])
