"""Train one model with several processes: their ranks, and the exchange of tensors and decisions.

    torchrun --nproc-per-node 4 -m aag train --data cifar10

Every process holds the whole model and an equal share of each batch. Outside `process_group` there is one process, and
the functions here return their argument or do nothing. In a dry run of the kernels no tensor is sent: a process that
cannot compile them must not keep the others waiting.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from aag.errors import AAGError
from aag.kernels import in_dry_run

T = TypeVar("T")
# One process may decode images for hours while the others wait. A process that dies is noticed by its launcher.
CONTROL_TIMEOUT = timedelta(days=7)
START_SECONDS = 1800.0  # that all processes may take to start
FORCE_VARIABLE = "AAG_FORCE_DISTRIBUTED"


class Launch(NamedTuple):
    """The rank of this process among those that torchrun or a scheduler started."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # among the processes of its machine
    local_world_size: int = 1


_control_group: Any = None  # a gloo group for decisions of the host, which must not wait for a GPU


def read_launch() -> Launch:
    """Read the environment that torchrun sets; a single process where it is absent."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Launch()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        launch = Launch(*(int(os.environ.get(name, default)) for name, default in zip(names, "0101", strict=True)))
    except ValueError as error:
        raise AAGError(f"{', '.join(names)} must be whole numbers: {error}") from error
    if not 0 <= launch.rank < launch.world_size:
        raise AAGError(f"RANK {launch.rank} is not one of WORLD_SIZE {launch.world_size} processes")
    return launch


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Connect this process to the others inside the block. Does nothing for a single process.

    A default process group that exists already is used, and stays. With AAG_FORCE_DISTRIBUTED=1, torchrun's single
    process makes a group of its own, to measure the cost of communication.
    """
    global _control_group
    launch = read_launch()
    owns_group = not dist.is_initialized()
    size = launch.world_size if owns_group else dist.get_world_size()
    if _control_group is not None or (size == 1 and not os.environ.get(FORCE_VARIABLE)):
        yield
        return
    if owns_group:
        _initialize(launch, device)
    try:
        _control_group = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        yield
    finally:
        control, _control_group = _control_group, None
        if owns_group:
            dist.destroy_process_group()
        elif control is not None:
            dist.destroy_process_group(control)


def _initialize(launch: Launch, device: torch.device) -> None:
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        needed = " and ".join(missing)
        raise AAGError(f"{launch.world_size} processes need the environment variables {needed}; use torchrun")
    # NCCL needs a GPU per process. Gloo lets processes share one, and serves tensors on the CPU.
    own_gpu = device.type == "cuda" and launch.local_world_size <= torch.cuda.device_count()
    store, _, _ = next(dist.rendezvous("env://"))
    dist.init_process_group(
        f"cpu:gloo,cuda:{'nccl' if own_gpu else 'gloo'}",
        store=dist.PrefixStore(_agree_on_name(store, launch), store),
        rank=launch.rank,
        world_size=launch.world_size,
        device_id=device if own_gpu else None,
    )


def _agree_on_name(store: dist.Store, launch: Launch) -> str:
    """Return a name for this start of the job, which all its processes and no earlier ones use.

    After a restart, torchrun may serve the same store, with addresses of processes that have died. Its own count of
    restarts cannot be the name, because it differs from machine to machine.
    """
    own = uuid4().hex
    if launch.rank:
        store.set(f"join {launch.rank}", own)
        name = store.get(f"start of {own}").decode()  # waits for the main process
        store.set(f"{name} {launch.rank}", "ready")
        return name
    missing = set(range(1, launch.world_size))
    deadline = time.monotonic() + START_SECONDS
    while missing:
        for each in missing:
            if store.check([f"join {each}"]):  # perhaps of a dead process: answered until the living one is ready
                store.set(f"start of {store.get(f'join {each}').decode()}", own)
        missing = {each for each in missing if not store.check([f"{own} {each}"])}
        if missing and time.monotonic() > deadline:
            raise AAGError(f"{len(missing)} of {launch.world_size} processes did not start in {START_SECONDS:.0f} s")
        time.sleep(0.02)
    return own


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_distributed() -> bool:
    """Return whether tensors and decisions are exchanged: between several processes, or in a forced group of one."""
    return world_size() > 1 or _control_group is not None


def is_main() -> bool:
    """Return whether this process writes the run folder and prints."""
    return rank() == 0


def backend(device: torch.device) -> str:
    """Return the backend that sends tensors of a device between processes: nccl or gloo."""
    return dist.get_backend_config().split(f"{device.type}:")[-1].split(",")[0] if dist.is_initialized() else ""


