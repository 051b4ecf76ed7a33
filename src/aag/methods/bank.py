"""A memory bank: one embedding for each training image, and the softmax over all of them.

p_ij = exp(v_i · b_j / τ) / Σ_k exp(v_i · b_k / τ) is the probability that view i is of image j, where b_j is what the
bank remembers of image j. Gradients flow through v alone.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import log_softmax, normalize

from aag.rng import Stream, keys, uniforms

_CHUNK = 2**26  # similarities held at once: 256 MiB in float32


class Match(NamedTuple):
    """How the bank takes a batch of views."""

    log_share: Tensor  # [n]  log Σ_j p_ij over the positives j of view i
    entropy: Tensor  # [n]  −Σ_j p_ij log p_ij; zero where it was not asked for


class Bank(nn.Module):
    """b, float32 [N, d]. Rows have length 1 from their first update on, and about 1 before."""

    rows: Tensor

    def __init__(self, images: int, dim: int, momentum: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self.momentum = momentum
        bound = (dim / 3) ** -0.5  # of a uniform draw: the mean of |b|² is 1
        draws = uniforms(keys(seed, 0, torch.arange(images), Stream.BANK_INIT), dim)
        self.register_buffer("rows", (2 * draws - 1) * bound)

    @torch.no_grad()
    def update(self, index: Tensor, v: Tensor) -> None:
        """b_i ← m · b_i + (1 − m) · v_i at length 1, for images that differ: index [n], unit v [n, d]."""
        mixed = torch.lerp(v, self.rows[index], self.momentum)
        self.rows.index_copy_(0, index, normalize(mixed, dim=1))

    def match(
        self, v: Tensor, positives: Tensor, taken: Tensor | None = None, *, temperature: float, entropy: bool = False
    ) -> Match:
        """Unit v [n, d] against the whole bank. Positives [n, m]: numbers of images, of which the first always counts
        and the others where `taken` [n, m] says so."""
        if taken is None:
            taken = torch.ones_like(positives, dtype=torch.bool)
        return Match(*_Softmax.apply(v, self.rows, positives, taken, temperature, entropy))

    @torch.no_grad()
    def survey(self, temperature: float) -> tuple[Tensor, Tensor]:
        """Each row's entropy over the bank, itself included, and its nearest other row: float [N], int64 [N]."""
        rows, images = self.rows, len(self.rows)
        entropy, nearest = rows.new_empty(images), torch.empty(images, dtype=torch.long, device=rows.device)
        for some in torch.arange(images, device=rows.device).split(max(1, _CHUNK // images)):
            cosines = rows[some] @ rows.T  # [c, N]
            log_p = log_softmax(cosines / temperature, dim=1)
            entropy[some] = -(log_p.exp() * log_p).sum(dim=1)
            cosines.scatter_(1, some[:, None], -torch.inf)  # nobody is their own neighbour
            nearest[some] = cosines.argmax(dim=1)
        return entropy, nearest


class _Softmax(Function):
    """`Bank.match`, with ∂/∂v found on the way: [n, N] is passed over a few times and nothing of it is kept.

    s_ij = v_i · b_j / τ. With w_ij the share of positive j among the positives of i, and H the entropy,
    ∂ log Σ_Ω p / ∂s_ij = w_ij − p_ij and ∂H / ∂s_ij = −p_ij (log p_ij + H_i): products with b are all that is needed.
    """

    @staticmethod
    def forward(
        ctx: Any, v: Tensor, rows: Tensor, positives: Tensor, taken: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        log_p = log_softmax((v / temperature) @ rows.T, dim=1)  # [n, N]
        each = log_p.gather(1, positives).masked_fill(~taken, -torch.inf)  # [n, m]
        log_share = each.logsumexp(dim=1)
        w = (each - log_share[:, None]).exp()
        p = log_p.exp() if with_entropy else log_p.exp_()
        mean = p @ rows  # [n, d]
        towards = torch.bmm(w[:, None], rows[positives]).squeeze(1) - mean
        if with_entropy:
            p *= log_p
            entropy = -p.sum(dim=1)
            spread = -(p @ rows + entropy[:, None] * mean)
        else:
            entropy, spread = torch.zeros_like(log_share), None
        ctx.save_for_backward(towards, spread)
        ctx.temperature = temperature
        return log_share, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_share: Tensor, on_entropy: Tensor) -> tuple[Tensor | None, ...]:
        towards, spread = ctx.saved_tensors  # ∂/∂v of the two, times τ
        on_v = on_share[:, None] * towards
        if spread is not None:
            on_v = on_v + on_entropy[:, None] * spread
        return on_v / ctx.temperature, None, None, None, None, None
