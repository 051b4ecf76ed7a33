"""Contrastive losses of large batches: exact, with memory linear in n, on one process or many.

`aag.losses` is the reference. There, an image's negatives are a row of similarities [n, n]. Here each row's log Σ e^s
is summed block by block, and backward computes the blocks again. Only embeddings [n, d] and log-sums [n] are kept. For
row i of view a, with log-sums l and g = ∂L/∂l:

    ∂L/∂a_i = Σ_b Σ_j (g_i e^(s_ij − l_i) + g_j e^(s_ij − l_j)) b_j

The second part is a_i's role as a negative of image j. If several processes share a batch, each holds its own rows.
The rows of the others arrive one after the other around a ring, in backward with their g and l. So each process
computes the whole gradient of its own rows, and no gradient is sent.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from aag.kernels import in_dry_run
from aag.losses import check_embeddings, unit_rows

DENSE_BYTES = 2**30  # similarities that need more memory are computed in blocks
DENSE_MATRICES = 18  # [n, n], at the peak of Algorithm 1 with three views: `python tools/measure_loss_memory.py`

ViewPair = tuple[int, int]  # similarities [n, n]: the view of their rows, the view of their columns
Denominators = tuple[tuple[ViewPair, ...], ...]  # for each −log(e^s⁺ / Σ e^s⁻): whose similarities are in its sum

X, Y = 0, 1  # the basic views; auxiliary views follow them


class PositivePair(NamedTuple):
    """A term of the loss: weight · Σ_denominators −log(e^s⁺ / Σ e^s⁻), its mean over all images."""

    views: ViewPair  # s⁺; (X, Y): row i of x with row i of y
    denominators: Denominators  # s⁻; ((X, X), (X, Y)): row i of x with rows j ≠ i of x and of y
    weight: float = 1.0


def gnt_xent_pairs(auxiliary_views: int = 1, weight: float = 1.0) -> tuple[PositivePair, ...]:
    """Return the terms L_xy, L_zx, L_zy, … of Algorithm 1; `weight` is that of the terms with an auxiliary view z."""
    core = PositivePair((X, Y), (((X, Y), (Y, X), (X, X), (Y, Y)),))  # one log over 4(n − 1) negatives
    auxiliary = (
        PositivePair((z, basic), (((z, basic),), ((basic, z),)), weight)
        for z in range(2, 2 + auxiliary_views)
        for basic in (X, Y)
    )
    return (core, *auxiliary)


SIMCLR_PAIRS = (PositivePair((X, Y), (((X, X), (X, Y)), ((Y, Y), (Y, X))), weight=0.5),)  # 2n anchors


class Contrast(NamedTuple):
    """The loss and means over all images. Only the loss has a gradient."""

    loss: Tensor  # scalar, as are the others
    terms: tuple[Tensor, ...]  # the loss of each positive pair, without its weight
    positive_gradient: Tensor  # ∂L/∂s⁺ of the first pair, without its weight; −1 per denominator without the positive
    positive_similarity: Tensor  # mean cosine of the first pair's views of the same image
    negative_similarity: Tensor  # mean cosine of the first pair's views of different images
    images: int  # in the global batch


def is_large(images: int, auxiliary_views: int = 1) -> bool:
    """Return whether the similarities [n, n] of this many images would take more than about 1 GiB."""
    return 4 * DENSE_MATRICES * max(1, auxiliary_views) * images**2 > DENSE_BYTES


def contrast(
    views: Sequence[Tensor],
    pairs: Sequence[PositivePair],
    *,
    temperature: float = 0.1,
    keep_positive: bool = False,
    sigma: float | None = None,
    one_way: bool = False,
    chunk: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Contrast:
    """Contrast views x, y and any auxiliary ones, each [n, d], in blocks of chunk × chunk similarities.

    `keep_positive` adds the positive to every denominator. `sigma` weighs positives as `aag.losses.dclw` does.
    `one_way`: similarities with an auxiliary view have a gradient on that view only.

    With `group`, the tensors are this process's rows; all processes must pass the same number. Each gets the loss of
    the global batch. If all call its backward with the same gradient, each gets ∂(global loss)/∂(own rows), without a
    factor of the number of processes.
    """
    if group is None or len(views[0]) > 1:  # with several processes, one row each is enough
        check_embeddings(views, temperature)
    n = len(views[0]) * (1 if group is None else dist.get_world_size(group))
    chunk = chunk or (1024 if views[0].device.type == "cpu" else 4096)
    units = [unit_rows(v) for v in views]
    denominators = tuple(each for pair in pairs for each in pair.denominators)
    log_sums = iter(_LogSums.apply(torch.stack(units) * temperature**-0.5, denominators, one_way, chunk, group))

    sums = []  # each pair's loss, summed over this process's images
    for number, pair in enumerate(pairs):
        a, b = pair.views
        detach_b = one_way and a > Y >= b
        cosine = (units[a] * (units[b].detach() if detach_b else units[b])).sum(dim=1)
        positive = cosine / temperature
        weighted = positive if sigma is None else positive * _distance_weights(cosine.detach(), sigma, n, group)
        loss = positive_gradient = torch.zeros_like(positive)
        for _ in pair.denominators:
            log_negatives = next(log_sums)
            log_all = torch.logaddexp(log_negatives, positive) if keep_positive else log_negatives
            loss = loss + log_all - weighted
            positive_gradient = positive_gradient - (log_negatives - log_all).exp()  # the negatives' share
        sums.append(loss.sum())
        if number == 0:
            # Sums that give what is logged: the mean gradient, and the mean cosines of positives and negatives.
            logged = [positive_gradient.sum()[None], cosine.sum()[None], units[a].sum(dim=0), units[b].sum(dim=0)]
    totals = _SumOverProcesses.apply(torch.cat([torch.stack(sums), *(v.detach() for v in logged)]), group)
    means, *rest = totals.split([len(pairs), *map(len, logged)])
    positive_gradient, positive, x, y = (v.detach() for v in rest)
    negative = ((x * y).sum() - positive[0]) / (n * (n - 1))
    means = means / n
    loss = torch.stack([pair.weight * mean for pair, mean in zip(pairs, means, strict=True)]).sum()
    return Contrast(loss, means.detach().unbind(), positive_gradient[0] / n, positive[0] / n, negative, n)


def _distance_weights(cosine: Tensor, sigma: float, n: int, group: dist.ProcessGroup | None) -> Tensor:
    """Return 2 − n · softmax(cosine / σ) over all processes' images. Subtracting 1, the largest cosine, is stable."""
    concentration = ((cosine - 1) / sigma).exp()
    return 2 - n * concentration / _SumOverProcesses.apply(concentration.sum(), group)