def process_slice(count: int) -> slice:
    """Return the slice of `count` rows that belongs to this process. Slice lengths differ by at most one."""
    return slice(count * rank() // world_size(), count * (rank() + 1) // world_size())


# --- tensors ----------------------------------------------------------------------------------------------------------


def gather_batch(x: Tensor, dim: int) -> Tensor:
    """Concatenate the equal shares of all processes along `dim`.

    Every process must compute the same loss from the result, and call backward on that loss divided by the number of
    processes. Summed over processes, all gradients are then those of one process with the whole batch.
    DistributedDataParallel averages them instead: leave the loss undivided there.
    """
    return _GatherBatch.apply(x, dim) if is_distributed() else x


class _GatherBatch(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.dim, ctx.rows = dim, x.shape[dim]
        return torch.cat(_all_gather(x), dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # All processes have the same gradient of the whole batch: nothing is sent.
        own = grads[0].narrow(ctx.dim, rank() * ctx.rows, ctx.rows)
        return own * world_size(), None


def scale_gradient(x: Tensor) -> Tensor:
    """Return x unchanged, with the gradient that it would get through `gather_batch`.

    It is for losses that need no gathering, because each process computes its own part of them.
    """
    return _ScaleGradient.apply(x) if is_distributed() else x


class _ScaleGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * world_size()


@torch.no_grad()
def gather_rows(x: Tensor, count: int) -> Tensor:
    """Concatenate all processes' slices of `count` rows (see `process_slice`), without gradients."""
    size = world_size()
    if not is_distributed():
        return x
    longest = -(-count // size)
    padded = x.new_zeros(longest, *x.shape[1:])
    padded[: len(x)] = x
    lengths = [count * (each + 1) // size - count * each // size for each in range(size)]
    return torch.cat([part[:length] for part, length in zip(_all_gather(padded), lengths, strict=True)])


def _all_gather(x: Tensor) -> list[Tensor]:
    if in_dry_run():
        return [x] * world_size()
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(world_size())]
    dist.all_gather(parts, x)
    return parts


def gather_stack(x: Tensor) -> Tensor:
    """Return x of every process, [processes, …], without gradients."""
    return torch.stack(_all_gather(x)) if is_distributed() else x[None]


def sum_in_place(x: Tensor) -> Tensor:
    """Replace x by its sum over processes."""
    if is_distributed() and not in_dry_run():
        dist.all_reduce(x)
    return x


def copy_from_main(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors in place with those of the main process."""
    if is_distributed():
        _change_joined(tensors, lambda flat: dist.broadcast(flat, 0))


def average_in_place(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their means over processes."""

    def average(flat: Tensor) -> None:
        dist.all_reduce(flat)
        flat /= world_size()

    if is_distributed():
        _change_joined(tensors, average)


@torch.no_grad()
def _change_joined(tensors: Iterable[Tensor], change: Callable[[Tensor], object]) -> None:
    """Apply `change` to tensors in place, flattened into one per dtype and device: few large messages are faster."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for each in tensors:
        groups.setdefault((each.dtype, each.device), []).append(each)
    for group in groups.values():
        flat = torch.cat([each.reshape(-1) for each in group])
        change(flat)
        for target, part in zip(group, flat.split([each.numel() for each in group]), strict=True):
            target.copy_(part.view(target.shape))


# --- decisions --------------------------------------------------------------------------------------------------------


def any_process(*flags: bool) -> tuple[bool, ...]:
    """Return which flags are set in at least one process, so that all processes decide alike."""
    if not is_distributed():
        return flags
    found = torch.tensor([int(flag) for flag in flags])
    dist.all_reduce(found, dist.ReduceOp.MAX, group=_control_group)
    return tuple(bool(each) for each in found.tolist())


def on_main(function: Callable[[], T]) -> T:
    """Call a function in the main process only and return its result in all of them. An AAGError is raised in all."""
    if not is_distributed():
        return function()
    outcome: list[Any] = [None, None]
    error: BaseException | None = None
    if is_main():
        try:
            outcome[0] = function()
        except AAGError as raised:
            error, outcome[1] = raised, str(raised)
    dist.broadcast_object_list(outcome, 0, group=_control_group)
    if error is not None:
        raise error
    if outcome[1] is not None:
        raise ReportedByMainError(outcome[1])
    return outcome[0]


def first_per_machine(function: Callable[[], T]) -> T:
    """Call a function in one process per machine first, then in the others, which reuse what it stored."""
    if not is_distributed():
        return function()
    first, found, error = read_launch().local_rank == 0, None, ""
    if first:
        found, error = _attempt(function)
    raise_any(error)
    if not first:
        found, error = _attempt(function)
    raise_any(error)
    return found  # type: ignore[return-value]


def _attempt(function: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return function(), ""
    except AAGError as error:
        return None, str(error)


def raise_any(error: str) -> None:
    """Raise in all processes if one of them has an error; an empty string is none."""
    if not is_distributed():
        if error:
            raise AAGError(error)
        return
    errors: list[str] = [""] * world_size()
    dist.all_gather_object(errors, error, group=_control_group)
    for number, found in enumerate(errors):
        if found:
            raise AAGError(found) if number == rank() or is_main() else ReportedByMainError(found)


def check_same(values: Mapping[str, object], advice: str) -> None:
    """Raise in all processes if a value differs between them. values: by the name to show in the message."""
    if not is_distributed():
        return
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, dict(values), group=_control_group)
    for number, others in enumerate(found):
        for name, value in found[0].items():
            if others[name] != value:
                kind = AAGError if is_main() else ReportedByMainError
                raise kind(f"{name} is {value} in process 0 and {others[name]} in process {number}; {advice}")


class ReportedByMainError(AAGError):
    """An error that the main process has already reported; other processes do not print it."""
