"""Fuzz the readers: feed them damaged files and report crashes, hangs, tracebacks and high memory.

`python -m fuzz --inputs 100000` (`make fuzz`) runs every target in worker processes. Inputs depend only on the seed,
the target and their number, so each finding can be made again. A target is one entry of `fuzz.targets.TARGETS`.
"""
