"""Train on several machines under SLURM, from Python with submitit (pip install submitit).

    python examples/schedulers/slurm_submitit.py --data /data/photos --batch-size 4096 --out runs/photos

All arguments go to `aag train`. Two minutes before the time limit, the run is saved and the job requeued.
"""

import os
import signal
import sys

os.environ["SUBMITIT_PREEMPT_SIGNAL"] = "USR1"  # before submitit is imported; aag handles it while training

import submitit
from submitit.helpers import Checkpointable, TorchDistributedEnvironment

from aag.cli import main
from aag.signals import RESUMABLE


class Train(Checkpointable):
    """A job that can be requeued: the same arguments resume the run."""

    def __call__(self, *arguments: str) -> int:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        code = main(["train", *arguments])
        if code == RESUMABLE:  # stopped and saved: now let submitit handle the signal and requeue the job
            os.kill(os.getpid(), signal.SIGUSR1)
        elif code:
            raise RuntimeError(f"aag train failed with exit code {code}; see its message in the log")
        return code


def submit(arguments: list[str], cluster: str = "slurm", **parameters: object) -> submitit.Job:
    executor = submitit.AutoExecutor(folder="submitit", cluster=cluster, slurm_max_num_timeout=1000)  # most requeues
    executor.update_parameters(name="aag", **parameters)
    return executor.submit(Train(), *arguments)


if __name__ == "__main__":
    job = submit(
        sys.argv[1:],
        nodes=2,
        gpus_per_node=8,
        tasks_per_node=8,  # one process per GPU
        cpus_per_task=8,
        timeout_min=24 * 60,
        slurm_signal_delay_s=120,
    )
    print(f"job {job.job_id}; its output: {job.paths.stdout}")
