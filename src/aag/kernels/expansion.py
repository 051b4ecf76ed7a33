"""A 1×1 convolution to more channels and its batch norm, without storing what is between them.

z = u · weightᵀ has several times the channels of u: writing and reading it costs more than computing it twice. All that
batch norm needs to know about z follows from small products of the narrow u [M, N]:

    mean of z      weight · ū                              ū: mean of u over the M rows
    variance of z  diag(weight · cov · weightᵀ)            cov = uᵀu / M − ū ūᵀ, [N, N]

and in backward, with the masked ∂y as g, where ∂z = scale · g + z_factor · z + constant by channel:

    ∂weight        scale · gᵀu + z_factor · M · (weight · cov) − (scale · ḡ) ⊗ M ū
    ∂u             g · (scale weight) + u · (weightᵀ z_factor weight) + constant

Forward: `cross_products` of u with itself, `expand_covariance`, `expand_moments`, `expand`. Backward: `cross_products`
of g and u, `gradient_factors`, `gradient_products`, `expand_gradient`. `contract_gradient` is for the convolution that
reads y and contracts it again: its input gradient, added to that of the shortcut and masked, is the g of the layer
before.

Rows are all pixels of all images, channels last. Products of whole tensors are shared by a few programs, as in `norm`.

In bf16 this is more accurate than batch norm of a stored z, which is rounded. In float32 it is less accurate where the
mean of a channel of z is many times its standard deviation: the variance has a relative error of 1e-7 times that ratio
squared.
"""

import triton
import triton.language as tl

from aag.kernels.norm import subsample, update_norm_weights, update_running_statistics


