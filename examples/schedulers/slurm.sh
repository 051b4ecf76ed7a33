#!/bin/bash
# Train on several machines under SLURM. All arguments go to `aag train`:
#
#     sbatch examples/schedulers/slurm.sh --data /data/photos --batch-size 4096 --out runs/photos
#
# Give --out, on a file system that all machines share. A requeued job runs the same command and resumes in that folder.
# Options of sbatch override the lines below: sbatch --nodes=1 --gpus-per-node=4 --ntasks-per-node=4 …

#SBATCH --job-name=aag
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8         # one process per GPU
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120           # 120 s before the time limit: save a checkpoint and exit with code 75
#SBATCH --requeue                   # allow requeueing, by this script and after preemption
#SBATCH --open-mode=append          # a requeued job appends to the same log
#SBATCH --output=slurm-%j.log

export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# `exec` lets SLURM's signals reach Python. torchrun is not needed: SLURM starts the processes.
srun --kill-on-bad-exit=0 bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_NNODES))
    exec python -m aag train "$@"' aag "$@"
code=$?

if [ "$code" -eq 75 ]; then  # stopped by a signal after saving
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