class _SumOverProcesses(torch.autograd.Function):
    """The sum over a group. Its gradient passes unchanged: each process differentiates its own addend."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        total = value.clone()
        if group is not None and not in_dry_run():
            dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _LogSums(torch.autograd.Function):
    """log Σ_(a, b) Σ_{j≠i} e^(a_i · b_j) for each denominator and each own row i: [V, n, d] → [denominators, n]."""

    @staticmethod
    def forward(
        ctx: Any, own: Tensor, denominators: Denominators, one_way: bool, chunk: int, group: dist.ProcessGroup | None
    ) -> Tensor:
        # In float64: in float32, the rounding errors of many blocks would add up.
        sums = own.new_full((len(denominators), own.shape[1]), -torch.inf, dtype=torch.float64)
        for step, received in enumerate(_ring_tensors(own, group)):
            for rows, columns in _blocks(own.shape[1], chunk):
                for a, b in sorted({pair for each in denominators for pair in each}):
                    s = _similarities(own[a, rows], received[b, columns], step == 0 and rows == columns)
                    log_sum = s.logsumexp(dim=1).double()
                    for t in _denominators_with(denominators, a, b):
                        sums[t, rows] = torch.logaddexp(sums[t, rows], log_sum)
        result = sums.to(own.dtype)
        ctx.save_for_backward(own, result)
        ctx.settings = denominators, one_way, chunk, group
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        own, sums = ctx.saved_tensors
        denominators, one_way, chunk, group = ctx.settings
        result = torch.zeros_like(own)
        pairs = sorted({p for each in denominators for pair in each for p in (pair, pair[::-1])})
        if one_way:
            pairs = [(a, b) for a, b in pairs if not a <= Y < b]
        packed = torch.cat([v.flatten() for v in (own, sums, gradient)])
        for step, message in enumerate(_ring_tensors(packed, group)):
            parts = message.split([own.numel(), sums.numel(), sums.numel()])
            received, received_sums, received_gradient = parts[0].view_as(own), *(v.view_as(sums) for v in parts[1:])
            for rows, columns in _blocks(own.shape[1], chunk):
                for a, b in pairs:
                    s = _similarities(own[a, rows], received[b, columns], step == 0 and rows == columns)
                    as_anchor = [
                        (sums[t, rows, None], gradient[t, rows, None]) for t in _denominators_with(denominators, a, b)
                    ]
                    as_negative = [
                        (received_sums[t, columns], received_gradient[t, columns])
                        for t in _denominators_with(denominators, b, a)
                    ]
                    terms = ((s - log_sum).exp_().mul_(g) for log_sum, g in as_anchor + as_negative)
                    s_gradient = reduce(Tensor.add_, terms)
                    result[a, rows].addmm_(s_gradient, received[b, columns])
        return result, None, None, None, None


def _denominators_with(denominators: Denominators, a: int, b: int) -> list[int]:
    """Return the indices of the denominators that sum over rows of view a and columns of view b."""
    return [t for t, pairs in enumerate(denominators) if (a, b) in pairs]


def _blocks(n: int, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Return the (rows, columns) of all blocks of an [n, n] matrix."""
    parts = [slice(start, min(start + chunk, n)) for start in range(0, n, chunk)]
    return ((rows, columns) for rows in parts for columns in parts)


def _similarities(rows: Tensor, columns: Tensor, same_images: bool) -> Tensor:
    s = rows.new_empty(len(rows), len(columns))
    torch.mm(rows, columns.T, out=s)  # with out=, autocast does not change the product
    if same_images:
        s.fill_diagonal_(-torch.inf)  # an image is not a negative of itself
    return s


def _ring_tensors(own: Tensor, group: dist.ProcessGroup | None) -> Iterator[Tensor]:
    """Yield this process's tensor, then the others' in ring order; the next one is received while one is in use."""
    if group is None or in_dry_run():
        yield own
        return
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    previous_rank, next_rank = (dist.get_global_rank(group, (rank + step) % world) for step in (-1, 1))
    by_gloo = f"{own.device.type}:gloo" in dist.get_backend_config(group)
    current = (own.cpu() if by_gloo else own).contiguous()  # gloo sends from host memory only
    for step in range(world):
        last = step == world - 1
        if not last:
            incoming = torch.empty_like(current)
            send = dist.P2POp(dist.isend, current, next_rank, group)
            receive = dist.P2POp(dist.irecv, incoming, previous_rank, group)
            requests = dist.batch_isend_irecv([send, receive])
        yield current.to(own.device)
        if not last:
            for request in requests:
                request.wait()
            current = incoming