@triton.jit
def cross_products(
    left, right, partial, rows, left_channels, right_channels,
    BLOCK_M: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """partial [programs, L · R + L] ← partial sums of leftᵀ · right, and of left's rows."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    left_channel = tl.program_id(1) * BLOCK_L + tl.arange(0, BLOCK_L)
    right_channel = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    row = tl.arange(0, BLOCK_M)
    product = tl.zeros((BLOCK_L, BLOCK_R), tl.float32)
    total = tl.zeros((BLOCK_L, 16), tl.float32)
    ones = tl.full((BLOCK_M, 16), 1.0, left.dtype.element_ty)  # the matrix units add up faster than a reduction would
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    tile_rows = tl.full((), BLOCK_M, tl.int64)  # rows · channels can exceed 2^31
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        line = tile * tile_rows + row
        inside = (line < rows)[:, None]
        x = tl.load(left + line[:, None] * left_channels + left_channel[None, :], mask=inside, other=0.0)
        y = tl.load(right + line[:, None] * right_channels + right_channel[None, :], mask=inside, other=0.0)
        product = tl.dot(tl.trans(x), y, product, input_precision=precision)
        total = tl.dot(tl.trans(x), ones, total, input_precision=precision)
    count = left_channels * right_channels
    own = partial + program * (count + left_channels)
    tl.store(own + left_channel[:, None] * right_channels + right_channel[None, :], product)
    if tl.program_id(2) == 0:
        tl.store(own + count + left_channel, tl.sum(total, axis=1) / 16)


@triton.jit
def expand_covariance(
    weight, products, sums, weight_cov, partial, rows, inputs, channels,
    BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """weight_cov [C, N] ← weight · cov, from uᵀu [N, N] and the sums [N] of u.

    partial [N / BLOCK_N, 2, C] add up to the mean and the variance of z.
    """
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    part = tl.program_id(1)
    column = tl.arange(0, BLOCK_N)
    right = part * BLOCK_N + column
    right_mean = tl.load(sums + right) / rows
    product = tl.zeros((BLOCK_C, BLOCK_N), tl.float32)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32x3"
    for start in range(0, inputs, BLOCK_N):
        left = start + column
        w = tl.load(weight + channel[:, None] * inputs + left[None, :]).to(tl.float32)
        cov = tl.load(products + left[:, None] * inputs + right[None, :]) / rows
        cov -= (tl.load(sums + left) / rows)[:, None] * right_mean[None, :]
        product = tl.dot(w, cov, product, input_precision=precision)
    at = channel[:, None] * inputs + right[None, :]
    tl.store(weight_cov + at, product)
    w = tl.load(weight + at).to(tl.float32)
    tl.store(partial + part * 2 * channels + channel, tl.sum(w * right_mean[None, :], axis=1))
    tl.store(partial + (part * 2 + 1) * channels + channel, tl.sum(w * product, axis=1))


@triton.jit
def expand_moments(
    partial, moments, norm_weight, norm_bias, running_mean, running_var, batches, rows, channels, parts, momentum, eps,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """moments [4, C] ← mean, rstd, scale and shift of z, as in `norm`. Also updates the running statistics."""
    block = tl.program_id(0)
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    mean = tl.zeros((BLOCK_C,), tl.float32)
    variance = tl.zeros((BLOCK_C,), tl.float32)
    for part in range(parts):
        mean += tl.load(partial + part * 2 * channels + channel)
        variance += tl.load(partial + (part * 2 + 1) * channels + channel)
    variance = tl.maximum(variance, 0.0)
    rstd = 1 / tl.sqrt(variance + eps)
    scale = tl.load(norm_weight + channel) * rstd
    tl.store(moments + channel, mean)
    tl.store(moments + channels + channel, rstd)
    tl.store(moments + 2 * channels + channel, scale)
    tl.store(moments + 3 * channels + channel, tl.load(norm_bias + channel) - mean * scale)
    update_running_statistics(block, mean, variance, running_mean, running_var, batches, rows, channel, momentum)


@triton.jit(do_not_specialize=["height", "width"])
def expand(
    u, weight, moments, shortcut, y, skip, rows, inputs, channels, height, width,
    RELU: tl.constexpr, SHORTCUT: tl.constexpr, STRIDE: tl.constexpr, PRECISE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y ← relu(scale · (u · weightᵀ) + shift + shortcut); skip ← y[::STRIDE, ::STRIDE], where STRIDE > 1."""
    blocks = channels // BLOCK_C
    tile = tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    line = row.to(tl.int64)
    inside = (row < rows)[:, None]
    at = line[:, None] * channels + channel[None, :]
    if SHORTCUT:
        added = tl.load(shortcut + at, mask=inside, other=0.0)  # on its way while the products are computed
    column = tl.arange(0, BLOCK_N)
    z = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for start in range(0, inputs, BLOCK_N):
        x = tl.load(u + line[:, None] * inputs + start + column[None, :], mask=inside, other=0.0)
        w = tl.load(weight + channel[None, :] * inputs + start + column[:, None])
        z = tl.dot(x, w, z, input_precision=precision)
    scale = tl.load(moments + 2 * channels + channel)
    value = z * scale[None, :] + tl.load(moments + 3 * channels + channel)[None, :]
    if SHORTCUT:
        value += added.to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    result = value.to(y.dtype.element_ty)
    tl.store(y + at, result, mask=inside)
    if STRIDE > 1:
        skip_row, in_skip = subsample(row, height, width, STRIDE)
        at = skip_row.to(tl.int64)[:, None] * channels + channel[None, :]
        tl.store(skip + at, result, mask=inside & in_skip[:, None])


@triton.jit
def gradient_factors(
    weight, products, sums, weight_cov, input_sums, moments, scaled, factors, grad_conv, grad_weight, grad_bias,
    norm_weight, norm_bias, velocity, bias_velocity, lr, rows, inputs, channels, momentum, decay,
    UPDATE: tl.constexpr, RULE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """scaled [C, N] ← scale · weight; factors [2, C] ← z_factor and ḡ; grad_conv [C, N] ← ∂weight.

    products: gᵀu [C, N]; sums: of g, [C]. The batch norm's weights are updated, or their gradients stored.
    """
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    column = tl.arange(0, BLOCK_N)
    mean = tl.load(moments + channel)
    rstd = tl.load(moments + channels + channel)
    scale = tl.load(moments + 2 * channels + channel)
    first = tl.load(sums + channel)
    second = -mean * first  # becomes the sum of g · (z − mean)
    for start in range(0, inputs, BLOCK_N):
        at = channel[:, None] * inputs + start + column[None, :]
        second += tl.sum(tl.load(weight + at).to(tl.float32) * tl.load(products + at), axis=1)
    norm_weight_gradient = second * rstd
    z_factor = -scale * rstd * norm_weight_gradient / rows
    grad_mean = first / rows
    tl.store(factors + channel, z_factor)
    tl.store(factors + channels + channel, grad_mean)
    for start in range(0, inputs, BLOCK_N):
        at = channel[:, None] * inputs + start + column[None, :]
        tl.store(scaled + at, (scale[:, None] * tl.load(weight + at).to(tl.float32)).to(scaled.dtype.element_ty))
        gradient = scale[:, None] * tl.load(products + at) + (z_factor * rows)[:, None] * tl.load(weight_cov + at)
        gradient -= (scale * grad_mean)[:, None] * tl.load(input_sums + start + column)[None, :]
        tl.store(grad_conv + at, gradient)
    update_norm_weights(
        norm_weight_gradient, first, grad_weight, grad_bias, norm_weight, norm_bias, velocity, bias_velocity, lr,
        channel, momentum, decay, UPDATE, RULE,
    )  # fmt: skip


@triton.jit
def gradient_products(
    weight, scaled, factors, input_sums, mixed, constants, rows, inputs, channels,
    BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """mixed [N, N] ← weightᵀ z_factor weight; constants [N / BLOCK_N, N] add up to −ḡ · scaled − ū · mixed.

    With these constants the rows of ∂u have a mean of zero, as they must, although `scaled` and `mixed` are rounded.
    """
    block = tl.program_id(0)
    left = block * BLOCK_N + tl.arange(0, BLOCK_N)
    right = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    product = tl.zeros((BLOCK_N, BLOCK_N), tl.float32)
    constant = tl.zeros((BLOCK_N,), tl.float32)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        w = tl.load(weight + channel[None, :] * inputs + left[:, None])
        w = (w.to(tl.float32) * tl.load(factors + channel)[None, :]).to(w.dtype)
        product = tl.dot(
            w, tl.load(weight + channel[:, None] * inputs + right[None, :]), product, input_precision=precision
        )
        if block == 0:
            grad_mean = tl.load(factors + channels + channel)
            scaled_weight = tl.load(scaled + channel[:, None] * inputs + right[None, :]).to(tl.float32)
            constant -= tl.sum(scaled_weight * grad_mean[:, None], axis=0)
    rounded = product.to(mixed.dtype.element_ty)
    tl.store(mixed + left[:, None] * inputs + right[None, :], rounded)
    constant -= tl.sum(rounded.to(tl.float32) * (tl.load(input_sums + left) / rows)[:, None], axis=0)
    tl.store(constants + block * inputs + right, constant)


@triton.jit
def expand_gradient(
    grad, u, scaled, mixed, constants, grad_u, rows, inputs, channels, parts,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """grad_u ← g · scaled + u · mixed + the sum of the constants [parts, N]."""
    blocks = inputs // BLOCK_N
    tile = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    line = tile.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = (line < rows)[:, None]
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for start in range(0, channels, BLOCK_K):
        g = tl.load(grad + line[:, None] * channels + start + k[None, :], mask=inside, other=0.0)
        w = tl.load(scaled + (start + k)[:, None] * inputs + column[None, :])
        total = tl.dot(g, w, total, input_precision=precision)
    for start in range(0, inputs, BLOCK_K):
        x = tl.load(u + line[:, None] * inputs + start + k[None, :], mask=inside, other=0.0)
        w = tl.load(mixed + (start + k)[:, None] * inputs + column[None, :])
        total = tl.dot(x, w, total, input_precision=precision)
    constant = tl.zeros((BLOCK_N,), tl.float32)
    for part in range(parts):
        constant += tl.load(constants + part * inputs + column)
    result = (total + constant[None, :]).to(grad_u.dtype.element_ty)
    tl.store(grad_u + line[:, None] * inputs + column[None, :], result, mask=inside)


@triton.jit(do_not_specialize=["height", "width"])
def contract_gradient(
    grad_z, weight, skip_grad, x, grad_x, rows, outputs, channels, height, width,
    STRIDE: tl.constexpr, PRECISE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """grad_x ← grad_z · weight [K, C] + skip_grad (of every STRIDE-th pixel), where x > 0; zero elsewhere."""
    blocks = channels // BLOCK_C
    tile = tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    line = row.to(tl.int64)
    inside = (row < rows)[:, None]
    at = line[:, None] * channels + channel[None, :]
    if STRIDE > 1:
        skip_row, in_skip = subsample(row, height, width, STRIDE)
        skip_at = skip_row.to(tl.int64)[:, None] * channels + channel[None, :]
        skipped = tl.load(skip_grad + skip_at, mask=inside & in_skip[:, None], other=0.0)
    else:
        skipped = tl.load(skip_grad + at, mask=inside, other=0.0)
    made = tl.load(x + at, mask=inside, other=0.0)  # both are on their way while the products are computed
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for start in range(0, outputs, BLOCK_K):
        g = tl.load(grad_z + line[:, None] * outputs + start + k[None, :], mask=inside, other=0.0)
        w = tl.load(weight + (start + k)[:, None] * channels + channel[None, :])
        total = tl.dot(g, w, total, input_precision=precision)
    result = tl.where(made > 0, total + skipped.to(tl.float32), 0.0)
    tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
