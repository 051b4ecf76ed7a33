"""Sum gradients over processes while backward still computes."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from aag.kernels import in_dry_run

BUCKET_BYTES = 25 << 20  # gradients that are sent at once: large enough for the bandwidth, small enough to overlap


class GradientReducer:
    """Sums the gradients of parameters over processes, bucket by bucket, in the order in which backward finishes them.

    Between `start` and `finish` lies one backward pass. Afterwards `.grad` of each parameter is the sum; parameters
    without a gradient keep None.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[Tensor, _Bucket] = {}
        self._hooks = []
        for parameter in reversed(list(parameters)):  # about the order of backward
            bucket = self._buckets[-1] if self._buckets else None
            if bucket is None or not bucket.has_room_for(parameter):
                bucket = _Bucket(parameter)
                self._buckets.append(bucket)
            bucket.parameters.append(parameter)
            self._bucket_of[parameter] = bucket
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._on_gradient))
        for bucket in self._buckets:
            bucket.allocate()
        self._sent: int | None = None  # buckets sent so far; None outside of a backward pass

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def start(self) -> None:
        self._sent = 0
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)

    @torch.no_grad()
    def finish(self) -> None:
        assert self._sent is not None
        for bucket in self._buckets[self._sent :]:
            bucket.send()
        self._sent = None
        for bucket in self._buckets:
            bucket.receive()

    @torch.no_grad()
    def _on_gradient(self, parameter: Tensor) -> None:
        if self._sent is None:
            return
        self._bucket_of[parameter].missing.discard(parameter)
        # All processes must send the buckets in the same order.
        while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
            self._buckets[self._sent].send()
            self._sent += 1


class _Bucket:
    """Some parameters of one dtype and device, with one flat buffer for their gradients."""

    def __init__(self, first: Tensor) -> None:
        self.dtype, self.device = first.dtype, first.device
        self.parameters: list[Tensor] = []
        self.missing: set[Tensor] = set()
        self._work: dist.Work | None = None

    def has_room_for(self, parameter: Tensor) -> bool:
        size = sum(each.numel() for each in self.parameters) + parameter.numel()
        same = (parameter.dtype, parameter.device) == (self.dtype, self.device)
        return same and size * parameter.element_size() <= BUCKET_BYTES

    def allocate(self) -> None:
        self._flat = torch.zeros(sum(each.numel() for each in self.parameters), dtype=self.dtype, device=self.device)
        parts = self._flat.split([each.numel() for each in self.parameters])
        # With the strides of their parameters, which channels-last weights need.
        self._slots = {
            each: part.as_strided(each.shape, each.stride(), part.storage_offset())
            for each, part in zip(self.parameters, parts, strict=True)
        }

    def send(self) -> None:
        self._used = [each for each in self.parameters if each.grad is not None]
        for each in self.parameters:
            if each.grad is None:
                self._slots[each].zero_()
        moved = [each for each in self._used if each.grad is not self._slots[each]]
        if moved:
            torch._foreach_copy_([self._slots[each] for each in moved], [each.grad for each in moved])  # type: ignore[misc]
        self._work = None if in_dry_run() else dist.all_reduce(self._flat, async_op=True)

    def receive(self) -> None:
        if self._work is not None:
            self._work.wait()
        for each in self._used:
            each.grad = self._slots[each]
