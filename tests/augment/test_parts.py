"""A batch in parts, a core for each, is the batch."""

import multiprocessing

import pytest
import torch

from aag.augment import BasicAugment, keys
from aag.augment.parts import by_parts


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", [BasicAugment(), BasicAugment.preset("isif")])
@pytest.mark.parametrize("n", [64, 65, 136])
def test_the_parts_are_the_whole(threads, photographs, family, n):
    images, key = photographs[:n], keys(5, 0, torch.arange(n))
    assert torch.equal(family(images, key=key), family.draw(images, key))
    assert torch.get_num_threads() == threads


def test_parts_run_on_one_thread_each_and_small_batches_whole(threads):
    seen = []

    def draw(images, key):
        seen.append((len(images), torch.get_num_threads()))
        return images

    images = torch.arange(100.0)
    assert torch.equal(by_parts(draw, images, images), images)
    assert sorted(seen) == [(32, 1), (34, 1), (34, 1)]
    seen.clear()
    by_parts(draw, images[:50], images[:50])
    assert seen == [(50, threads)]


def test_an_error_in_a_part_is_the_caller_s(threads):
    def draw(images, key):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        by_parts(draw, torch.zeros(100), torch.zeros(100))


def _child(out) -> None:
    out.put(by_parts(lambda images, key: images, torch.arange(100.0), torch.arange(100.0)).sum().item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_forked_process_does_not_wait_for_threads_it_has_not(threads):
    by_parts(lambda images, key: images, torch.zeros(100), torch.zeros(100))
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    process = context.Process(target=_child, args=(out,))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    assert out.get() == 4950
