"""The losses in a script of one's own with DistributedDataParallel: gradients are those of the whole batch."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from aag.distributed import gather_batch
from aag.losses import gnt_xent


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def gradients(network, views):
    x, y, z = (gather_batch(network(view), 0) for view in views)
    gnt_xent(x, y, z).backward()
    return [each.grad for each in network.parameters()]


def run(rank, folder, views):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(
        gradients(nn.parallel.DistributedDataParallel(make_network()), views.chunk(2, 1)[rank]), f"{folder}/{rank}"
    )
    dist.destroy_process_group()


def test_gradients_in_ddp_are_those_of_the_whole_batch(tmp_path):
    views = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(1))
    mp.spawn(run, (str(tmp_path), views), nprocs=2)
    expected = gradients(make_network(), views)
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / str(rank)), expected, rtol=1e-4, atol=1e-6)
