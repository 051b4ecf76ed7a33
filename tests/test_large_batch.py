"""Losses in blocks, on one process and on several, against `aag.losses`, which test_losses.py checks by loops."""

import multiprocessing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import ring_processes
from aag import AAGError, large_batch, losses
from aag.large_batch import SIMCLR_PAIRS, contrast, gnt_xent_pairs
from aag.methods.aag import AAG
from aag.methods.isif import ISIF
from aag.methods.simclr import SimCLR
from ring_processes import FORMS, GROUPS

TOLERANCE = {torch.float64: 1e-12, torch.float32: 6e-6}  # float32: seen up to 3.4e-6 at the lowest temperatures


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def reference(name, views, temperature):
    loss, *options = name.split()
    return getattr(losses, loss)(*views, temperature=temperature, **dict.fromkeys(options, True))


def assert_same(found, expected, inputs, tolerance):
    assert relative(found.detach(), expected.detach()) < tolerance
    for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        assert relative(ours, theirs) < tolerance


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 40), chunk=st.integers(1, 50), tau=st.floats(0.02, 2.0))
def test_losses_in_blocks_equal_the_reference(name, dtype, seed, n, chunk, tau):
    count, form = FORMS[name]
    generator = torch.Generator().manual_seed(seed)
    views = [torch.randn(n, 8, generator=generator, dtype=dtype, requires_grad=True) for _ in range(count)]
    expected = reference(name, views, tau)
    # Close to zero a loss is the difference of large numbers; its error is relative to them.
    scale = torch.tensor(10 / tau, dtype=dtype)
    found = contrast(views, temperature=tau, chunk=chunk, **form).loss
    assert_same(found + scale, expected + scale, views, TOLERANCE[dtype])


@pytest.mark.parametrize("tau", [0.001, 1000.0])
def test_extreme_temperatures_neither_overflow_nor_vanish(tau):
    views = [torch.randn(9, 4, requires_grad=True) for _ in range(3)]
    found = contrast(views, gnt_xent_pairs(), temperature=tau, chunk=2).loss
    assert_same(found, losses.gnt_xent(*views, temperature=tau), views, 2e-6)


@pytest.mark.parametrize(("count", "pairs"), [(3, gnt_xent_pairs()), (2, SIMCLR_PAIRS)])
def test_gradients_by_finite_differences(count, pairs):
    views = [torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(count)]
    for keep in (False, True):
        loss = lambda *v: contrast(v, pairs, temperature=0.5, keep_positive=keep, chunk=2).loss  # noqa: B023, E731
        assert torch.autograd.gradcheck(loss, views)


