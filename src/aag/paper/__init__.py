"""The paper's tables and figures as data, the runs that they need, and the page with our numbers next to theirs."""

from aag.paper.experiments import PAPER, Cell, Experiment, Figure, Table, make_experiment
from aag.paper.results import Result, Results

__all__ = ["PAPER", "Cell", "Experiment", "Figure", "Result", "Results", "Table", "make_experiment"]
