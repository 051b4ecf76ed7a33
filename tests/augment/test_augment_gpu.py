"""The GPU shows what the CPU shows, by kernels and without: a test on the CPU speaks for all."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from aag import kernels
from aag.augment import (
    OPS,
    AutoAugment,
    AuxiliaryAugment,
    BasicAugment,
    RandAugment,
    apply_op,
    keys,
    permutation,
    uniforms,
)
from aag.augment.ops import MATRICES, apply_each

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

FAMILIES = {
    "basic": BasicAugment(),
    "isif": BasicAugment.preset("isif"),
    "basic 48": BasicAugment(size=48),
    "autoaugment": AutoAugment(),
    "autoaugment svhn": AutoAugment("svhn"),
    "autoaugment imagenet": AutoAugment("imagenet"),
    "randaugment": RandAugment(),
    "auxiliary": AuxiliaryAugment(),
    "auxiliary padded": AuxiliaryAugment(crop="padded"),
}
FACTORS = [0.1, 0.7, 1.3, 1.9]
SLOPES = [-0.3, -0.1, 0.0667, 0.2]
SHIFTS = [-14.5, -4, 0.5, 9.67]
MAGNITUDES = {
    "ShearX": SLOPES,
    "ShearY": SLOPES,
    "TranslateX": SHIFTS,
    "TranslateY": SHIFTS,
    "Rotate": [-30, -6.667, 10, 90],
    "Brightness": FACTORS,
    "Color": FACTORS,
    "Contrast": FACTORS,
    "Sharpness": FACTORS,
    "Posterize": [4, 5, 7, 8],
    "Solarize": [0, 85.333, 170, 256],
}


@pytest.fixture(autouse=True, params=["kernels", "torch"])
def way(request) -> Iterator[str]:
    """Every test twice: by kernels, and by the plain code of a GPU without Triton."""
    if request.param == "torch":
        with kernels.disabled():
            yield "torch"
    else:
        pytest.importorskip("triton")
        assert kernels.enabled(torch.zeros(1, device="cuda"))
        yield "kernels"


def share_equal(one: Tensor, other: Tensor) -> float:
    """The share of pixels, all three channels, that are the same."""
    return (one.cpu() == other.cpu()).all(dim=1).double().mean().item()


def share_within_a_level(one: Tensor, other: Tensor) -> float:
    return ((one.cpu().int() - other.cpu().int()).abs() <= 1).all(dim=1).double().mean().item()


def least(name: str) -> float:
    """The share of pixels to agree. A resized crop may round one level apart, and Equalize makes several of one."""
    return 0.99 if name == "auxiliary" else 0.999


def exact(name: str) -> bool:
    """Whether nothing but whole numbers decides on a pixel: kernels then give the CPU's."""
    return isinstance(FAMILIES[name], (AutoAugment, RandAugment)) or name == "auxiliary padded"


def test_counted_numbers_are_equal_to_the_last_bit():
    image = torch.arange(50_000)
    for seed, epoch, view in [(0, 0, 0), (2**40 + 3, 199, 2), (-1, 7, 1)]:
        here, there = keys(seed, epoch, image, view), keys(seed, epoch, image.cuda(), view)
        assert there.is_cuda
        assert torch.equal(here, there.cpu())
        assert torch.equal(uniforms(here, 64), uniforms(there, 64).cpu())


@pytest.mark.parametrize("n", [0, 1, 1000, 73_257])
def test_permutations_are_equal(n):
    order = permutation(3, 8, n, "cuda")
    assert order.is_cuda
    assert torch.equal(permutation(3, 8, n), order.cpu())


@pytest.mark.parametrize("shape", [(32, 32), (64, 48), (6, 100)])
def test_draws_are_equal(way, shape):
    key = keys(1, 2, torch.arange(20_000))
    here = BasicAugment().draws(key, *shape)
    if way == "torch":
        there = BasicAugment().draws(key.cuda(), *shape)
        assert torch.equal(here.box, there.box.cpu())
        assert torch.equal(here.order, there.order.cpu())
        return
    there = BasicAugment().kernel_draws(key.cuda(), *shape).cpu()
    chosen = torch.stack([here.flip, here.jittered, here.gray, here.blurred], dim=1)
    assert torch.equal(there[:, :8], torch.cat([here.box, chosen], dim=1))
    assert torch.equal(there[:, 8:12], here.strength)
    assert torch.equal(there[:, 13], here.sigma)


