"""`aag bench`: speed and memory of every stage, measured on this machine in one go.

Each section has a module of its name. plan.py holds the sizes, peers.py torchvision's transforms. ceiling.py belongs to
training.py, first_step.py to startup.py. machine.py describes the machine, run.py saves the record, tables.py shows it.
"""

SECTIONS = (  # in the order of the tables
    *("training", "pipeline", "photographs", "decoding", "methods"),
    *("augmentation", "evaluation", "serving", "startup"),
)
