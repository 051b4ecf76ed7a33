"""SGD with momentum and weight decay as in `aag.optimizers`, which also keeps a low-precision copy of the weights."""

import triton
import triton.language as tl


@triton.jit
def sgd(weight, copy, velocity, grad, lr, momentum, decay, size, COPY: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(weight + at, mask=inside, other=0.0)
    step = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) + decay * value
    step += momentum * tl.load(velocity + at, mask=inside, other=0.0)
    value -= tl.load(lr) * step
    tl.store(velocity + at, step, mask=inside)
    tl.store(weight + at, value, mask=inside)
    if COPY:
        tl.store(copy + at, value.to(copy.dtype.element_ty), mask=inside)
