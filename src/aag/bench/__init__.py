"""`aag bench`: speed and memory of every stage, measured on this machine in one go.

plan.py holds the sizes. One module per section measures: training.py (with ceiling.py), pipeline.py, photographs.py,
methods.py, augmentation.py, evaluation.py, serving.py and startup.py (with first_step.py). peers.py has torchvision's
transforms. machine.py describes the machine; run.py saves the record; tables.py shows it.
"""

SECTIONS = (
    "training",
    "pipeline",
    "photographs",
    "methods",
    "augmentation",
    "evaluation",
    "serving",
    "startup",
)  # in the order of the tables
