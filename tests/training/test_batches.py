"""An epoch's batches: every image once, or as the method orders them; each with its own draw."""

import pytest
import torch

from aag.augment import Augmentation, keys, permutation
from aag.methods import Method
from aag.methods.aag import AAG
from aag.training.batches import Batches
from aag.training.prefetch import HostReader


class Keys(Augmentation):
    """Marks each image with its key."""

    def plain_views(self, images, key):
        return (images.float() + key[:, None, None, None] % 97).to(torch.uint8)


class Ordered(Method):
    def __init__(self, order=None):
        super().__init__()
        self.order = order

    def augmentations(self):
        return (Keys(), Keys())

    def epoch_order(self, epoch):
        return self.order


IMAGES = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 3, 8, 8).contiguous()


def epoch_of(batches: Batches, epoch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = [batches.batch(epoch, step) for step in range(steps)]
    return torch.cat([batch.views for batch in made], dim=1), torch.cat([batch.indices for batch in made])


def test_an_epoch_is_the_seeded_shuffle_and_indices_name_the_images():
    views, indices = epoch_of(Batches(IMAGES, Ordered(), 5, seed=3), 1, 2)
    assert torch.equal(indices, permutation(3, 1, 10))
    assert views.shape == (2, 10, 3, 8, 8)
    alone, same = epoch_of(Batches(IMAGES, Ordered(), 2, seed=3), 1, 5)
    assert torch.equal(indices, same)
    assert torch.equal(views, alone)  # whatever the batch


def test_a_method_s_order_is_taken_and_an_image_drawn_twice_looks_different():
    order = torch.tensor([7, 7, 7, 2, 2, 0, 7, 7, 2, 0])
    views, indices = epoch_of(Batches(IMAGES, Ordered(order), 5, seed=3), 0, 2)
    assert torch.equal(indices, order)
    assert len({int(pixel) for pixel in views[0, order == 7, 0, 0, 0]}) > 1


def test_a_new_order_is_seen_after_a_reset():
    method = Ordered(torch.zeros(10, dtype=torch.int64))
    batches = Batches(IMAGES, method, 5, seed=3)
    assert not batches.batch(0, 0).indices.any()
    method.order = torch.ones(10, dtype=torch.int64)
    assert not batches.batch(0, 0).indices.any()
    batches.reset()
    assert batches.batch(0, 0).indices.all()


# --- views of another size, images read ahead ------------------------------------------------------------------------


def noise(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_views_are_cropped_from_larger_images():
    images = noise(12, 20)
    method = AAG()
    views, indices = epoch_of(Batches(images, method, 6, seed=3, view_size=16), 2, 2)
    assert views.shape == (3, 12, 3, 16, 16)
    basic, _, auxiliary = method.augmentations()
    for view, augmentation in ((0, basic.at_size(16)), (2, auxiliary.at_size(16))):
        expected = augmentation(images[indices], key=keys(3, 2, indices, view))
        assert torch.equal(views[view], expected)


def test_an_augmentation_without_a_size_gets_the_centre():
    images = noise(4, 10)
    views, indices = epoch_of(Batches(images, Ordered(), 4, seed=3, view_size=8), 0, 1)
    expected = Keys()(images[indices][:, :, 1:9, 1:9], key=keys(3, 0, indices, 0))
    assert torch.equal(views[0], expected)


class OnAnotherDevice(Batches):
    """Reads ahead although the images are on the device, which a machine without a GPU has only one of."""

    def __init__(self, images, *arguments):
        super().__init__(images, *arguments)
        self._reader = HostReader(images, images.device)
        self.per_chunk = 2


@pytest.mark.parametrize("order", [None, torch.arange(23).flip(0)], ids=["shuffled", "ordered"])
def test_images_read_ahead_are_those_of_the_device(order):
    images = noise(23, 8)
    ahead, resident = OnAnotherDevice(images, Ordered(order), 3, 5), Batches(images, Ordered(order), 3, 5)
    for epoch in (0, 1, 3):  # a resumed run leaves epochs out
        for step in (*range(7), 4, 0):
            made, expected = ahead.batch(epoch, step), resident.batch(epoch, step)
            assert torch.equal(made.views, expected.views)
            assert torch.equal(made.indices, expected.indices)
        ahead.reset()
    ahead.close()


def test_the_next_request_is_read_while_the_first_is_used():
    images = noise(50, 8)
    reader = HostReader(images, images.device)
    first, second = torch.arange(40), torch.arange(49, 9, -1)
    got = reader.read(first, second)
    assert torch.equal(got, images[first])
    assert reader._pending is not None
    assert torch.equal(reader._pending[0], second)
    assert torch.equal(got, images[first])  # the second is gathered elsewhere
    assert torch.equal(reader.read(second), images[second])
    assert torch.equal(reader.read(first[:3]), images[:3])
    reader.close()
