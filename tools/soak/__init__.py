"""Soak test of `aag train`: kill, damage and starve small runs, and compare each with an undisturbed one.

    make soak                                                # all parts with the default counts
    PYTHONPATH=tools python -m soak --kills 20 --steps 0     # fewer kills, no long run

Every case is a real process, forked after the imports. A case passes if the same command then ends with the bytes of
the undisturbed run, or says in one line why it cannot. The exit code is 1 if a case failed.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported: a process with threads must not fork
