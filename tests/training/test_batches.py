"""An epoch's batches: every image once, or as the method orders them; each with its own draw."""

import torch

from aag.augment import Augmentation, permutation
from aag.methods import Method
from aag.training.batches import Batches


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
