"""Algorithm 1's loss and its gradient in five launches, because launches dominate the time at small batches.

`aag.losses` is the reference. All cosines are one product S = E Eᵀ of the unit rows E of all views: x, y and any number
of auxiliary views z. The terms of image i need only rows x_i, y_i and z_i of S, so one program per image computes its
loss and G = ∂L/∂S on these rows. Then ∂L/∂E = (G + Gᵀ) E. With `one_way`, the rows of basic views leave out the columns
of auxiliary ones.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.kernels import launch

MAX_IMAGES, MAX_DIMENSIONS = 4096, 1024  # a program holds a whole row of similarities, or a whole embedding
MAX_ROWS = 3 * MAX_IMAGES  # of S; with this many, S and G take 1.2 GB together


@triton.jit
def scaled_unit_rows(v, e, length, width, scale, BLOCK: tl.constexpr):
    """e ← v / |v| · scale and length ← |v|, one row per program, in float32.

    As in `aag.vectors.unit_rows`, a row is first divided by a power of two near its largest entry.
    """
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(v + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(value), axis=0)
    power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    power = tl.where(power > 0, power, 1.0)
    value = value / power
    norm = tl.maximum(tl.sqrt(tl.sum(value * value, axis=0)), 1e-12)
    tl.store(length + row, norm * power)
    tl.store(e + row * width + at, value / norm * scale, mask=at < width)


@triton.jit
def embedding_gradient(
    g, e, length, grad, grad_v, size, width, scale, basic,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ONE_WAY: tl.constexpr,
):  # fmt: skip
    """grad_v [size, width] ← ∂L/∂v from g = ∂L/∂S: ∂e = (g + gᵀ) e, then its part orthogonal to the row.

    basic: the number of rows of basic views; ONE_WAY: they get no gradient from auxiliary views.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    row_mask = (row < size)[:, None] & (at < width)[None, :]
    de = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, size, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        pair_mask = (row < size)[:, None] & (column < size)[None, :]
        if ONE_WAY:
            pair_mask = pair_mask & ((row >= basic)[:, None] | (column < basic)[None, :])
        gradient = tl.load(g + row[:, None] * size + column[None, :], mask=pair_mask, other=0.0)
        gradient += tl.load(g + column[None, :] * size + row[:, None], mask=pair_mask, other=0.0)
        column_mask = (column < size)[:, None] & (at < width)[None, :]
        others = tl.load(e + column[:, None] * width + at[None, :], mask=column_mask, other=0.0)
        de = tl.dot(gradient, others, de, input_precision="tf32x3")
    unit = tl.load(e + row[:, None] * width + at[None, :], mask=row_mask, other=0.0) / scale
    orthogonal = de - unit * tl.sum(unit * de, axis=1)[:, None]
    factor = tl.load(grad) * scale / tl.load(length + row, mask=row < size, other=1.0)
    result = (orthogonal * factor[:, None]).to(grad_v.dtype.element_ty)
    tl.store(grad_v + row[:, None] * width + at[None, :], result, mask=row_mask)


@triton.jit
def _log_sum(row, negative):
    """Return log Σ e^row over the negatives."""
    kept = tl.where(negative, row, -float("inf"))
    top = tl.max(kept, axis=0)
    return top + tl.log(tl.sum(tl.exp(kept - top), axis=0))


@triton.jit
def _log_add(a, b):
    """Return log(e^a + e^b)."""
    top = tl.maximum(a, b)
    return top + tl.log(tl.exp(a - top) + tl.exp(b - top))


@triton.jit
def _log_gradient(row, negative, log_sum, n):
    """Return the gradient of log Σ e^row, whose value is `log_sum`, on the negatives of a row, over n images."""
    return tl.where(negative, tl.exp(row - log_sum), 0.0) / n


