"""Steps of SGD and LARS, which also update a low-precision copy of the weights."""

import triton
import triton.language as tl

MAX_PARTS = 128  # programs that add up squares, at most; each program of a step reads all their sums


@triton.jit
def sgd_update(w, gradient, v, lr, momentum, decay, RULE: tl.constexpr):
    """Return weights and velocities after a step."""
    gradient += decay * w
    if RULE == "lars":  # its velocity includes the learning rate
        v = lr * gradient + momentum * v
        change = v
    else:
        v = gradient + momentum * v
        change = lr * ((gradient + momentum * v) if RULE == "nesterov" else v)
    return w - change, v


@triton.jit
def squares(weight, grad, partial, decay, size, BLOCK: tl.constexpr):
    """partial [programs, 2] ← sums of the squares of weights and of gradients with weight decay."""
    program = tl.program_id(0)
    weight_squares = tl.zeros((BLOCK,), tl.float32)
    grad_squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(program * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < size
        w = tl.load(weight + at, mask=inside, other=0.0)
        gradient = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) + decay * w
        weight_squares += w * w
        grad_squares += gradient * gradient
    tl.store(partial + 2 * program, tl.sum(weight_squares, axis=0))
    tl.store(partial + 2 * program + 1, tl.sum(grad_squares, axis=0))


@triton.jit(do_not_specialize=["parts"])
def step(
    weight, copy, velocity, grad, partial, lr, momentum, decay, trust, size, parts,
    RULE: tl.constexpr, TRUST: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr, MAX_PARTS: tl.constexpr,
):  # fmt: skip
    """Update weights. TRUST: the rate is lr · trust · |weights| / |gradients|, by `squares`; lr where one norm is 0."""
    rate = tl.load(lr)
    if TRUST:
        part = tl.arange(0, MAX_PARTS)
        weight_squares = tl.sum(tl.load(partial + 2 * part, mask=part < parts, other=0.0), axis=0)
        grad_squares = tl.sum(tl.load(partial + 2 * part + 1, mask=part < parts, other=0.0), axis=0)
        both_positive = (weight_squares > 0) & (grad_squares > 0)
        rate *= tl.where(
            both_positive, trust * tl.sqrt(weight_squares) / tl.sqrt(tl.where(both_positive, grad_squares, 1.0)), 1.0
        )
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    w = tl.load(weight + at, mask=inside, other=0.0)
    gradient = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(velocity + at, mask=inside, other=0.0)
    w, v = sgd_update(w, gradient, v, rate, momentum, decay, RULE)
    tl.store(velocity + at, v, mask=inside)
    tl.store(weight + at, w, mask=inside)
    if COPY:
        tl.store(copy + at, w.to(copy.dtype.element_ty), mask=inside)
