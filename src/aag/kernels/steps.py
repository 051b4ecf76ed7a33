"""Steps of SGD and LARS as in `aag.training.optimizers`, which also keep a low-precision copy of the weights."""

import triton
import triton.language as tl

SHARES = 128  # programs at most that add up squares: a step's programs read what all of them found


@triton.jit
def stepped(value, slope, velocity, lr, momentum, decay, RULE: tl.constexpr):
    """Weights and velocities after a step."""
    slope += decay * value
    if RULE == "lars":  # whose velocity has the rate in it
        velocity = lr * slope + momentum * velocity
        change = velocity
    else:
        velocity = slope + momentum * velocity
        change = lr * ((slope + momentum * velocity) if RULE == "nesterov" else velocity)
    return value - change, velocity


@triton.jit
def squares(weight, grad, shares, decay, size, BLOCK: tl.constexpr):
    """shares [programs, 2] ← sums of the squares of weights and of slopes."""
    program = tl.program_id(0)
    of_weight = tl.zeros((BLOCK,), tl.float32)
    of_slope = tl.zeros((BLOCK,), tl.float32)
    for start in range(program * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < size
        value = tl.load(weight + at, mask=inside, other=0.0)
        slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) + decay * value
        of_weight += value * value
        of_slope += slope * slope
    tl.store(shares + 2 * program, tl.sum(of_weight, axis=0))
    tl.store(shares + 2 * program + 1, tl.sum(of_slope, axis=0))


@triton.jit(do_not_specialize=["parts"])
def step(
    weight, copy, velocity, grad, shares, lr, momentum, decay, trust, size, parts,
    RULE: tl.constexpr, TRUST: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """TRUST: in proportion to |weights| / |slopes|, by the `parts` that `squares` left; as it is where one is 0."""
    rate = tl.load(lr)
    if TRUST:
        part = tl.arange(0, SHARES)
        of_weight = tl.sum(tl.load(shares + 2 * part, mask=part < parts, other=0.0), axis=0)
        of_slope = tl.sum(tl.load(shares + 2 * part + 1, mask=part < parts, other=0.0), axis=0)
        usual = (of_weight > 0) & (of_slope > 0)
        rate *= tl.where(usual, trust * tl.sqrt(of_weight) / tl.sqrt(tl.where(usual, of_slope, 1.0)), 1.0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(weight + at, mask=inside, other=0.0)
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    speed = tl.load(velocity + at, mask=inside, other=0.0)
    value, speed = stepped(value, slope, speed, rate, momentum, decay, RULE)
    tl.store(velocity + at, speed, mask=inside)
    tl.store(weight + at, value, mask=inside)
    if COPY:
        tl.store(copy + at, value.to(copy.dtype.element_ty), mask=inside)
