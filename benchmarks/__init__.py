"""Speed and memory of every stage, measured on this machine in one run: `python -m benchmarks`.

augmentation.py (with rivals.py: torchvision), training.py, evaluation.py and startup.py measure; plan.py holds the
sizes; tables.py shows the record that __main__.py saves.
"""