def test_half_precision_and_autocast_do_not_change_the_loss():
    views = [torch.randn(20, 8).bfloat16().requires_grad_() for _ in range(3)]
    found = contrast(views, gnt_xent_pairs(), chunk=8).loss
    assert (found.dtype, relative(found, losses.gnt_xent(*views)) < 2e-6) == (torch.float32, True)
    (gradient,) = torch.autograd.grad(found, views[:1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = contrast(views, gnt_xent_pairs(), chunk=8).loss
        assert torch.equal(again, found)
        assert torch.equal(torch.autograd.grad(again, views[:1])[0], gradient)


def test_bad_input_is_refused():
    with pytest.raises(AAGError, match="at least two"):
        contrast([torch.ones(1, 4)] * 2, SIMCLR_PAIRS)
    with pytest.raises(AAGError, match=r"\(3, 4\), \(2, 4\)"):
        contrast([torch.ones(3, 4), torch.ones(2, 4)], SIMCLR_PAIRS)
    with pytest.raises(AAGError, match="temperature"):
        contrast([torch.ones(3, 4)] * 2, SIMCLR_PAIRS, temperature=0)


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns, also in backward."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_no_tensor_uses_blocksr_than_the_embeddings_or_a_block():
    n, d, chunk = 96, 4, 24
    views = [torch.randn(n, d, requires_grad=True) for _ in range(3)]
    with LargestTensor() as largest:
        contrast(views, gnt_xent_pairs(), chunk=chunk).loss.backward()
    assert largest.numel <= 3 * n * d + 2 * 5 * n  # the embeddings, the five logs' sums and their gradients
    with LargestTensor() as dense:
        losses.gnt_xent(*views).backward()
    assert dense.numel >= n * n


# --- methods ----------------------------------------------------------------------------------------------------------

METHODS = [
    *(
        (AAG, {"loss": loss, "auxiliary": auxiliary})
        for loss in ("gnt-xent", "nt-xent")
        for auxiliary in ("basic", "none")
    ),
    (AAG, {"auxiliary_views": 3, "auxiliary_weight": 0.5, "one_way": True}),
    *((SimCLR, {"loss": loss}) for loss in SimCLR.loss_functions),
    (ISIF, {"loss": "dcl"}),
]


@pytest.mark.parametrize(("kind", "options"), METHODS, ids=str)
def test_a_method_gives_the_same_loss_and_log_when_the_batch_uses_blocks(kind, options, monkeypatch):
    method = kind(kind.settings_type(**options))
    e = torch.randn(len(method.augmentations()), 12, 8, dtype=torch.float64, requires_grad=True)
    index = torch.arange(12)
    expected = method.loss(e, index)
    monkeypatch.setattr(large_batch, "DENSE_BYTES", 1)
    in_blocks = method.large_batch_loss(e)
    monkeypatch.setattr(kind, "large_batch_loss", lambda self, e: in_blocks)
    found = method.loss(e, index)
    assert found is in_blocks
    assert_same(found.loss, expected.loss, [e], 1e-12)
    assert len(found.log) == len(method.log_names)
    for ours, theirs in zip(found.log, expected.log, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert not ours.requires_grad


def test_a_batch_uses_blocks_from_about_4000_images():
    assert not large_batch.is_large(3800)
    assert large_batch.is_large(4000)
    contrast_kernels = pytest.importorskip("aag.kernels.contrast", reason="needs Triton")
    for views in (2, 3, 4):  # what kernels refuse goes in blocks
        images = min(contrast_kernels.MAX_IMAGES, contrast_kernels.MAX_ROWS // views)
        assert contrast_kernels.supports(torch.empty(views, images, 8, device="meta"))
        assert not contrast_kernels.supports(torch.empty(views, images + 1, 8, device="meta"))
        assert large_batch.is_large(images + 1, views - 2)


def test_a_loss_of_the_user_s_own_is_never_replaced(monkeypatch):
    monkeypatch.setattr(large_batch, "DENSE_BYTES", 1)
    monkeypatch.setattr(SimCLR, "loss_functions", {**SimCLR.loss_functions, "dcl": lambda x, y, temperature: x.sum()})
    x, y = torch.randn(2, 5, 8)
    assert SimCLR(SimCLR.settings_type(loss="dcl")).loss([x, y], torch.arange(5)).loss == x.sum()


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What four processes found: by rank, then by (group, loss, dtype)."""
    folder = tmp_path_factory.mktemp("ring")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["aag.large_batch"])  # torch is imported once
    processes = [context.Process(target=ring_processes.run, args=(rank, str(folder))) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * 4
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(4)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("ranks", GROUPS, ids=str)
def test_a_ring_of_processes_equals_one_process(results, ranks, name, dtype):
    """The loss on every process, and the gradient of its rows without a factor of the number of processes."""
    count, form = FORMS[name]
    rows = ring_processes.batch(count, torch.float64).requires_grad_()
    one = contrast(rows.unbind(), temperature=0.2, **form)
    whole = reference(name, rows, 0.2)
    expected = torch.autograd.grad(3 * whole, rows)[0].chunk(len(ranks), dim=1)
    places = set()
    for rank in ranks:
        found, place, gradient = results[rank][str(ranks), name, str(dtype)]
        places.add(place)
        assert found.loss.item() == pytest.approx(whole.item(), rel=TOLERANCE[dtype])
        assert relative(gradient, expected[place]) < TOLERANCE[dtype]
        assert found.images == ring_processes.N
        for ours, theirs in zip((*found.terms, *found[2:5]), (*one.terms, *one[2:5]), strict=True):
            assert ours.item() == pytest.approx(theirs.item(), rel=TOLERANCE[dtype], abs=1e-6)
    assert places == set(range(len(ranks)))
