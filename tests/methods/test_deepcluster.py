"""DeepCluster: its labels, its order, its top layer and its loss."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from aag import AAGError, nets
from aag.config import recipe_config
from aag.methods.base import Setting
from aag.methods.deepcluster import DeepCluster

N = 120


@pytest.fixture
def encoder():
    return nets.build(nets.EncoderSpec("resnet18", width=4, head="none"), seed=0)


@pytest.fixture
def method(encoder):
    config = replace(recipe_config("deepcluster", "cifar10"), clusters=6, seed=3)
    return DeepCluster.from_setting(Setting(config, N, encoder))


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


def test_it_takes_one_view_and_no_more_clusters_than_a_tenth_of_the_images(method):
    assert len(method.views) == 1
    assert method.clusters == 6
    assert DeepCluster((), 50_000, 8).clusters == 1000
    assert DeepCluster((), 15, 8, 2).clusters == 2
    with pytest.raises(AAGError, match="--clusters 10 leaves fewer than 10 of 95 images to a cluster; use at most 9"):
        DeepCluster((), 95, 8, 10)


@pytest.mark.parametrize("head", ["linear", "mlp", "auto"])
def test_a_head_that_nothing_trains_is_refused(head):
    encoder = nets.build(nets.EncoderSpec("resnet18", width=4, head=head), seed=0)
    config = replace(recipe_config("deepcluster", "cifar10"), clusters=6)
    with pytest.raises(AAGError, match="--method deepcluster trains no head; use --head none"):
        DeepCluster.from_setting(Setting(config, N, encoder))


def test_clusters_follow_the_features(method):
    _, group = cluster(method)
    assert method.labels.dtype == torch.int64
    assert method.labels.shape == (N,)
    largest = method.labels[group == 0].bincount(minlength=6)
    assert largest.max() >= 25  # images of one kind are not scattered
    assert method.nmi == 0  # there was no clustering before
    cluster(method, epoch=1)
    assert 0.3 < method.nmi <= 1


def test_memory_changes_in_place_and_by_the_epoch_alone(method, encoder):
    places = {name: tensor.data_ptr() for name, tensor in method.state_dict().items()}
    cluster(method, epoch=4)
    assert {name: tensor.data_ptr() for name, tensor in method.state_dict().items()} == places
    config = replace(recipe_config("deepcluster", "cifar10"), clusters=6, seed=3)
    other = DeepCluster.from_setting(Setting(config, N, encoder))
    torch.rand(3)  # the global generator has no say
    cluster(other, epoch=4)
    for name, tensor in method.state_dict().items():
        assert name == "nmi" or torch.equal(tensor, other.state_dict()[name])
    assert torch.equal(method.order(4), other.order(4))


def test_the_top_layer_starts_anew_every_epoch(method):
    large = DeepCluster((), 4000, 128, 400)
    weight = large.top.weight.detach().clone()
    assert weight.mean().abs() < 2e-4
    assert weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert ((weight.abs() < 0.01).float().mean() - 0.6827).abs() < 0.01  # a normal distribution
    large.renew_top(1)
    assert not torch.equal(large.top.weight, weight)
    with torch.no_grad():
        method.top.bias.add_(1)
    cluster(method)
    assert (method.top.bias == 0).all()
    assert [p is q for p, q in zip(method.fresh, method.top.parameters(), strict=True)] == [True, True]


def test_every_cluster_has_the_same_share_of_an_epoch(method):
    _, group = groups()
    method.labels.copy_(torch.where(group == 5, 4, group))  # sizes 50, 30, 20, 12, 8, 0
    order = method.order(0)
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
    order = method.order(0)  # of the labels it starts with
    assert (method.labels[order].diff() < 0).sum() > 20
    assert not torch.equal(order, method.order(1))
    assert torch.equal(order, method.order(0))
    seen = torch.cat([method.order(epoch) for epoch in range(40)]).unique()
    assert len(seen) == N


def test_an_order_exists_even_where_one_cluster_holds_all(method):
    method.labels.zero_()
    order = method.order(0)
    assert order.shape == (N,)
    assert 0 <= order.min() <= order.max() < N


def test_the_loss_is_the_cross_entropy_of_the_clusters(method):
    method = method.double()
    cluster(method)
    features = torch.randn(10, 32, dtype=torch.float64, requires_grad=True)
    index = torch.arange(10) * 11
    outcome = method.loss([features], index)
    total, right = 0.0, 0
    for row, image in zip(features, index, strict=True):
        logits = [
            sum(max(f, 0) * w for f, w in zip(row.tolist(), weight.tolist(), strict=True)) + bias.item()
            for weight, bias in zip(method.top.weight, method.top.bias, strict=True)
        ]
        label = method.labels[image].item()
        total += torch.tensor(logits).double().logsumexp(0).item() - logits[label]
        right += max(range(6), key=lambda c: logits[c]) == label
    assert outcome.loss.item() == pytest.approx(total / 10, rel=1e-9)
    assert outcome.log[0].item() == pytest.approx(right / 10)
    assert torch.autograd.gradcheck(lambda f: method.loss([f], index).loss, [features])


def test_a_step_reaches_encoder_and_top_layer(method, encoder, photographs):
    views, index = photographs[None, :8], torch.arange(8)
    outcome = method(encoder, views, index)
    assert len(outcome.log) == len(method.logs)
    outcome.loss.backward()
    assert method.top.weight.grad.abs().sum() > 0
    assert next(encoder.backbone.parameters()).grad.abs().sum() > 0


def test_half_precision_features_are_classified_in_full(method):
    features, index = torch.randn(4, 32).bfloat16(), torch.arange(4)
    loss = method.loss([features], index).loss
    assert loss.dtype == torch.float32
    assert torch.equal(loss, method.loss([features.float()], index).loss)


def test_training_on_clusters_learns_them(method):
    features, _ = cluster(method)
    optimizer = torch.optim.SGD(method.top.parameters(), lr=0.1)
    first = method.loss([features], torch.arange(N))
    for _ in range(50):
        optimizer.zero_grad()
        method.loss([features], torch.arange(N)).loss.backward()
        optimizer.step()
    last = method.loss([features], torch.arange(N))
    assert last.loss < first.loss / 2
    assert last.log[0] > first.log[0] + 0.4
