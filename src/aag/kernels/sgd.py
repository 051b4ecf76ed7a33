"""SGD with momentum and weight decay as in `aag.optimizers`, which also keeps a low-precision copy of the weights."""

import triton
import triton.language as tl


@triton.jit
def stepped(value, slope, velocity, lr, momentum, decay, NESTEROV: tl.constexpr):
    """Weights and velocities after a step."""
    slope += decay * value
    velocity = slope + momentum * velocity
    step = velocity
    if NESTEROV:
        step = slope + momentum * velocity
    return value - lr * step, velocity


@triton.jit
def sgd(
    weight, copy, velocity, grad, lr, momentum, decay, size,
    NESTEROV: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(weight + at, mask=inside, other=0.0)
    slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    speed = tl.load(velocity + at, mask=inside, other=0.0)
    value, speed = stepped(value, slope, speed, tl.load(lr), momentum, decay, NESTEROV)
    tl.store(velocity + at, speed, mask=inside)
    tl.store(weight + at, value, mask=inside)
    if COPY:
        tl.store(copy + at, value.to(copy.dtype.element_ty), mask=inside)
