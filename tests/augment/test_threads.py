"""A batch split over threads gives the whole batch, for any number of threads."""

import multiprocessing

import pytest
import torch

from aag.augment import AutoAugment, AuxiliaryAugment, BasicAugment, RandAugment, keys
from aag.augment.threads import run_tasks, split_over_threads


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)  # conftest restores the number


@pytest.mark.parametrize("n", [64, 65, 136])
def test_a_split_batch_equals_the_whole_for_any_number_of_threads(photographs, n):
    augmentation, key = BasicAugment.preset("isif", blur=0.5), keys(5, 0, torch.arange(n))
    whole = augmentation.plain_views(photographs[:n], key)
    for threads in (1, 2, 5, 3, 16):
        torch.set_num_threads(threads)
        assert torch.equal(augmentation(photographs[:n], key=key), whole)
        assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("threads", "n", "parts"),
    [
        (3, 100, [(32, 1), (34, 1), (34, 1)]),
        (3, 63, [(63, 3)]),  # too few to split
        (16, 100, [(4, 1), (32, 1), (32, 1), (32, 1)]),
        (2, 600, [(88, 1), (256, 1), (256, 1)]),
        (1, 600, [(600, 1)]),
    ],
)
def test_parts_have_a_sensible_size_and_one_thread_each(threads, n, parts):
    torch.set_num_threads(threads)
    seen = []

    def augment(images, rng_key):
        seen.append((len(images), torch.get_num_threads()))
        return images

    images = torch.arange(float(n))
    assert torch.equal(split_over_threads(augment, images, images), images)
    assert sorted(seen) == parts


def test_an_error_in_a_thread_reaches_the_caller(three_threads):
    def augment(images, rng_key):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        split_over_threads(augment, torch.zeros(100), torch.zeros(100))


def _split_in_child(out) -> None:
    out.put(split_over_threads(lambda images, _: images, torch.arange(100.0), torch.arange(100.0)).sum().item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_forked_process_starts_its_own_threads(three_threads):
    split_over_threads(lambda images, _: images, torch.zeros(100), torch.zeros(100))
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    process = context.Process(target=_split_in_child, args=(out,))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    assert out.get() == 4950


@pytest.mark.parametrize("augmentation", [AutoAugment(), RandAugment(), AuxiliaryAugment()], ids=str)
def test_operations_in_threads_give_the_same_pixels(photographs, augmentation):
    images, key = photographs.repeat(3, 1, 1, 1)[:300], keys(5, 0, torch.arange(300))
    torch.set_num_threads(1)
    alone = augmentation(images, key=key)
    torch.set_num_threads(5)
    assert torch.equal(augmentation(images, key=key), alone)
    assert torch.get_num_threads() == 5


def test_an_error_in_a_task_reaches_the_caller():
    torch.set_num_threads(4)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_tasks([fail], 1000)
