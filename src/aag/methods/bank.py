"""A memory bank: one embedding per training image, and the softmax over all of them.

p_ij = exp(v_i · b_j / τ) / Σ_k exp(v_i · b_k / τ) is the probability that view i shows image j, where b_j is the bank's
row of image j. Gradients flow through v only.
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
    """The result of comparing a batch of views with the bank."""

    log_probability: Tensor  # [n]  log Σ_j p_ij over the positives j of view i
    entropy: Tensor  # [n]  −Σ_j q_ij log q_ij over all images but the view's own; zeros unless requested


class Bank(nn.Module):
    """One embedding b_i per training image: `rows`, float32 [N, d].

    Rows start as uniform random numbers with a mean |b|² of 1, and have unit length after their first update.
    """

    rows: Tensor

    def __init__(self, images: int, dim: int, momentum: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self.momentum = momentum
        bound = (dim / 3) ** -0.5  # of uniform draws whose mean |b|² is 1
        draws = uniforms(keys(seed, 0, torch.arange(images), Stream.BANK_INIT), dim)
        self.register_buffer("rows", (2 * draws - 1) * bound)

    @torch.no_grad()
    def update(self, index: Tensor, v: Tensor) -> None:
        """Set b_i to m · b_i + (1 − m) · v_i, normalized, for distinct indices i [n] and unit v [n, d]."""
        mixed = torch.lerp(v, self.rows[index], self.momentum)
        self.rows.index_copy_(0, index, normalize(mixed, dim=1))

    def match(
        self, v: Tensor, positives: Tensor, mask: Tensor | None = None, *, temperature: float, entropy: bool = False
    ) -> Match:
        """Compare unit v [n, d] with the whole bank.

        positives [n, m]: indices of the positives of view i; the first is its own image. mask [n, m]: which of them
        count; the first must. entropy: also return the entropy of q, the softmax over all other images.
        """
        if mask is None:
            mask = torch.ones_like(positives, dtype=torch.bool)
        return Match(*_BankSoftmax.apply(v, self.rows, positives, mask, temperature, entropy))

    @torch.no_grad()
    def find_neighbours(self, temperature: float) -> tuple[Tensor, Tensor]:
        """Return each row's entropy over the bank, float [N], and the index of its nearest other row, int64 [N]."""
        rows, images = self.rows, len(self.rows)
        entropy, nearest = rows.new_empty(images), torch.empty(images, dtype=torch.long, device=rows.device)
        for chunk in torch.arange(images, device=rows.device).split(max(1, _CHUNK // images)):
            cosines = rows[chunk] @ rows.T  # [c, N]
            log_p = log_softmax(cosines / temperature, dim=1)
            entropy[chunk] = -(log_p.exp() * log_p).sum(dim=1)
            cosines.scatter_(1, chunk[:, None], -torch.inf)  # a row is not its own neighbour
            nearest[chunk] = cosines.argmax(dim=1)
        return entropy, nearest


class _BankSoftmax(Function):
    """`Bank.match` with its gradient ∂/∂v computed in the forward pass, so that no [n, N] matrix is kept.

    s_ij = v_i · b_j / τ. With w_ij the weight of positive j among the positives of i, and H the entropy of q,
    ∂ log Σ_Ω p / ∂s_ij = w_ij − p_ij and ∂H / ∂s_ij = −q_ij (log q_ij + H_i). Products of these with b give ∂/∂v.
    """

    @staticmethod
    def forward(
        ctx: Any, v: Tensor, rows: Tensor, positives: Tensor, mask: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        s = (v / temperature) @ rows.T  # [n, N]
        log_p = log_softmax(s, dim=1)
        log_positives = log_p.gather(1, positives).masked_fill(~mask, -torch.inf)  # [n, m]
        log_probability = log_positives.logsumexp(dim=1)
        w = (log_positives - log_probability[:, None]).exp()
        d_log_p = torch.bmm(w[:, None], rows[positives]).squeeze(1) - log_p.exp_() @ rows  # [n, d]
        if with_entropy:
            own = positives[:, :1]
            log_q = log_softmax(s.scatter_(1, own, -torch.inf), dim=1)
            q = log_q.exp()
            mean = q @ rows
            q *= log_q.scatter_(1, own, 0)  # 0 · log 0 is 0
            entropy = -q.sum(dim=1)
            d_entropy = -(q @ rows + entropy[:, None] * mean)
        else:
            entropy, d_entropy = torch.zeros_like(log_probability), None
        ctx.save_for_backward(d_log_p, d_entropy)  # τ times the gradients; backward divides
        ctx.temperature = temperature
        return log_probability, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_p: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        d_log_p, d_entropy = ctx.saved_tensors
        grad_v = grad_log_p[:, None] * d_log_p
        if d_entropy is not None:
            grad_v = grad_v + grad_entropy[:, None] * d_entropy
        return grad_v / ctx.temperature, None, None, None, None, None