@triton.jit
def image_terms(s, g, terms, n, weight, VIEWS: tl.constexpr, KEEP_POSITIVE: tl.constexpr, BLOCK: tl.constexpr):
    """terms [n, 6] ← L_xy, L_zx, L_zy, ∂L_xy/∂s⁺, s⁺ and Σ s⁻ of x with y, for each image; g ← ∂L/∂s.

    s, g: float32 [VIEWS · n, VIEWS · n]. L_zx and L_zy are sums over the auxiliary views, without their `weight`.
    KEEP_POSITIVE: NT-Xent, with the positive in every denominator.
    """
    i = tl.program_id(0)
    size = VIEWS * n
    j = tl.arange(0, BLOCK)
    inside = j < n
    negative = inside & (j != i)
    own = j == i
    x = s + i * size + j
    y = s + (n + i) * size + j
    gx = g + i * size + j
    gy = g + (n + i) * size + j
    zero = tl.zeros((BLOCK,), tl.float32)

    xx = tl.load(x, mask=inside, other=0.0)
    xy = tl.load(x + n, mask=inside, other=0.0)
    yx = tl.load(y, mask=inside, other=0.0)
    yy = tl.load(y + n, mask=inside, other=0.0)
    positive = tl.sum(tl.where(own, xy, 0.0), axis=0)
    core = _log_add(
        _log_add(_log_sum(xx, negative), _log_sum(xy, negative)),
        _log_add(_log_sum(yx, negative), _log_sum(yy, negative)),
    )
    positive_gradient = -1.0
    if KEEP_POSITIVE:
        negatives = core
        core = _log_add(negatives, positive)
        # The negatives' part of the denominator; 1 − the positive's part would lose digits.
        positive_gradient = -tl.exp(negatives - core)
    tl.store(gx, _log_gradient(xx, negative, core, n), mask=inside)
    tl.store(gx + n, _log_gradient(xy, negative, core, n) + tl.where(own, positive_gradient / n, 0.0), mask=inside)
    tl.store(gy, _log_gradient(yx, negative, core, n), mask=inside)
    tl.store(gy + n, _log_gradient(yy, negative, core, n), mask=inside)
    tl.store(terms + i * 6, core - positive)
    tl.store(terms + i * 6 + 3, positive_gradient)
    tl.store(terms + i * 6 + 4, positive)
    tl.store(terms + i * 6 + 5, tl.sum(tl.where(negative, xy, 0.0), axis=0))

    for view in tl.static_range(2):  # terms of zx, then of zy
        total = 0.0
        for auxiliary in tl.static_range(2, VIEWS):
            from_z_at = (auxiliary * n + i) * size + view * n + j
            from_basic_at = (view * n + i) * size + auxiliary * n + j
            from_z = tl.load(s + from_z_at, mask=inside, other=0.0)
            from_basic = tl.load(s + from_basic_at, mask=inside, other=0.0)
            positive = tl.sum(tl.where(own, from_z, 0.0), axis=0)
            log_from_z = _log_sum(from_z, negative)
            log_from_basic = _log_sum(from_basic, negative)
            positive_gradient = -2.0
            if KEEP_POSITIVE:
                negatives_of_z, negatives_of_basic = log_from_z, log_from_basic
                log_from_z = _log_add(negatives_of_z, positive)
                log_from_basic = _log_add(negatives_of_basic, positive)
                positive_gradient = -tl.exp(negatives_of_z - log_from_z) - tl.exp(negatives_of_basic - log_from_basic)
            from_z_gradient = _log_gradient(from_z, negative, log_from_z, n) + tl.where(own, positive_gradient / n, 0.0)
            tl.store(g + from_z_at, weight * from_z_gradient, mask=inside)
            tl.store(g + from_basic_at, weight * _log_gradient(from_basic, negative, log_from_basic, n), mask=inside)
            total += log_from_z + log_from_basic - 2 * positive
        tl.store(terms + i * 6 + 1 + view, total)
    for auxiliary in range(2, VIEWS):
        for other in range(2, VIEWS):  # no term uses z–z
            tl.store(g + (auxiliary * n + i) * size + other * n + j, zero, mask=inside)


