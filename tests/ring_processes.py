"""What each process of tests/test_large_batch.py does: the loss of its rows of a batch, in several groups."""

import torch
import torch.distributed as dist

from aag import large_batch

GROUPS = ([0, 1, 2, 3], [0, 1], [2, 3], [3, 0, 2])
N, D = 24, 6
FORMS = {  # the loss's name in `aag.losses`, then options: number of views, arguments of `contrast`
    "gnt_xent": (3, {"pairs": large_batch.gnt_xent_pairs()}),
    "gnt_xent one_way": (4, {"pairs": large_batch.gnt_xent_pairs(2), "one_way": True}),
    "nt_xent": (3, {"pairs": large_batch.gnt_xent_pairs(), "keep_positive": True}),
    "nt_xent one_way": (3, {"pairs": large_batch.gnt_xent_pairs(), "keep_positive": True, "one_way": True}),
    "simclr": (2, {"pairs": large_batch.SIMCLR_PAIRS, "keep_positive": True}),
    "dcl": (2, {"pairs": large_batch.SIMCLR_PAIRS}),
    "dclw": (2, {"pairs": large_batch.SIMCLR_PAIRS, "sigma": 0.5}),
}


def batch(views: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(views, N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def run(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    found = {}
    for ranks in GROUPS:
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        place = dist.get_rank(group)  # new_group sorts the ranks
        for name, (views, form) in FORMS.items():
            for dtype in (torch.float64, torch.float32):
                rows = batch(views, dtype).chunk(len(ranks), dim=1)[place].clone().requires_grad_()
                result = large_batch.contrast(rows.unbind(), temperature=0.2, chunk=5, group=group, **form)
                (3 * result.loss).backward()
                found[str(ranks), name, str(dtype)] = (result, place, rows.grad)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
