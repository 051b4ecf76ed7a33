"""MoCo as a method: queue, key encoder and shuffle against slow, obvious versions."""

from copy import deepcopy

import pytest
import torch
from making import make_encoder, make_method
from torch.nn.functional import normalize

from aag import AAGError
from aag.losses import queue_xent
from aag.methods.moco import MoCo, shuffled_order
from aag.methods.queues import new_queue
from aag.settings import TrainSettings

N, QUEUE = 4, 16


@pytest.fixture
def encoder():
    return make_encoder(embedding=8)


@pytest.fixture
def views(photographs):
    return photographs[: 10 * N].unflatten(0, (5, 2, N))  # of five steps


def moco(encoder, queue=QUEUE, **settings):
    return make_method(MoCo, encoder, train=TrainSettings(batch_size=N), queue=queue, **settings)


def train(method, encoder, batches, lr=0.1):
    losses = []
    for images in batches:
        output = method(encoder, images, torch.arange(N))
        encoder.zero_grad()
        output.loss.backward()
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter -= lr * parameter.grad
            method.after_step(encoder, *output.carry)
        losses.append(output.loss.item())
    return losses


def slowly(encoder, batches, queue, *, symmetric, keep_positive=True, momentum=0.99, tau=0.1, lr=0.1):
    """MoCo as its paper tells it: two networks, a list of keys, the oldest of which leave."""
    query_encoder, key_encoder, queue = deepcopy(encoder), deepcopy(encoder), list(queue)
    losses = []
    for x, y in batches:
        pairs = [(x, y), (y, x)] if symmetric else [(x, y)]
        q = query_encoder(torch.cat([query for query, _ in pairs]))[1]
        k = key_encoder(torch.cat([key for _, key in pairs]))[1].detach()
        directions = []
        for query, key in zip(q.chunk(len(pairs)), k.chunk(len(pairs)), strict=True):
            directions.append(queue_xent(query, key, torch.stack(queue), temperature=tau, keep_positive=keep_positive))
        loss = sum(directions)
        query_encoder.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for slow, fast in zip(key_encoder.parameters(), query_encoder.parameters(), strict=True):
                fast -= lr * fast.grad
                slow.copy_(momentum * slow + (1 - momentum) * fast)
        queue = [*queue[len(k) :], *normalize(k, dim=1)]
    return losses, key_encoder, queue


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("loss", ["nt-xent", "gnt-xent"])
def test_five_steps_equal_a_slow_version(symmetric, loss, encoder, views):
    encoder.double()  # batch norm of four images makes much of float32's last digits
    method = moco(encoder, symmetric=symmetric, loss=loss, key_momentum=0.9).double()
    expected, key_encoder, queue = slowly(
        encoder, views, method.queue, symmetric=symmetric, keep_positive=loss == "nt-xent", momentum=0.9
    )
    assert train(method, encoder, views) == pytest.approx(expected, rel=1e-7)
    for name, value in key_encoder.state_dict().items():
        torch.testing.assert_close(method.key.state_dict()[name], value, rtol=1e-7, atol=1e-9)
    # A ring: the oldest key lies where the next step will write.
    first = 5 * N * (2 if symmetric else 1) % QUEUE
    torch.testing.assert_close(method.queue.roll(-first, dims=0), torch.stack(queue), rtol=1e-7, atol=1e-9)


def test_keys_move_once_per_window_of_accumulated_batches(encoder):
    method = make_method(MoCo, encoder, train=TrainSettings(batch_size=N, accumulate=4), queue=QUEUE, key_momentum=0.5)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 1
        before = [each.clone() for each in method.key.parameters()]
        for _ in range(4):
            method.after_step(encoder, normalize(torch.randn(N, 8), dim=1))
    for found, first in zip(method.key.parameters(), before, strict=True):
        torch.testing.assert_close(found, first + 0.5)


def test_the_log_holds_mean_cosines(encoder):
    query, key = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    method = moco(encoder)
    positive, negative = method.loss((query[None], key[None]), torch.arange(3)).log
    torch.testing.assert_close(positive, torch.cosine_similarity(query, key).mean())
    torch.testing.assert_close(negative, torch.cosine_similarity(query[:, None], method.queue, dim=2).mean())


@pytest.mark.parametrize("symmetric", [False, True])
def test_shuffled_keys_come_back_to_their_places(symmetric, encoder, views):
    """In eval mode batch norm does not care who is beside whom, so that only a wrong place could change a key."""
    grouped = make_encoder(embedding=8, bn_group_size=2)
    plain, shuffling = (moco(each, symmetric=symmetric) for each in (encoder, grouped))
    assert not plain.shuffle
    assert shuffling.shuffle
    keys = [method.eval()._keys(views[0]) for method in (plain, shuffling)]
    torch.testing.assert_close(*keys)


def test_shuffled_keys_meet_other_images_in_batch_norm(views):
    encoder = make_encoder(embedding=8, bn_group_size=2)
    method = moco(encoder)
    order = shuffled_order(0, method.steps, 1, N)
    assert not torch.equal(order, torch.arange(N))
    found = method._keys(views[0, :1])
    expected = torch.empty_like(found)
    for group in order.split(2):
        expected[group] = encoder(views[0, 0, group])[1].detach()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_shuffle_is_a_permutation_of_each_view_and_another_one_each_step():
    seen = set()
    for step in range(20):
        order = shuffled_order(3, torch.tensor(step), 2, 16)
        for view, places in enumerate(order.chunk(2)):
            assert sorted(places.tolist()) == list(range(16 * view, 16 * view + 16))
            seen.add(tuple((places - 16 * view).tolist()))
    assert len(seen) == 40
    assert not torch.equal(shuffled_order(4, torch.tensor(0), 1, 16), shuffled_order(3, torch.tensor(0), 1, 16))


def test_the_queue_starts_as_random_directions():
    rows = new_queue(4096, 8, 128, seed=0)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4096))
    assert rows.mean(dim=0).abs().max() < 0.03
    covariance = rows.T @ rows / 4096 * 8
    assert (covariance - torch.eye(8)).abs().max() < 0.1
    assert torch.equal(rows[:10], new_queue(10, 8, 1, seed=0))
    assert not torch.equal(rows, new_queue(4096, 8, 128, seed=1))


def test_a_queue_that_steps_do_not_fill_evenly_is_refused_with_advice(encoder):
    assert len(moco(encoder, queue=8, symmetric=True).queue) == 8
    with pytest.raises(AAGError, match="--queue 18 is not a multiple of the 4 embeddings per step; use --queue 16"):
        moco(encoder, queue=18)
    with pytest.raises(AAGError, match="the 8 embeddings per step; use --queue 8"):
        moco(encoder, queue=4, symmetric=True)
