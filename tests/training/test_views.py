"""An epoch's batches: every image once, or as the method orders them; each with its own draw."""

import torch

from aag.augment import Augmentation, permutation
from aag.methods import Method
from aag.training.views import Views


class Keys(Augmentation):
    """Marks each image with its key."""

    def plain_views(self, images, rng_key):
        return (images.float() + rng_key[:, None, None, None] % 97).to(torch.uint8)


class Ordered(Method):
    def __init__(self, order):
        super().__init__([Keys(), Keys()])
        self.given = order

    def order(self, epoch):
        return self.given


IMAGES = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 3, 8, 8).contiguous()


def epoch_of(views: Views, epoch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    batches = [views.batch(epoch, step) for step in range(steps)]
    return torch.cat([batch.views for batch in batches], dim=1), torch.cat([batch.ids for batch in batches])


def test_an_epoch_is_the_counted_shuffle_and_ids_name_the_images():
    views, ids = epoch_of(Views(IMAGES, Method([Keys()]), 5, seed=3), 1, 2)
    assert torch.equal(ids, permutation(3, 1, 10))
    assert views.shape == (1, 10, 3, 8, 8)
    alone, same = epoch_of(Views(IMAGES, Method([Keys()]), 2, seed=3), 1, 5)
    assert torch.equal(ids, same)
    assert torch.equal(views, alone)  # whatever the batch


def test_a_method_s_order_is_taken_and_an_image_drawn_twice_looks_different():
    order = torch.tensor([7, 7, 7, 2, 2, 0, 7, 7, 2, 0])
    views, ids = epoch_of(Views(IMAGES, Ordered(order), 5, seed=3), 0, 2)
    assert torch.equal(ids, order)
    assert len({int(pixel) for pixel in views[0, order == 7, 0, 0, 0]}) > 1


def test_a_new_order_is_seen_after_forgetting():
    method = Ordered(torch.zeros(10, dtype=torch.int64))
    views = Views(IMAGES, method, 5, seed=3)
    assert not views.batch(0, 0).ids.any()
    method.given = torch.ones(10, dtype=torch.int64)
    assert not views.batch(0, 0).ids.any()
    views.forget()
    assert views.batch(0, 0).ids.all()