@pytest.mark.parametrize("name", OPS)
def test_operation_gives_the_cpus_pixels(photographs, name):
    for magnitude in MAGNITUDES.get(name, [0.0]):
        op = torch.full((1000,), OPS.index(name))
        each = torch.full((1000,), magnitude, dtype=torch.float64)
        here = apply_op(name, photographs, magnitude)
        for there in (
            apply_op(name, photographs.cuda(), magnitude),
            apply_each(op.cuda(), photographs.cuda(), each.cuda()),
        ):
            assert there.is_cuda
            if name in MATRICES:
                assert share_equal(here, there) >= 0.999, magnitude
            else:
                assert torch.equal(here, there.cpu()), magnitude


@pytest.mark.parametrize("shape", [(32, 32), (1, 1), (2, 5), (70, 41)])
def test_mixed_operations_give_the_cpus_pixels(photographs, shape):
    count = 300
    op = torch.arange(count) % len(OPS)
    choices = [MAGNITUDES.get(OPS[number], [0.0]) for number in op.tolist()]
    magnitude = torch.tensor([c[i // len(OPS) % len(c)] for i, c in enumerate(choices)], dtype=torch.float64)
    images = photographs[:count].repeat(1, 1, 3, 3)[..., : shape[0], : shape[1]]
    here = apply_each(op, images, magnitude)
    there = apply_each(op.cuda(), images.cuda(), magnitude.cuda()).cpu()
    moved = torch.tensor([OPS[number] in MATRICES for number in op.tolist()])
    assert torch.equal(here[~moved], there[~moved])
    assert share_equal(here[moved], there[moved]) >= 0.999


@pytest.mark.parametrize("name", FAMILIES)
def test_bytes_have_the_cpus_views(photographs, way, name):
    key = keys(0, 4, torch.arange(1000), view=1)
    here, there = FAMILIES[name](photographs, key=key), FAMILIES[name](photographs.cuda(), key=key.cuda())
    assert there.is_cuda
    assert there.dtype == torch.uint8
    if way == "kernels" and exact(name):
        assert torch.equal(here, there.cpu())
    elif exact(name):
        assert share_equal(here, there) >= 0.999
    else:
        assert share_within_a_level(here, there) >= least(name)
        assert share_equal(here, there) >= least(name) - 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["basic", "autoaugment", "auxiliary"])
def test_floats_have_the_cpus_views(photographs, name, dtype):
    key = keys(0, 4, torch.arange(300), view=1)
    images = (photographs[:300] // 64 * 64).double().div(256).to(dtype)  # few bits: the same image in every dtype
    here, there = FAMILIES[name](images, key=key), FAMILIES[name](images.cuda(), key=key.cuda())
    assert there.is_cuda
    assert there.dtype == dtype
    near = ((here - there.cpu()).abs() <= 1 / 255 + 1e-6).all(dim=1).double().mean()
    assert near >= least(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_alone_draws_the_cpus_views(photographs, name):
    images = photographs[:200]
    assert share_within_a_level(FAMILIES[name](images, seed=3), FAMILIES[name](images.cuda(), seed=3)) >= least(name)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("basic", (20, 20)),
        ("basic", (64, 48)),
        ("basic", (224, 224)),
        ("basic 48", (224, 224)),
        ("autoaugment", (64, 48)),
        ("auxiliary", (224, 224)),
        ("auxiliary", (3, 2)),
        ("auxiliary padded", (20, 33)),
    ],
)
def test_other_sizes_have_the_cpus_views(photographs, name, shape):
    count = 40 if min(shape) > 50 else 400
    images = photographs[:count].repeat(1, 1, 7, 7)[..., : shape[0], : shape[1]]
    assert share_within_a_level(FAMILIES[name](images), FAMILIES[name](images.cuda())) >= least(name)


@pytest.mark.parametrize("name", ["basic", "autoaugment", "randaugment", "auxiliary", "auxiliary padded"])
def test_a_view_depends_on_its_key_and_not_on_the_batch(photographs, way, name):
    key, images = keys(0, 4, torch.arange(256)).cuda(), photographs[:256].cuda()
    together = FAMILIES[name](images, key=key)
    in_parts = torch.cat([FAMILIES[name](images[i : i + 50], key=key[i : i + 50]) for i in range(0, 256, 50)])
    if way == "kernels":
        assert torch.equal(together, in_parts)
    else:
        assert share_within_a_level(together, in_parts) >= least(name)


def test_a_batch_beyond_32_bits_of_pixels(photographs, way):
    if way == "torch" or torch.cuda.mem_get_info()[0] < 12e9:
        pytest.skip("for kernels, on a GPU with 12 GB")
    few = photographs[:50].cuda().repeat(1, 1, 4, 4)  # [50, 3, 128, 128]
    many = few.repeat(900, 1, 1, 1)  # 2.2 billion bytes
    key = keys(0, 0, torch.arange(50)).cuda().repeat(900)
    for family in (AutoAugment(), BasicAugment(size=16, blur=0)):
        assert torch.equal(family(many, key=key)[-50:], family(few, key=key[:50]))
