"""Speed and memory of every stage, measured on this machine in one go: `aag bench`.

training.py (with ceiling.py), usual.py, methods.py, augmentation.py (with rivals.py: torchvision), evaluation.py and
startup.py (with first_step.py) measure; plan.py holds the sizes, machine.py says where it ran, and run.py saves the
record that tables.py shows.
"""

SECTIONS = ("training", "usual", "methods", "augmentation", "evaluation", "startup")  # in the order of the tables