@triton.jit
def summarise(terms, out, n, temperature, weight, BLOCK: tl.constexpr):
    """out [8] ← the loss, then means: positive and negative cosine, their gradients, L_xy, L_zx, L_zy."""
    row = tl.arange(0, BLOCK)
    inside = row < n
    xy = tl.sum(tl.load(terms + row * 6, mask=inside, other=0.0), axis=0) / n
    zx = tl.sum(tl.load(terms + row * 6 + 1, mask=inside, other=0.0), axis=0) / n
    zy = tl.sum(tl.load(terms + row * 6 + 2, mask=inside, other=0.0), axis=0) / n
    positive_gradient = tl.sum(tl.load(terms + row * 6 + 3, mask=inside, other=0.0), axis=0) / n
    positive = tl.sum(tl.load(terms + row * 6 + 4, mask=inside, other=0.0), axis=0) / n
    negative = tl.sum(tl.load(terms + row * 6 + 5, mask=inside, other=0.0), axis=0) / n
    tl.store(out, xy + weight * (zx + zy))
    tl.store(out + 1, positive * temperature)
    tl.store(out + 2, negative * temperature / (n - 1))
    tl.store(out + 3, positive_gradient)
    tl.store(out + 4, -positive_gradient / (4 * (n - 1)))
    tl.store(out + 5, xy)
    tl.store(out + 6, zx)
    tl.store(out + 7, zy)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v: Tensor, views: int, temperature: float, keep_positive: bool, weight: float, one_way: bool):
        size, width = v.shape
        n = size // views
        block, scale = triton.next_power_of_2(n), temperature**-0.5
        block_width = triton.next_power_of_2(width)
        v = v.contiguous()
        e = torch.empty(size, width, device=v.device)
        length = torch.empty(size, device=v.device)
        launch(scaled_unit_rows, (size,), v, e, length, width, scale, BLOCK=block_width, num_warps=1)
        s = e.new_empty(size, size)
        torch.mm(e, e.T, out=s)  # with out=, autocast does not change the product
        g = torch.empty_like(s)
        terms = torch.empty(n, 6, device=v.device)
        launch(
            image_terms, (n,), s, g, terms, n, weight,
            VIEWS=views, KEEP_POSITIVE=keep_positive, BLOCK=block, num_warps=4,
        )  # fmt: skip
        out = torch.empty(8, device=v.device)
        launch(summarise, (1,), terms, out, n, temperature, weight, BLOCK=block, num_warps=4)
        ctx.save_for_backward(g, e, length)
        ctx.settings = (v.dtype, scale, max(16, block_width), 2 * n, one_way)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(out)
        return out[0].clone(), out

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor):
        g, e, length = ctx.saved_tensors
        dtype, scale, block_width, basic, one_way = ctx.settings
        grad_v = torch.empty_like(e, dtype=dtype)
        size, width = e.shape
        launch(
            embedding_gradient, (triton.cdiv(size, 16),), g, e, length, grad, grad_v, size, width, scale, basic,
            ROWS=16, COLUMNS=min(64, max(16, 8192 // block_width)), BLOCK=block_width, ONE_WAY=one_way, num_warps=4,
            num_stages=3 if block_width <= 128 else 1,
        )  # fmt: skip
        return grad_v, None, None, None, None, None


def supports(embeddings: Tensor) -> bool:
    """Return whether the kernels can contrast embeddings [views, n, d]: neither too many, too wide nor too precise."""
    if embeddings.ndim != 3 or embeddings.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    views, n, width = embeddings.shape
    return 2 <= n <= MAX_IMAGES and 2 <= views <= MAX_ROWS // n and width <= MAX_DIMENSIONS


def contrast(
    embeddings: Tensor,
    views: int,
    *,
    temperature: float,
    keep_positive: bool,
    auxiliary_weight: float = 1.0,
    one_way: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the loss of embeddings [views · n, d], view after view, and its eight statistics (see `summarise`)."""
    return _Loss.apply(embeddings, views, temperature, keep_positive, auxiliary_weight, one_way)
